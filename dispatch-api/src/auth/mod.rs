//! Who is calling: tokens to callers.

pub mod attempt;
mod attempt_routes;
pub mod lifetime;
pub mod permission;
pub mod scope;

use std::sync::Arc;

use rusqlite::Connection;

use self::attempt::AttemptTokens;
use crate::clock;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema;

/// A token that proved valid, and whom it acts for. Shared cheaply with the writer.
pub type Caller = Arc<Identity>;

pub struct Identity {
    pub token_uuid: String,
    /// The token exactly as it was presented, because block signatures are made for that spelling.
    pub presented: String,
    pub user_uuid: String,
    pub is_admin: bool,
    pub scopes: Vec<String>,
    /// The container this token was made for at its lock.
    pub container_uuid: Option<String>,
    pub expires_at: Option<String>,
    /// The container that an attempt token was signed for; `None` for every other token.
    pub attempt_of: Option<String>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({} for {})", self.token_uuid, self.user_uuid)
    }
}

impl Identity {
    /// The server acting on its own behalf.
    pub fn system(user_uuid: String) -> Caller {
        Arc::new(Identity {
            token_uuid: String::new(),
            presented: String::new(),
            user_uuid,
            is_admin: true,
            scopes: vec!["all".into()],
            container_uuid: None,
            expires_at: None,
            attempt_of: None,
        })
    }

    /// Whether scopes, and the container of an attempt, allow this request.
    pub fn may(&self, method: &str, path: &str) -> bool {
        let in_attempt = |container: &String| attempt_routes::permits(container, method, path);
        scope::permits(&self.scopes, method, path) && self.attempt_of.iter().all(in_attempt)
    }

    /// Whether this token may look at the object of an event.
    pub fn may_hear_of(&self, object_uuid: &str) -> bool {
        let unlimited = self.attempt_of.is_none() && self.scopes.iter().any(|scope| scope == "all");
        unlimited
            || schema::by_uuid(object_uuid).is_some_and(|resource| {
                let path = format!("/arvados/v1/{}/{object_uuid}", resource.table);
                self.may("GET", &path)
            })
    }

    /// This caller as far as records go that are not his container's: an attempt of an administrator is none.
    pub fn beyond_container(self: &Arc<Self>) -> Caller {
        match self.attempt_of {
            Some(_) => self.as_plain(&self.user_uuid),
            None => self.clone(),
        }
    }

    /// The same token in the hands of a user without special rights.
    pub fn as_plain(&self, user_uuid: &str) -> Caller {
        Arc::new(Identity {
            token_uuid: self.token_uuid.clone(),
            presented: self.presented.clone(),
            user_uuid: user_uuid.to_owned(),
            is_admin: false,
            scopes: self.scopes.clone(),
            container_uuid: self.container_uuid.clone(),
            expires_at: self.expires_at.clone(),
            attempt_of: self.attempt_of.clone(),
        })
    }
}

/// A token's text taken apart.
struct Presented<'a> {
    uuid: Option<&'a str>,
    secret: &'a str,
    container: Option<&'a str>,
}

fn take_apart(text: &str) -> Presented<'_> {
    let parts: Vec<&str> = text.splitn(4, '/').collect();
    match parts.as_slice() {
        ["v2", uuid, secret, rest @ ..] => Presented {
            uuid: Some(uuid),
            secret,
            container: rest.first().copied(),
        },
        _ => Presented {
            uuid: None,
            secret: text,
            container: None,
        },
    }
}

/// Whether a token reads as one that is signed, genuine or not.
pub fn is_signed(text: &str) -> bool {
    attempt::is_signed(take_apart(text).secret)
}

/// The caller behind a token, or 401.
pub fn authenticate(
    connection: &Connection,
    attempts: &AttemptTokens,
    text: &str,
) -> Result<Caller> {
    let presented = take_apart(text);
    if let Some(claims) = attempts.verify(presented.secret) {
        if presented.uuid.is_some_and(|uuid| uuid != claims.jti) {
            return Err(ApiError::NotLoggedIn);
        }
        return Ok(Arc::new(Identity {
            token_uuid: claims.jti,
            presented: text.to_owned(),
            user_uuid: claims.sub,
            is_admin: claims.admin,
            scopes: claims.scopes,
            container_uuid: None,
            expires_at: claims.exp.and_then(attempt::from_epoch),
            attempt_of: Some(claims.container),
        }));
    }
    from_table(connection, text, &presented)
}

fn from_table(connection: &Connection, text: &str, presented: &Presented<'_>) -> Result<Caller> {
    let token = rows::find(
        connection,
        &schema::TOKENS,
        "api_token = ?1 AND attempt_of IS NULL",
        &[&presented.secret],
    )?
    .pop()
    .filter(|token| presented.uuid.is_none_or(|uuid| uuid == token.uuid()))
    .ok_or(ApiError::NotLoggedIn)?;
    let now = clock::now();
    if token
        .some_text("expires_at")
        .is_some_and(|at| at <= now.as_str())
    {
        return Err(ApiError::NotLoggedIn);
    }
    let user = rows::fetch(connection, &schema::USERS, token.text("owner_uuid"))?
        .filter(|user| user.bool("is_active"))
        .ok_or(ApiError::NotLoggedIn)?;
    let container_uuid = match container_of(connection, token.uuid())? {
        Some(uuid) => Some(uuid),
        None => supplied_to(connection, &token, presented.container)?,
    };
    let container_shaped =
        |text: &&str| text.split('-').nth(1) == Some(schema::CONTAINERS.infix) && text.len() == 27;
    if let Some(named) = presented.container.filter(container_shaped)
        && container_uuid.as_deref() != Some(named)
    {
        return Err(ApiError::NotLoggedIn);
    }
    let scopes = token
        .get("scopes")
        .as_array()
        .map(|scopes| {
            scopes
                .iter()
                .filter_map(|scope| scope.as_str().map(str::to_owned))
                .collect()
        })
        .unwrap_or_default();
    Ok(Arc::new(Identity {
        token_uuid: token.uuid().to_owned(),
        presented: text.to_owned(),
        user_uuid: user.uuid().to_owned(),
        is_admin: user.bool("is_admin"),
        scopes,
        container_uuid,
        expires_at: token.some_text("expires_at").map(str::to_owned),
        attempt_of: None,
    }))
}

fn container_of(connection: &Connection, token_uuid: &str) -> Result<Option<String>> {
    let mut statement =
        connection.prepare_cached("SELECT uuid FROM containers WHERE auth_uuid = ?1")?;
    let mut found = statement.query([token_uuid])?;
    Ok(match found.next()? {
        Some(row) => Some(row.get(0)?),
        None => None,
    })
}

/// A token that a user supplied for his container belongs to it only when presented with its uuid.
fn supplied_to(
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
        let bare = take_apart("secret");
        assert_eq!(
            (bare.uuid, bare.secret, bare.container),
            (None, "secret", None)
        );
        let full = take_apart("v2/local-gj3su-000000000000000/secret");
        assert_eq!(full.uuid, Some("local-gj3su-000000000000000"));
        assert_eq!(full.secret, "secret");
        let suffixed = take_apart("v2/u/secret/local-dz642-000000000000000");
        assert_eq!(suffixed.container, Some("local-dz642-000000000000000"));
    }
}
