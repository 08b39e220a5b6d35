//! Users, tokens and groups.

use super::attribute::Attr;
use super::resource::{COMMON, Resource};

pub static USERS: Resource = Resource {
    table: "users",
    singular: "user",
    class: "User",
    kind: "arvados#user",
    infix: "tpzed",
    common: &COMMON,
    attrs: &[
        Attr::text("email"),
        Attr::text("username"),
        Attr::text("first_name"),
        Attr::text("last_name"),
        Attr::text("identity_url").unsearchable(),
        Attr::bool("is_active"),
        Attr::bool("is_admin"),
        Attr::object("prefs").unsearchable(),
    ],
    computed: &[
        Attr::text("full_name"),
        Attr::bool("is_invited"),
        Attr::bool("can_write"),
        Attr::bool("can_manage"),
        Attr::array("writable_by"),
    ],
};

pub static TOKENS: Resource = Resource {
    table: "api_client_authorizations",
    singular: "api_client_authorization",
    class: "ApiClientAuthorization",
    kind: "arvados#apiClientAuthorization",
    infix: "gj3su",
    common: &COMMON,
    attrs: &[
        Attr::text("api_token").unsearchable(),
        Attr::array("scopes"),
        Attr::time("expires_at").null(),
        Attr::time("last_used_at").null(),
        Attr::text("last_used_by_ip_address").null(),
        Attr::text("created_by_ip_address").null(),
        // The container of an attempt token; null for every other token.
        Attr::text("attempt_of").null().hidden(),
        // The container that the server created this token for.
        Attr::text("container_of").null().hidden(),
        Attr::text("created_by").null().hidden(),
    ],
    computed: &[],
};

pub static GROUPS: Resource = Resource {
    table: "groups",
    singular: "group",
    class: "Group",
    kind: "arvados#group",
    infix: "j7d0g",
    common: &COMMON,
    attrs: &[
        Attr::text("name"),
        Attr::text("description").null(),
        Attr::text("group_class"),
        Attr::object("properties").queryable(),
        Attr::bool("is_trashed"),
        Attr::time("trash_at").null(),
        Attr::time("delete_at").null(),
        Attr::text("created_by").null().hidden(),
    ],
    computed: &[
        Attr::bool("can_write"),
        Attr::bool("can_manage"),
        Attr::text("frozen_by_uuid").null(),
    ],
};
