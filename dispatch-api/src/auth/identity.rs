//! The caller of a request: token, user, scopes and attempt.

use std::sync::Arc;

use super::{routes, scope};
use crate::schema;

/// An authenticated caller, shared with the writer thread.
pub type Caller = Arc<Identity>;

#[derive(Clone, Default)]
pub struct Identity {
    pub token_uuid: String,
    /// The token exactly as the client sent it; block signatures depend on its spelling.
    pub presented_token: String,
    pub user_uuid: String,
    pub is_admin: bool,
    pub scopes: Vec<String>,
    /// The container that this token was created for when it was locked.
    pub container_uuid: Option<String>,
    /// Whether the token is a container's, which has no administrator rights and no access to
    /// tokens.
    pub is_container_token: bool,
    pub expires_at: Option<String>,
    /// The container of an attempt token; `None` for every other token.
    pub attempt_of: Option<String>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Identity({} for {})", self.token_uuid, self.user_uuid)
    }
}

impl Identity {
    /// The system user, for changes that the server makes by itself.
    pub fn system(user_uuid: String) -> Caller {
        Arc::new(Identity {
            user_uuid,
            is_admin: true,
            scopes: vec!["all".into()],
            ..Identity::default()
        })
    }

    /// Whether the scopes permit this request, and the kind of token does.
    pub fn may_request(&self, method: &str, path: &str) -> bool {
        let in_attempt = |container: &String| routes::attempt_may(container, method, path);
        scope::permits(&self.scopes, method, path)
            && self.attempt_of.iter().all(in_attempt)
            && (!self.is_container_token || routes::container_may(method, path))
    }

    /// Whether no scope limits this token.
    pub fn has_all_scopes(&self) -> bool {
        self.scopes.iter().any(|scope| scope == "all")
    }

    /// Whether this token permits reading the object of an event.
    pub fn may_receive_events_of(&self, object_uuid: &str) -> bool {
        (self.attempt_of.is_none() && self.has_all_scopes())
            || schema::by_uuid(object_uuid).is_some_and(|resource| {
                let path = format!("/arvados/v1/{}/{object_uuid}", resource.table);
                self.may_request("GET", &path)
            })
    }

    /// The caller for records that are not of its container: an attempt token has no administrator
    /// rights there.
    pub fn without_attempt_privileges(self: &Arc<Self>) -> Caller {
        match self.attempt_of {
            Some(_) => self.as_plain_user(&self.user_uuid),
            None => self.clone(),
        }
    }

    /// The same token with the rights of an ordinary user.
    pub fn as_plain_user(&self, user_uuid: &str) -> Caller {
        Arc::new(Identity {
            user_uuid: user_uuid.to_owned(),
            is_admin: false,
            ..self.clone()
        })
    }
}
