//! Record of a user: the attributes that this suite reads.

use serde::{Deserialize, Serialize};

use super::attributes::lenient;
use crate::ids::UserUuid;

/// A user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// Uuid.
    pub uuid: UserUuid,
    /// Login name.
    #[serde(default, deserialize_with = "lenient")]
    pub username: String,
    /// Email address.
    #[serde(default, deserialize_with = "lenient")]
    pub email: String,
    /// Full name.
    #[serde(default, deserialize_with = "lenient")]
    pub full_name: String,
    /// Whether the user is an administrator, as dispatchers must be.
    #[serde(default, deserialize_with = "lenient")]
    pub is_admin: bool,
    /// Whether the account is active.
    #[serde(default, deserialize_with = "lenient")]
    pub is_active: bool,
}
