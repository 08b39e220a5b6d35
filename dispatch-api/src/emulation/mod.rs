//! Which server this one passes for: its own, or a real Arvados in all that a client can see.
//!
//! The differences are data, [`Rules`], and a few pure functions; the code that asks them is the same for both.

pub mod dialect;
pub mod faults;

use clap::ValueEnum;
use md5::{Digest, Md5};

use crate::blocks::STORAGE_CLASS;
use crate::error::{ApiError, Result};

/// The server to pass for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Emulate {
    /// No other: all that dispatch-api can do.
    #[default]
    None,
    /// The real server, Arvados 3.2: what it refuses is refused, and nothing is added to it.
    #[value(name = "arvados-3")]
    Arvados3,
}

impl Emulate {
    pub fn rules(self) -> &'static Rules {
        match self {
            Emulate::None => &OWN,
            Emulate::Arvados3 => &ARVADOS_3,
        }
    }
}

/// What differs between the servers.
#[derive(Debug)]
pub struct Rules {
    /// `If-Match` guards a change. Otherwise it is ignored, and the etag of an answer is a weak one of its body.
    pub if_match: bool,
    /// Bulk calls, attempt tokens that are signed and end with their attempt, and what the discovery document says
    /// of them.
    pub extensions: bool,
    /// Names of collections and projects may contain a slash.
    pub slash_in_names: bool,
    /// A request for a storage class that is not there is refused; otherwise the block store refuses to save.
    pub storage_classes_checked: bool,
    /// Only a live token may store blocks.
    pub block_put_needs_token: bool,
    /// Attributes of an object that its events carry.
    pub carried: &'static [&'static str],
    /// A change that follows from another record, such as a container's priority, leaves a log entry and an event.
    pub consequences_logged: bool,
    /// The user of the token file `user` is an administrator.
    pub user_is_admin: bool,
    /// Half of the resources answer through a second program, which writes errors and lists in its own way.
    pub controller: bool,
    /// Tests may ask for faults.
    pub faults: bool,
}

/// This server.
pub static OWN: Rules = Rules {
    if_match: true,
    extensions: true,
    slash_in_names: true,
    storage_classes_checked: true,
    block_put_needs_token: true,
    carried: &[
        "is_trashed",
        "name",
        "owner_uuid",
        "portable_data_hash",
        "priority",
        "requesting_container_uuid",
        "state",
    ],
    consequences_logged: true,
    user_is_admin: true,
    controller: false,
    faults: false,
};

/// The real server.
pub static ARVADOS_3: Rules = Rules {
    if_match: false,
    extensions: false,
    slash_in_names: false,
    storage_classes_checked: false,
    block_put_needs_token: false,
    carried: &[
        "is_trashed",
        "name",
        "owner_uuid",
        "portable_data_hash",
        "requesting_container_uuid",
        "state",
    ],
    consequences_logged: false,
    user_is_admin: false,
    controller: true,
    faults: true,
};

impl Rules {
    /// Refuse a name that cannot be one of a directory.
    pub fn check_name(&self, name: &str) -> Result<()> {
        if self.slash_in_names || !name.contains('/') {
            return Ok(());
        }
        Err(ApiError::invalid("Name cannot contain a '/' character"))
    }

    /// The uuid of the one Keep service. With its default settings, the real server makes it one character too long.
    pub fn keep_service_uuid(&self, cluster_id: &str) -> String {
        if self.extensions {
            return format!("{cluster_id}-bi6l4-000000000000000");
        }
        let digest = data_encoding::HEXLOWER.encode(&Md5::digest(cluster_id));
        format!("{cluster_id}-bi6l4-{}", &digest[..16])
    }

    /// Refuse a block for which only storage classes are wanted that are not there.
    pub fn check_block_classes(&self, wanted: &str) -> Result<()> {
        let mut classes = wanted
            .split(',')
            .map(str::trim)
            .filter(|class| !class.is_empty())
            .peekable();
        let nowhere = classes.peek().is_some() && !classes.any(|class| class == STORAGE_CLASS);
        match nowhere && !self.storage_classes_checked {
            true => Err(ApiError::NoVolume),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_refused_where_no_wanted_class_is_there() {
        for (wanted, refused) in [
            ("", false),
            ("default", false),
            ("archive, default", false),
            ("archive", true),
            ("archive,tape", true),
        ] {
            let answer = ARVADOS_3.check_block_classes(wanted);
            assert_eq!(answer.is_err(), refused, "{wanted:?}");
            assert!(OWN.check_block_classes(wanted).is_ok(), "{wanted:?}");
        }
    }

    #[test]
    fn names_may_have_a_slash_here_and_not_there() {
        assert!(OWN.check_name("a/b").is_ok());
        assert!(ARVADOS_3.check_name("a b").is_ok());
        assert!(ARVADOS_3.check_name("a/b").is_err());
    }

    #[test]
    fn the_keep_service_of_the_real_server_has_a_uuid_of_28_characters() {
        assert_eq!(ARVADOS_3.keep_service_uuid("zzzzz").len(), 28);
        assert_eq!(OWN.keep_service_uuid("zzzzz").len(), 27);
    }
}
