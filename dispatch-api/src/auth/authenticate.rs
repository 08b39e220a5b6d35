//! Authenticates a token, by its signature or by the table of tokens.

use std::sync::Arc;

use rusqlite::Connection;

use super::attempt_token::{self, AttemptTokenVerifier};
use super::identity::{Caller, Identity};
use crate::clock;
use crate::db::rows;
use crate::emulation::Emulate;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema;

/// The parts of a token's text.
struct TokenParts<'a> {
    uuid: Option<&'a str>,
    secret: &'a str,
    container: Option<&'a str>,
}

fn parse_token(text: &str) -> TokenParts<'_> {
    let mut parts = text.splitn(4, '/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("v2"), uuid @ Some(_), Some(secret)) => TokenParts {
            uuid,
            secret,
            container: parts.next(),
        },
        _ => TokenParts {
            uuid: None,
            secret: text,
            container: None,
        },
    }
}

/// The caller that a token belongs to, or status 401; 403 for a token of a disabled user.
pub fn authenticate(
    connection: &Connection,
    attempt_tokens: &AttemptTokenVerifier,
    emulate: Emulate,
    text: &str,
) -> Result<Caller> {
    let parts = parse_token(text);
    if let Some(claims) = attempt_tokens.verify(parts.secret) {
        if parts.uuid.is_some_and(|uuid| uuid != claims.jti) {
            return Err(ApiError::NotLoggedIn);
        }
        return Ok(Arc::new(Identity {
            token_uuid: claims.jti,
            presented_token: text.to_owned(),
            user_uuid: claims.sub,
            is_admin: claims.admin,
            scopes: claims.scopes,
            expires_at: claims.exp.and_then(attempt_token::from_epoch),
            attempt_of: Some(claims.container),
            ..Identity::default()
        }));
    }
    authenticate_stored(connection, emulate, text, &parts)
}

fn authenticate_stored(
    connection: &Connection,
    emulate: Emulate,
    text: &str,
    parts: &TokenParts<'_>,
) -> Result<Caller> {
    let stored = "api_token = ?1 AND attempt_of IS NULL";
    let token = rows::find(connection, &schema::TOKENS, stored, &[&parts.secret])?
        .pop()
        .filter(|token| parts.uuid.is_none_or(|uuid| uuid == token.uuid()))
        .ok_or(ApiError::NotLoggedIn)?;
    let now = clock::now();
    let end = token.some_text("expires_at");
    if end.is_some_and(|at| at <= now.as_str()) {
        return Err(ApiError::NotLoggedIn);
    }
    let user = rows::fetch(connection, &schema::USERS, token.text("owner_uuid"))?
        .ok_or(ApiError::NotLoggedIn)?;
    let own_container = match token.some_text("container_of") {
        Some(uuid) => Some((uuid, has_token(connection, uuid, token.uuid())?)),
        None => None,
    };
    if !user.bool("is_active") {
        let is_kept = match own_container {
            Some((uuid, true)) if !emulate.is_arvados() => is_without_api(connection, uuid)?,
            _ => false,
        };
        if !is_kept {
            return Err(ApiError::UserDisabled(user.text("username").to_owned()));
        }
    }
    let container_uuid = match own_container {
        Some((uuid, true)) => Some(uuid.to_owned()),
        Some((_, false)) => return Err(ApiError::NotLoggedIn),
        None => container_of_supplied_token(connection, &token, parts.container)?,
    };
    let container_shaped =
        |text: &&str| text.split('-').nth(1) == Some(schema::CONTAINERS.infix) && text.len() == 27;
    if let Some(named) = parts.container.filter(container_shaped)
        && container_uuid.as_deref() != Some(named)
    {
        return Err(ApiError::NotLoggedIn);
    }
    let scopes = token.get("scopes").as_array().into_iter().flatten();
    let scopes = scopes.filter_map(|scope| scope.as_str().map(str::to_owned));
    let is_container_token = !emulate.is_arvados() && container_uuid.is_some();
    Ok(Arc::new(Identity {
        token_uuid: token.uuid().to_owned(),
        presented_token: text.to_owned(),
        user_uuid: user.uuid().to_owned(),
        is_admin: user.bool("is_admin") && !is_container_token,
        scopes: scopes.collect(),
        container_uuid,
        is_container_token,
        expires_at: token.some_text("expires_at").map(str::to_owned),
        attempt_of: None,
    }))
}

/// Whether this is the current token of the container, which has none after it ended.
fn has_token(connection: &Connection, container: &str, token_uuid: &str) -> Result<bool> {
    let mut statement =
        connection.prepare_cached("SELECT 1 FROM containers WHERE uuid = ?1 AND auth_uuid = ?2")?;
    Ok(statement.exists([container, token_uuid])?)
}

/// Whether the container itself has no token: only crunch-run does.
fn is_without_api(connection: &Connection, container: &str) -> Result<bool> {
    let mut statement = connection.prepare_cached(
        "SELECT 1 FROM containers WHERE uuid = ?1 AND NOT coalesce(json_extract(runtime_constraints, '$.API'), 0)",
    )?;
    Ok(statement.exists([container])?)
}

/// The container of a token that a user supplied for it. The token counts only when sent with the
/// container's uuid.
fn container_of_supplied_token(
    connection: &Connection,
    token: &Record,
    container: Option<&str>,
) -> Result<Option<String>> {
    let Some(uuid) = container else {
        return Ok(None);
    };
    let supplied = format!("v2/{}/{}", token.uuid(), token.text("api_token"));
    let mut statement = connection
        .prepare_cached("SELECT 1 FROM containers WHERE uuid = ?1 AND runtime_token = ?2")?;
    Ok(statement
        .exists([uuid, supplied.as_str()])?
        .then(|| uuid.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_token_is_taken_apart() {
        let bare = parse_token("secret");
        assert_eq!(
            (bare.uuid, bare.secret, bare.container),
            (None, "secret", None)
        );
        let full = parse_token("v2/local-gj3su-000000000000000/secret");
        assert_eq!(full.uuid, Some("local-gj3su-000000000000000"));
        assert_eq!(full.secret, "secret");
        let suffixed = parse_token("v2/u/secret/local-dz642-000000000000000");
        assert_eq!(suffixed.container, Some("local-dz642-000000000000000"));
    }
}
