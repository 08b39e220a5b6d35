//! Calls for users, most of them for administrators.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::client::{Call, Client};
use crate::error::Error;
use crate::filter::Query;
use crate::ids::UserUuid;
use crate::records::User;

/// What a name belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameKind {
    /// A user, whose name is `username`.
    User,
    /// A project, that is, a group.
    Project,
}

impl Client {
    /// Fetches the current user.
    pub async fn current_user(&self) -> Result<User, Error> {
        self.get("users/current").await
    }

    /// The names of those of `uuids` that the caller may see and that have one: of users the
    /// `username`, of projects the `name`. At most one page is read.
    pub async fn names(
        &self,
        kind: NameKind,
        uuids: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        if uuids.is_empty() {
            return Ok(BTreeMap::new());
        }
        let (resource, attribute) = match kind {
            NameKind::User => ("users", "username"),
            NameKind::Project => ("groups", "name"),
        };
        let query = Query::new()
            .filter("uuid", "in", uuids)
            .select(&["uuid", attribute])
            .limit(uuids.len() as u64);
        let page = self.page::<Value>(resource, &query).await?;
        let name = |row: &Value| {
            let text = |key: &str| row[key].as_str().map(str::to_owned);
            Some((text("uuid")?, text(attribute)?))
        };
        Ok(page.items.iter().filter_map(name).collect())
    }

    /// Lists the users that the caller may see: all of them for an administrator.
    pub async fn users(&self) -> Result<Vec<User>, Error> {
        self.all("users", Query::new(), |user: &User| user.uuid.as_str())
            .await
    }

    /// The user with this login name.
    pub async fn find_user(&self, username: &str) -> Result<Option<User>, Error> {
        let query = Query::new().filter("username", "=", username);
        let page = self.page::<User>("users", &query).await?;
        Ok(page.items.into_iter().next())
    }

    /// Creates an active user without administrator rights.
    pub async fn create_user(&self, username: &str, email: &str) -> Result<User, Error> {
        let user = json!({
            "username": username, "email": email, "first_name": username, "is_active": true,
        });
        self.send(Call::post("users", json!({"user": user}))).await
    }

    /// Disables a user, whose tokens work no more, or enables the user, and these tokens, again.
    pub async fn set_active(&self, uuid: &UserUuid, is_active: bool) -> Result<User, Error> {
        let body = json!({"user": {"is_active": is_active}});
        self.send(Call::put(format!("users/{uuid}"), body)).await
    }
}
