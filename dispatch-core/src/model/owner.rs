//! Whose container it is: its user, and the project of the request that it runs for.
//!
//! Input: a container, its request, and the names of its user and project. Output: an [`Owner`],
//! for logs and for the status page, and its [`Charge`], by which limits and shares are told apart.

use std::hash::{Hash, Hasher};
use std::num::NonZeroU16;
use std::sync::Arc;

use arvados_client::{GroupUuid, UserUuid};
use serde::Serialize;

/// Maximum length of a user name in scheduler arguments and job comments.
const MAX_USERNAME_LENGTH: usize = 64;
/// Maximum number of characters of a name on the status page.
const MAX_NAME_LENGTH: usize = 100;

/// The user and the project of a container. If several requests share the container, the project of
/// the one with the highest priority counts.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Owner {
    /// The user as whom the container acts: `runtime_user_uuid` of its record.
    pub user: Option<UserUuid>,
    /// Name of the user, which only administrators can change.
    pub username: Option<String>,
    /// The project of the request. None: it is in the home project of a user.
    pub project: Option<GroupUuid>,
    /// Name of the project, which its writers can change. Text for people only.
    pub project_name: Option<String>,
}

/// The owner of a container, if it is known.
pub type KnownOwner = Option<Arc<Owner>>;

impl Owner {
    /// The user name, if it can be part of a scheduler's argument: letters, digits, `.`, `_` and
    /// `-`, and no `-` at the start.
    pub fn plain_username(&self) -> Option<&str> {
        let name = self.username.as_deref()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let fits = !name.is_empty() && name.len() <= MAX_USERNAME_LENGTH;
        (fits && !name.starts_with('-') && name.chars().all(is_plain)).then_some(name)
    }

    /// The user for people: the name, or the uuid.
    pub fn user_label(&self) -> Option<&str> {
        let uuid = self.user.as_ref().map(UserUuid::as_str);
        self.plain_username().or(uuid)
    }
}

/// The share of an owner in what all owners use, relative to those of the others.
pub type Weight = NonZeroU16;

/// How the scheduler charges the jobs of an owner. Two charges are equal if they name the same
/// account: a limit of it then holds for the jobs of both owners.
#[derive(Debug, Clone)]
pub struct Charge {
    /// User and project, for the arguments of the job.
    pub owner: KnownOwner,
    /// What decides whom a job is charged to: the arguments that depend on the owner.
    pub account: String,
    /// Share in the places of pending jobs.
    pub weight: Weight,
}

/// The charge of a container; none if the scheduler charges all jobs alike.
pub type KnownCharge = Option<Arc<Charge>>;

impl Charge {
    /// A charge with weight 1.
    pub fn new(owner: KnownOwner, account: String) -> Self {
        Self {
            owner,
            account,
            weight: Weight::MIN,
        }
    }
}

impl PartialEq for Charge {
    fn eq(&self, other: &Self) -> bool {
        self.account == other.account
    }
}

impl Eq for Charge {}

impl PartialOrd for Charge {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Charge {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.account.cmp(&other.account)
    }
}

impl Hash for Charge {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.account.hash(state);
    }
}

/// A name as one line of limited length.
pub fn shown_name(name: &str) -> String {
    let shown = name.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.take(MAX_NAME_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_name_is_an_argument_only_if_it_is_plain() {
        for (name, is_plain) in [
            ("ada", true),
            ("ada.lovelace", true),
            ("ada@example.org", false),
            ("a_b-c9", true),
            ("", false),
            ("-account", false),
            ("ada lovelace", false),
            ("ada\nroot", false),
            ("ada,root", false),
            ("ada|root", false),
            ("$(id)", false),
            ("ädä", false),
        ] {
            let owner = Owner {
                username: Some(name.into()),
                ..Owner::default()
            };
            assert_eq!(owner.plain_username().is_some(), is_plain, "{name:?}");
        }
        let long = Owner {
            username: Some("a".repeat(65)),
            user: Some(UserUuid::generate("zzzzz")),
            ..Owner::default()
        };
        assert_eq!(long.plain_username(), None);
        assert_eq!(long.user_label(), long.user.as_ref().map(UserUuid::as_str));
    }

    #[test]
    fn a_name_is_one_line() {
        assert_eq!(shown_name("RNA\n\u{1b}[31m"), "RNA  [31m");
        assert_eq!(shown_name(&"x".repeat(500)).len(), 100);
    }
}
