//! `dispatch token`: lists, makes and revokes tokens of the user.

use std::time::Duration;

use arvados_client::api::NewUserToken;
use arvados_client::records::{Authorization, User};
use arvados_client::{Client, TokenUuid};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::text::time_between;

/// List, make and revoke your own tokens
///
/// Who has a token can do what its scopes permit, as its user. A token is printed once, when it is
/// made. Lists show the uuids of tokens, never their secrets.
#[derive(Debug, Args)]
pub struct Tokens {
    #[command(subcommand)]
    pub command: TokenCommand,
}

/// Subcommands of `dispatch token`.
#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// List your tokens that have not expired
    #[command(visible_alias = "ls")]
    List,
    /// Make a token for yourself, and print it
    ///
    /// The token is printed this once and never shown again.
    Create(TokenLimits),
    Revoke(Revoke),
}

/// Revoke tokens: they stop working at once
#[derive(Debug, Args)]
pub struct Revoke {
    /// Uuids of the tokens
    #[arg(required = true, value_name = "UUID")]
    pub tokens: Vec<TokenUuid>,
}

/// What a new token may do, and for how long.
#[derive(Debug, Args)]
pub struct TokenLimits {
    /// Permit only these requests, as 'METHOD /path'; a path that ends with / permits all below it.
    /// May be given several times [default: all]
    #[arg(long = "scope", value_name = "SCOPE", value_parser = parse_scope)]
    pub scopes: Vec<String>,
    /// Time after which the token expires [default: never, or what the server decides]
    #[arg(long, value_name = "TIME", value_parser = units::parse_whole_seconds)]
    pub expires: Option<Duration>,
}

pub async fn run(args: Tokens, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    match args.command {
        TokenCommand::List => run_list(client, out).await,
        TokenCommand::Create(limits) => create(client, None, &limits, out).await,
        TokenCommand::Revoke(args) => run_revoke(&args.tokens, client, out).await,
    }
}

/// Makes a token, for `owner` if one is given, and prints it.
pub async fn create(
    client: &Client,
    owner: Option<&User>,
    limits: &TokenLimits,
    out: Output,
) -> Result<(), CliError> {
    let scopes = match limits.scopes.is_empty() {
        true => vec!["all".to_owned()],
        false => limits.scopes.clone(),
    };
    let new = NewUserToken {
        owner: owner.map(|user| user.uuid.clone()),
        scopes,
        expires_at: limits.expires.map(|after| Timestamp::now() + after),
    };
    let made = client.create_user_token(&new).await?;
    let token = made.token().ok_or(CliError::NoSecret)?;
    if out.json {
        let mut row = record(&made, None);
        row["token"] = json!(token.expose());
        return out.json(&row);
    }
    out.line(token.expose())?;
    let whose = owner.map_or(String::new(), |user| format!(" of user {}", user.username));
    let end = match made.expires_at {
        Some(end) => format!("expires at {end:.0}"),
        None => "does not expire".to_owned(),
    };
    eprint_note(&format!(
        "this token{whose} {end}, and is not shown again; revoke it with: dispatch token revoke {}",
        made.uuid
    ));
    Ok(())
}

async fn run_list(client: &Client, out: Output) -> Result<(), CliError> {
    let current = client.current_token().await?.uuid;
    let now = Timestamp::now();
    let mut tokens = client.tokens().await?;
    tokens.retain(|token| token.expires_at.is_none_or(|end| end > now));
    tokens.sort_by_key(|token| token.created_at);
    if out.json {
        let rows: Vec<Value> = tokens
            .iter()
            .map(|token| record(token, Some(token.uuid == current)))
            .collect();
        return out.json(&rows);
    }
    let rows = tokens.iter().map(|token| {
        let age = token.created_at.map(|made| time_between(made, now));
        let left = token.expires_at.map(|end| time_between(now, end));
        vec![
            token.uuid.to_string(),
            age.unwrap_or_default(),
            left.unwrap_or_else(|| "never".to_owned()),
            if token.uuid == current { "yes" } else { "" }.to_owned(),
            token.scopes.join(", "),
        ]
    });
    let header = vec!["UUID", "AGE", "EXPIRES IN", "IN USE HERE", "SCOPES"];
    out.narrow_table(header, rows.collect(), &["AGE", "SCOPES"])
}

async fn run_revoke(tokens: &[TokenUuid], client: &Client, out: Output) -> Result<(), CliError> {
    for uuid in tokens {
        match client.revoke_token(uuid).await {
            Err(error) if error.is_not_found() => return Err(CliError::NoToken(uuid.clone())),
            other => other?,
        }
        let note = format!("token {uuid} is revoked");
        out.json_or_note(&json!({"uuid": uuid, "revoked": true}), &note)?;
    }
    Ok(())
}

fn record(token: &Authorization, is_current: Option<bool>) -> Value {
    let mut row = json!({
        "uuid": token.uuid,
        "user_uuid": token.owner_uuid,
        "scopes": token.scopes,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
    });
    if let Some(is_current) = is_current {
        row["in_use_here"] = json!(is_current);
    }
    row
}

fn parse_scope(text: &str) -> Result<String, String> {
    const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];
    let is_request = text
        .split_once(' ')
        .is_some_and(|(method, path)| METHODS.contains(&method) && path.starts_with('/'));
    match is_request || text == "all" {
        true => Ok(text.to_owned()),
        false => Err("a scope is 'all', or a method and a path like 'GET /arvados/v1/'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_a_request() {
        for good in ["all", "GET /arvados/v1/", "PUT /arvados/v1/collections/"] {
            assert_eq!(parse_scope(good).as_deref(), Ok(good));
        }
        for bad in ["", "ALL", "get /x", "GET x", "/x", "GET"] {
            assert!(parse_scope(bad).is_err(), "{bad}");
        }
    }
}
