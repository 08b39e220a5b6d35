//! The emulated server: this one, or a real Arvados as clients see it.
//!
//! [`Emulate::is_arvados`] is asked where the two differ. An emulated Arvados
//!
//! - ignores `If-Match`; responses have a weak etag of their body;
//! - has no bulk requests, no signed attempt tokens and no numbers of jobs;
//! - allows no slash in the names of collections and projects;
//! - takes a request with an unknown storage class, and refuses the block later;
//! - stores and reads blocks without a token; their signatures do not cover the size;
//! - shows the secrets of tokens again, gives the token of a container all rights of its user, and
//!   lets a token make one that may do more than itself;
//! - shows the tokens of others to the system user only, and ignores most filters on tokens;
//! - lets users write log entries about anything, and reuse containers whose inputs they may not
//!   read;
//! - accepts a websocket without a token, which gets no events;
//! - has no log entry and no event of a derived change, such as a container's priority;
//! - writes half of the resources as its controller does, with other errors and lists;
//! - takes the discovery document from a cache, with the time of its making;
//! - lets tests start faults;
//! - gives a request another container although none can succeed;
//! - refuses the token of a disabled user as unknown, also that of the user's container.

pub mod dialect;
pub mod faults;

use clap::ValueEnum;
use md5::{Digest, Md5};
use serde_json::Value;

use crate::blocks::STORAGE_CLASS;
use crate::error::{ApiError, Result};

/// The server to emulate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Emulate {
    /// None: all features of dispatch-api
    #[default]
    None,
    /// Arvados 3.2: rejects what it rejects, without the extensions of dispatch-api
    #[value(name = "arvados-3")]
    Arvados3,
}

/// The first is in no event of Arvados.
const EVENT_ATTRIBUTES: &[&str] = &[
    "priority",
    "is_trashed",
    "name",
    "owner_uuid",
    "portable_data_hash",
    "requesting_container_uuid",
    "state",
];

impl Emulate {
    pub fn is_arvados(self) -> bool {
        self == Emulate::Arvados3
    }

    /// Attributes of an object that its events contain.
    pub fn event_attributes(self) -> &'static [&'static str] {
        &EVENT_ATTRIBUTES[usize::from(self.is_arvados())..]
    }

    /// Rejects a name that cannot be a directory name.
    pub fn check_name(self, name: &str) -> Result<()> {
        if matches!(name, "." | "..") || name.contains('\0') {
            return Err(ApiError::invalid(
                "Name cannot be '.' or '..', or have a zero byte",
            ));
        }
        if !self.is_arvados() || !name.contains('/') {
            return Ok(());
        }
        Err(ApiError::invalid("Name cannot contain a '/' character"))
    }

    /// Those of the filters on a list of tokens that count. Arvados ignores all but the equality of
    /// a uuid, a secret or scopes, also `uuid >`, by which a client asks for the next page.
    pub fn token_filters(self, filters: Value) -> Value {
        let counts = |filter: &Value| {
            let attribute = filter[0].as_str().unwrap_or_default();
            filter[1] == "=" && matches!(attribute, "uuid" | "api_token" | "scopes")
        };
        match filters {
            Value::Array(list) if self.is_arvados() => list.into_iter().filter(counts).collect(),
            filters => filters,
        }
    }

    /// Refuses to select the user of tokens, which is no column of Arvados.
    pub fn check_token_select(self, select: &Value) -> Result<()> {
        let names = select.as_array().into_iter().flatten();
        match self.is_arvados() && names.into_iter().any(|name| name == "owner_uuid") {
            true => Err(ApiError::invalid(r#"Invalid attribute(s): ["owner_uuid"]"#)),
            false => Ok(()),
        }
    }

    /// The uuid of the only Keep service. Arvados makes it one character too long in its default
    /// configuration.
    pub fn keep_service_uuid(self, cluster_id: &str) -> String {
        if !self.is_arvados() {
            return format!("{cluster_id}-bi6l4-000000000000000");
        }
        let digest = data_encoding::HEXLOWER.encode(&Md5::digest(cluster_id));
        format!("{cluster_id}-bi6l4-{}", &digest[..16])
    }

    /// Rejects a block if none of its wanted storage classes exists.
    pub fn check_block_classes(self, wanted: &str) -> Result<()> {
        let mut classes = wanted
            .split(',')
            .map(str::trim)
            .filter(|class| !class.is_empty())
            .peekable();
        let nowhere = classes.peek().is_some() && !classes.any(|class| class == STORAGE_CLASS);
        match nowhere && self.is_arvados() {
            true => Err(ApiError::NoVolume),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_of_tokens_has_few_filters_and_no_users_there() {
        let filters = json!([
            ["uuid", ">", "x"],
            ["uuid", "=", "y"],
            ["owner_uuid", "=", "z"],
            7
        ]);
        let counted = Emulate::Arvados3.token_filters(filters.clone());
        assert_eq!(counted, json!([["uuid", "=", "y"]]));
        assert_eq!(Emulate::None.token_filters(filters.clone()), filters);
        let select = json!(["uuid", "owner_uuid"]);
        assert!(Emulate::Arvados3.check_token_select(&select).is_err());
        assert!(
            Emulate::Arvados3
                .check_token_select(&json!(["uuid"]))
                .is_ok()
        );
        assert!(Emulate::Arvados3.check_token_select(&Value::Null).is_ok());
        assert!(Emulate::None.check_token_select(&select).is_ok());
    }

    #[test]
    fn a_block_is_refused_where_no_wanted_class_is_there() {
        for (wanted, refused) in [
            ("", false),
            ("default", false),
            ("archive, default", false),
            ("archive", true),
            ("archive,tape", true),
        ] {
            let result = Emulate::Arvados3.check_block_classes(wanted);
            assert_eq!(result.is_err(), refused, "{wanted:?}");
            assert!(
                Emulate::None.check_block_classes(wanted).is_ok(),
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn names_may_have_a_slash_here_and_not_there() {
        assert!(Emulate::None.check_name("a/b").is_ok());
        assert!(Emulate::Arvados3.check_name("a b").is_ok());
        assert!(Emulate::Arvados3.check_name("a/b").is_err());
    }

    #[test]
    fn the_keep_service_of_the_real_server_has_a_uuid_of_28_characters() {
        assert_eq!(Emulate::Arvados3.keep_service_uuid("zzzzz").len(), 28);
        assert_eq!(Emulate::None.keep_service_uuid("zzzzz").len(), 27);
    }
}
