//! The end of tokens: container tokens when their container is let go, attempt tokens with it.

use crate::auth::Caller;
use crate::auth::attempt::Override;
use crate::error::Result;
use crate::record::Record;
use crate::schema;
use crate::tx::Tx;

/// Make the token the container itself uses.
pub fn create_container_token(tx: &Tx<'_>, who: &Caller, container: &Record) -> Result<String> {
    let owner = container
        .some_text("runtime_user_uuid")
        .map_or_else(|| tx.setting.system_user(), str::to_owned);
    let token = Record::new()
        .with("owner_uuid", owner)
        .with("api_token", new_secret())
        .with("scopes", container.get("runtime_auth_scopes").clone());
    Ok(tx.create(&schema::TOKENS, who, token)?.uuid().to_owned())
}

/// End a token now. Its row stays, so that what it did can still be traced.
pub fn expire(tx: &Tx<'_>, who: &Caller, uuid: &str) -> Result<()> {
    let Some(token) = tx.fetch(&schema::TOKENS, uuid)? else {
        return Ok(());
    };
    let ended = token.clone().with("expires_at", tx.now.as_str());
    tx.update(&schema::TOKENS, who, &token, ended)?;
    if token.some_text("attempt_of").is_some() {
        override_expiry(tx, &token, Some(tx.now.clone()))?;
    }
    Ok(())
}

/// Which attempt tokens of a container end.
#[derive(Clone, Copy, Debug)]
pub enum Ending<'a> {
    /// The attempt that held it; another may be tried with a token made beforehand.
    Holder(&'a str),
    /// All: the container will never be locked again.
    All,
}

pub fn end_attempts(tx: &Tx<'_>, who: &Caller, container: &str, which: Ending<'_>) -> Result<()> {
    let mut statement = tx.conn.prepare_cached(
        "SELECT uuid FROM api_client_authorizations \
         WHERE attempt_of = ?1 AND (expires_at IS NULL OR expires_at > ?2)",
    )?;
    let uuids: Vec<String> = statement
        .query_map([container, &tx.now], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    for uuid in uuids {
        if matches!(which, Ending::Holder(holder) if holder != uuid) {
            continue;
        }
        expire(tx, who, &uuid)?;
    }
    Ok(())
}

/// Remember that an attempt token ends at another time than its signature says.
pub fn override_expiry(tx: &Tx<'_>, token: &Record, expires_at: Option<String>) -> Result<()> {
    tx.conn
        .prepare_cached(
            "INSERT INTO attempt_overrides (uuid, expires_at, signed_until) VALUES (?1, ?2, ?3) \
             ON CONFLICT (uuid) DO UPDATE SET expires_at = excluded.expires_at",
        )?
        .execute((token.uuid(), &expires_at, token.some_text("expires_at")))?;
    tx.add_override(Override {
        uuid: token.uuid().to_owned(),
        expires_at,
    });
    Ok(())
}

/// 50 letters and digits, the length and alphabet clients expect of a secret.
pub fn new_secret() -> String {
    const DIGITS: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let mut secret = String::with_capacity(50);
    let mut random = [0u8; 64];
    while secret.len() < 50 {
        crate::random::fill(&mut random);
        // 252 is the largest multiple of 36 in a byte: taking more would favour some letters.
        secret.extend(
            random
                .iter()
                .filter(|byte| **byte < 252)
                .map(|byte| char::from(DIGITS[usize::from(*byte) % 36]))
                .take(50 - secret.len()),
        );
    }
    secret
}
