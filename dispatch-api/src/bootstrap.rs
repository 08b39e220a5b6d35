//! Creates the three initial users and their tokens at the first start.

use rusqlite::Connection;
use serde_json::json;

use crate::auth::secrets;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{GROUPS, TOKENS, USERS};
use crate::store::cluster_config::ClusterConfig;
use crate::store::transaction::Tx;

/// The initial users; each has a token file of that name.
pub const INITIAL_USERS: [&str; 3] = ["root", "user", "dispatch"];

/// Creates missing users and tokens, and returns each user name with its token.
pub fn ensure_users_and_tokens(
    connection: &mut Connection,
    config: &ClusterConfig,
) -> Result<Vec<(String, String)>> {
    let transaction = connection.transaction()?;
    let tx = Tx::new(&transaction, config);
    ensure_group(&tx)?;
    let mut tokens = Vec::new();
    for name in INITIAL_USERS {
        let user = ensure_user(&tx, name)?;
        let token = ensure_token(&tx, name, user.uuid())?;
        let token_text = format!("v2/{}/{}", token.uuid(), token.text("api_token"));
        tokens.push((name.to_owned(), token_text));
    }
    drop(tx);
    transaction.commit()?;
    Ok(tokens)
}

fn ensure_group(tx: &Tx<'_>) -> Result<()> {
    let uuid = tx.config.all_users_group();
    if tx.fetch(&GROUPS, &uuid)?.is_none() {
        let group = Record::new()
            .with("uuid", uuid)
            .with("name", "All users")
            .with("group_class", "role");
        tx.create(&GROUPS, &tx.system, group)?;
    }
    Ok(())
}

fn ensure_user(tx: &Tx<'_>, name: &str) -> Result<Record> {
    if let Some(user) = rows::find(tx.conn, &USERS, "username = ?1", &[&name])?.pop() {
        return Ok(user);
    }
    let mut user = Record::new()
        .with("owner_uuid", tx.config.system_user())
        .with("username", name)
        .with("email", format!("{name}@localhost"))
        // Workbench asks a user without both names for them.
        .with("first_name", "Local")
        .with("last_name", name)
        .with("is_active", true)
        .with("is_admin", name != "user");
    if name == "root" {
        user.set("uuid", tx.config.system_user());
    }
    tx.create(&USERS, &tx.system, user)
}

/// The user's oldest unrestricted token without expiry; created if missing.
fn ensure_token(tx: &Tx<'_>, name: &str, user_uuid: &str) -> Result<Record> {
    let root_uuid = format!("{}-gj3su-000000000000000", tx.config.cluster_id);
    let known = rows::find(
        tx.conn,
        &TOKENS,
        "owner_uuid = ?1 AND expires_at IS NULL AND attempt_of IS NULL AND scopes = '[\"all\"]' \
         AND created_by_ip_address = 'first start' ORDER BY created_at LIMIT 1",
        &[&user_uuid],
    )?;
    if let Some(token) = known.into_iter().next() {
        return Ok(token);
    }
    let mut token = Record::new()
        .with("owner_uuid", user_uuid)
        .with("api_token", secrets::new_token_secret())
        .with("created_by_ip_address", "first start")
        .with("scopes", json!(["all"]));
    if name == "root" && tx.fetch(&TOKENS, &root_uuid)?.is_none() {
        token.set("uuid", root_uuid);
    }
    tx.create(&TOKENS, &tx.system, token)
}
