//! The emulated server: this one, or a real Arvados as clients see it.
//!
//! The differences are data ([`Rules`]) and a few pure functions; other code is the same for both.

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

impl Emulate {
    pub fn rules(self) -> &'static Rules {
        match self {
            Emulate::None => &DISPATCH_API,
            Emulate::Arvados3 => &ARVADOS_3,
        }
    }
}

/// Differences between the emulated servers.
#[derive(Debug)]
pub struct Rules {
    /// Whether `If-Match` guards a change. Otherwise it is ignored, and responses have a weak etag
    /// of their body.
    pub if_match: bool,
    /// Whether bulk requests and signed attempt tokens exist and the discovery document announces
    /// them, and jobs have numbers.
    pub extensions: bool,
    /// Whether names of collections and projects may contain a slash.
    pub slash_in_names: bool,
    /// Whether a request with an unknown storage class is rejected. Otherwise the block store
    /// rejects the block.
    pub storage_classes_checked: bool,
    /// Whether blocks are stored and read only with a valid token whose scopes permit it, and
    /// their signatures cover the size.
    pub blocks_guarded: bool,
    /// Whether secrets of tokens are shown only once, tokens of containers have fewer rights than
    /// their user, and a token cannot create one that may do more than itself.
    pub tokens_guarded: bool,
    /// Whether administrators may read and change the tokens of others by uuid, and lists of tokens
    /// have filters. Otherwise only the system user may, and only some filters count
    /// ([`Rules::token_filters`]).
    pub tokens_of_others: bool,
    /// Whether a log entry needs permission for its object, and a container is reused only by
    /// those who may read its inputs.
    pub references_guarded: bool,
    /// Whether a websocket needs a valid token. Otherwise it is accepted without, and receives no
    /// events.
    pub websocket_needs_token: bool,
    /// Attributes of an object that its events contain.
    pub event_attributes: &'static [&'static str],
    /// Whether a derived change, such as a container's priority, creates a log entry and an event.
    pub logs_derived_changes: bool,
    /// Whether half of the resources have the error and list format of the Arvados controller.
    pub controller: bool,
    /// Whether the discovery document comes from a cache, with the time of its making.
    pub cached_discovery: bool,
    /// Whether tests may start faults.
    pub faults: bool,
    /// Whether a request whose container cannot succeed gets no other one.
    pub permanent_failures: bool,
    /// Whether the token of a disabled user is told so, and not refused as unknown.
    pub reports_disabled_users: bool,
    /// Whether the container of a disabled user keeps its token, by which its output is saved. A
    /// container with access to the API never does.
    pub containers_outlast_users: bool,
}

/// The rules of this server.
pub static DISPATCH_API: Rules = Rules::of(true);

/// The rules of Arvados 3.2.
pub static ARVADOS_3: Rules = Rules::of(false);

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

impl Rules {
    /// In every point, this server does the opposite of Arvados.
    const fn of(this_server: bool) -> Rules {
        Rules {
            if_match: this_server,
            extensions: this_server,
            slash_in_names: this_server,
            storage_classes_checked: this_server,
            blocks_guarded: this_server,
            tokens_guarded: this_server,
            tokens_of_others: this_server,
            references_guarded: this_server,
            websocket_needs_token: this_server,
            event_attributes: EVENT_ATTRIBUTES.split_at(!this_server as usize).1,
            logs_derived_changes: this_server,
            controller: !this_server,
            cached_discovery: !this_server,
            faults: !this_server,
            permanent_failures: this_server,
            reports_disabled_users: this_server,
            containers_outlast_users: this_server,
        }
    }

    /// Rejects a name that cannot be a directory name.
    pub fn check_name(&self, name: &str) -> Result<()> {
        if matches!(name, "." | "..") || name.contains('\0') {
            return Err(ApiError::invalid(
                "Name cannot be '.' or '..', or have a zero byte",
            ));
        }
        if self.slash_in_names || !name.contains('/') {
            return Ok(());
        }
        Err(ApiError::invalid("Name cannot contain a '/' character"))
    }

    /// Those of the filters on a list of tokens that count. Arvados ignores all but the equality of
    /// a uuid, a secret or scopes, also `uuid >`, by which a client asks for the next page.
    pub fn token_filters(&self, filters: Value) -> Value {
        let counts = |filter: &Value| {
            let attribute = filter[0].as_str().unwrap_or_default();
            filter[1] == "=" && matches!(attribute, "uuid" | "api_token" | "scopes")
        };
        match filters {
            Value::Array(list) if !self.tokens_of_others => {
                list.into_iter().filter(counts).collect()
            }
            filters => filters,
        }
    }

    /// Refuses to select the user of tokens, which is no column of Arvados.
    pub fn check_token_select(&self, select: &Value) -> Result<()> {
        let names = select.as_array().into_iter().flatten();
        match !self.tokens_of_others && names.into_iter().any(|name| name == "owner_uuid") {
            true => Err(ApiError::invalid(r#"Invalid attribute(s): ["owner_uuid"]"#)),
            false => Ok(()),
        }
    }

    /// The uuid of the only Keep service. Arvados makes it one character too long in its default
    /// configuration.
    pub fn keep_service_uuid(&self, cluster_id: &str) -> String {
        if self.extensions {
            return format!("{cluster_id}-bi6l4-000000000000000");
        }
        let digest = data_encoding::HEXLOWER.encode(&Md5::digest(cluster_id));
        format!("{cluster_id}-bi6l4-{}", &digest[..16])
    }

    /// Rejects a block if none of its wanted storage classes exists.
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
        let counted = ARVADOS_3.token_filters(filters.clone());
        assert_eq!(counted, json!([["uuid", "=", "y"]]));
        assert_eq!(DISPATCH_API.token_filters(filters.clone()), filters);
        let select = json!(["uuid", "owner_uuid"]);
        assert!(ARVADOS_3.check_token_select(&select).is_err());
        assert!(ARVADOS_3.check_token_select(&json!(["uuid"])).is_ok());
        assert!(ARVADOS_3.check_token_select(&Value::Null).is_ok());
        assert!(DISPATCH_API.check_token_select(&select).is_ok());
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
            let result = ARVADOS_3.check_block_classes(wanted);
            assert_eq!(result.is_err(), refused, "{wanted:?}");
            assert!(
                DISPATCH_API.check_block_classes(wanted).is_ok(),
                "{wanted:?}"
            );
        }
    }

    #[test]
    fn names_may_have_a_slash_here_and_not_there() {
        assert!(DISPATCH_API.check_name("a/b").is_ok());
        assert!(ARVADOS_3.check_name("a b").is_ok());
        assert!(ARVADOS_3.check_name("a/b").is_err());
    }

    #[test]
    fn the_keep_service_of_the_real_server_has_a_uuid_of_28_characters() {
        assert_eq!(ARVADOS_3.keep_service_uuid("zzzzz").len(), 28);
        assert_eq!(DISPATCH_API.keep_service_uuid("zzzzz").len(), 27);
    }
}
