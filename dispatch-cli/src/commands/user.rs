//! `dispatch user`: adds, lists and disables users, and makes tokens for them.

use arvados_client::Client;
use arvados_client::records::User;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::commands::token::{self, TokenLimits};
use crate::error::CliError;
use crate::printer::Output;
use crate::session::Session;

/// Add, list and disable users, and make tokens for them (for an administrator)
///
/// On the machine of 'dispatch up', with its account, these commands use its administrator by
/// themselves. Elsewhere, ARVADOS_API_TOKEN must be the token of an administrator. A new user is an
/// ordinary one, who sees nothing of the jobs and files of others.
#[derive(Debug, Args)]
pub struct Users {
    #[command(subcommand)]
    pub command: UserCommand,
}

/// Subcommands of `dispatch user`.
#[derive(Debug, Subcommand)]
pub enum UserCommand {
    Add(Add),
    /// List the users
    #[command(visible_alias = "ls")]
    List,
    /// Disable a user: all tokens of the user stop working at once
    ///
    /// Jobs of the user go on, and what the user stored stays. Only jobs with --network lose their
    /// access to the API, and with it their output. Stop them with 'dispatch --admin kill UUID'.
    Disable(KnownUser),
    /// Enable a disabled user: the tokens of the user work again
    Enable(KnownUser),
    Token(Token),
}

/// Add an ordinary user
#[derive(Debug, Args)]
pub struct Add {
    /// Login name: letters and digits, the first a letter
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// Email address [default: NAME@localhost]
    #[arg(long, value_name = "ADDRESS")]
    pub email: Option<String>,
}

/// A user that exists.
#[derive(Debug, Args)]
pub struct KnownUser {
    /// Login name
    pub name: String,
}

/// Make a token for a user, and print it
///
/// The token is printed this once and never shown again.
#[derive(Debug, Args)]
pub struct Token {
    /// Login name
    pub name: String,
    #[command(flatten)]
    pub limits: TokenLimits,
}

pub async fn run(args: Users, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let admin = administrator(client).await?;
    match args.command {
        UserCommand::Add(add) => run_add(add, client, out).await,
        UserCommand::List => run_list(client, out).await,
        UserCommand::Disable(user) => set_active(&user.name, false, &admin, client, out).await,
        UserCommand::Enable(user) => set_active(&user.name, true, &admin, client, out).await,
        UserCommand::Token(token) => run_token(token, client, out).await,
    }
}

async fn run_add(args: Add, client: &Client, out: Output) -> Result<(), CliError> {
    if let Some(known) = client.find_user(&args.name).await? {
        return Err(match known.is_active {
            true => CliError::UserExists(args.name),
            false => CliError::UserDisabled(args.name),
        });
    }
    let default = format!("{}@localhost", args.name);
    let email = args.email.unwrap_or(default);
    let user = client.create_user(&args.name, &email).await?;
    let name = shown_name(&user);
    let note = format!("user {name} is added; make a token with: dispatch user token {name}");
    out.json_or_note(&record(&user), &note)
}

/// The user of the client, who must be an administrator.
pub async fn administrator(client: &Client) -> Result<User, CliError> {
    let user = client.current_user().await?;
    match user.is_admin {
        true => Ok(user),
        false => Err(CliError::NotAdmin(shown_name(&user))),
    }
}

async fn run_list(client: &Client, out: Output) -> Result<(), CliError> {
    let mut users = client.users().await?;
    users.sort_by(|a, b| a.username.cmp(&b.username));
    if out.json {
        let rows: Vec<Value> = users.iter().map(record).collect();
        return out.json(&rows);
    }
    let rows = users.iter().map(|user| {
        vec![
            shown_name(user),
            role(user).to_owned(),
            user.email.clone(),
            user.uuid.to_string(),
        ]
    });
    let header = vec!["NAME", "ROLE", "EMAIL", "UUID"];
    out.narrow_table(header, rows.collect(), &["EMAIL"])
}

async fn set_active(
    name: &str,
    is_active: bool,
    admin: &User,
    client: &Client,
    out: Output,
) -> Result<(), CliError> {
    let user = find(client, name).await?;
    if !is_active && user.uuid == admin.uuid {
        return Err(CliError::OwnUser(name.to_owned()));
    }
    let user = client.set_active(&user.uuid, is_active).await?;
    let note = match is_active {
        true => format!("user {name} is enabled"),
        false => format!("user {name} is disabled: no token of this user works any more"),
    };
    out.json_or_note(&record(&user), &note)
}

async fn run_token(args: Token, client: &Client, out: Output) -> Result<(), CliError> {
    let user = find(client, &args.name).await?;
    if !user.is_active {
        return Err(CliError::UserDisabled(args.name));
    }
    token::create(client, Some(&user), &args.limits, out).await
}

async fn find(client: &Client, name: &str) -> Result<User, CliError> {
    let found = client.find_user(name).await?;
    found.ok_or_else(|| CliError::NoUser(name.to_owned()))
}

fn role(user: &User) -> &'static str {
    match (user.is_active, user.is_admin) {
        (false, _) => "disabled",
        (true, true) => "administrator",
        (true, false) => "user",
    }
}

pub fn shown_name(user: &User) -> String {
    match user.username.is_empty() {
        true => user.uuid.to_string(),
        false => user.username.clone(),
    }
}

fn record(user: &User) -> Value {
    json!({
        "name": user.username,
        "uuid": user.uuid,
        "email": user.email,
        "is_admin": user.is_admin,
        "is_active": user.is_active,
    })
}

/// The rule of Arvados for login names.
fn parse_name(text: &str) -> Result<String, String> {
    let begins = text.starts_with(|c: char| c.is_ascii_alphabetic());
    match begins && text.chars().all(|c| c.is_ascii_alphanumeric()) {
        true => Ok(text.to_owned()),
        false => Err("a login name has letters and digits, and begins with a letter".to_owned()),
    }
}
