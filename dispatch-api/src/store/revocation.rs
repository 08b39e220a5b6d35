//! Revokes tokens: when a container is unlocked or ends, and when a user loses rights. A dispatcher
//! revokes those of its attempts, too (`act/end_attempt.rs` in dispatch-core).

use crate::auth::Caller;
use crate::auth::attempt_token::ExpiryOverride;
use crate::db::rows;
use crate::error::Result;
use crate::record::Record;
use crate::schema;
use crate::store::transaction::Tx;

/// Revokes a token now. Its row stays, so that its actions can be traced.
pub fn revoke(tx: &Tx<'_>, caller: &Caller, uuid: &str) -> Result<()> {
    let Some(token) = tx.fetch(&schema::TOKENS, uuid)? else {
        return Ok(());
    };
    let ended = token.clone().with("expires_at", tx.now.as_str());
    tx.update(&schema::TOKENS, caller, &token, ended)?;
    if token.some_text("attempt_of").is_some() {
        set_expiry_override(tx, &token, Some(tx.now.clone()))?;
    }
    Ok(())
}

/// Which attempt tokens of a container are revoked.
#[derive(Clone, Copy, Debug)]
pub enum RevocationScope<'a> {
    /// Only the token that held the lock; another attempt may have a token already.
    LockHolder(&'a str),
    /// All tokens: the container will not be locked again.
    All,
}

pub fn revoke_attempt_tokens(
    tx: &Tx<'_>,
    caller: &Caller,
    container: &str,
    which: RevocationScope<'_>,
) -> Result<()> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT uuid FROM api_client_authorizations \
         WHERE attempt_of = ?1 AND (expires_at IS NULL OR expires_at > ?2)",
    )?;
    let uuids: Vec<String> = statement
        .query_map([container, &tx.now], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for uuid in uuids {
        if matches!(which, RevocationScope::LockHolder(holder) if holder != uuid) {
            continue;
        }
        revoke(tx, caller, &uuid)?;
    }
    Ok(())
}

/// Stores an expiry of an attempt token that differs from the signed one.
pub fn set_expiry_override(tx: &Tx<'_>, token: &Record, expires_at: Option<String>) -> Result<()> {
    tx.conn
        .prepare_cached(
            "INSERT INTO attempt_overrides (uuid, expires_at, signed_until) VALUES (?1, ?2, ?3) \
             ON CONFLICT (uuid) DO UPDATE SET expires_at = excluded.expires_at",
        )?
        .execute((token.uuid(), &expires_at, token.some_text("expires_at")))?;
    tx.queue_override(ExpiryOverride {
        uuid: token.uuid().to_owned(),
        expires_at,
    });
    Ok(())
}

/// Revokes all attempt tokens of a user that are good now. They contain the user's rights, so they
/// must go when these shrink.
pub fn revoke_user_tokens(tx: &Tx<'_>, caller: &Caller, user_uuid: &str) -> Result<()> {
    let tokens = rows::find(
        tx.conn,
        &schema::TOKENS,
        "owner_uuid = ?1 AND attempt_of IS NOT NULL AND (expires_at IS NULL OR expires_at > ?2)",
        &[&user_uuid, &tx.now],
    )?;
    for token in tokens {
        revoke(tx, caller, token.uuid())?;
    }
    Ok(())
}
