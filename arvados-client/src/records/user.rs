//! The user record.

use serde::{Deserialize, Serialize};

use super::{Extra, lenient};
use crate::ids::UserUuid;

/// A user.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct User {
    /// Its name everywhere.
    pub uuid: UserUuid,
    /// Login name.
    #[serde(default, deserialize_with = "lenient")]
    pub username: String,
    /// Full name.
    #[serde(default, deserialize_with = "lenient")]
    pub full_name: String,
    /// May see and change everything; dispatchers need it.
    #[serde(default, deserialize_with = "lenient")]
    pub is_admin: bool,
    /// May do anything at all.
    #[serde(default, deserialize_with = "lenient")]
    pub is_active: bool,
    /// Attributes this library does not know.
    #[serde(flatten)]
    pub extra: Extra,
}
