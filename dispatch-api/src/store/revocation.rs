//! Revokes tokens: when a container is unlocked or ends, and when a user loses rights. A dispatcher
//! revokes those of its attempts, too (`act/end_attempt.rs` in dispatch-core).

use rusqlite::ToSql;

use crate::auth::Caller;
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

/// Revokes the attempt tokens of a container that are good now: all, or only the one that held the
/// lock, where another attempt may have a token already.
pub fn revoke_attempt_tokens(
    tx: &Tx<'_>,
    caller: &Caller,
    container: &str,
    holder: Option<&str>,
) -> Result<()> {
    let of_container = "attempt_of = ?2 AND (?3 IS NULL OR uuid = ?3)";
    revoke_all(tx, caller, of_container, &[&tx.now, &container, &holder])
}

/// Revokes the tokens that are good now and meet a condition. `?1` is the time now.
fn revoke_all(tx: &Tx<'_>, caller: &Caller, condition: &str, params: &[&dyn ToSql]) -> Result<()> {
    let good = format!("{condition} AND (expires_at IS NULL OR expires_at > ?1)");
    for token in rows::find(tx.conn, &schema::TOKENS, &good, params)? {
        revoke(tx, caller, token.uuid())?;
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
    let ended = (token.uuid().to_owned(), expires_at);
    tx.effects().overrides.push(ended);
    Ok(())
}

/// Revokes all attempt tokens of a user that are good now. They contain the user's rights, so they
/// must go when these shrink.
pub fn revoke_user_tokens(tx: &Tx<'_>, caller: &Caller, user_uuid: &str) -> Result<()> {
    let of_user = "owner_uuid = ?2 AND attempt_of IS NOT NULL";
    revoke_all(tx, caller, of_user, &[&tx.now, &user_uuid])
}
