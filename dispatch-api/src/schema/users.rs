//! Users, tokens and groups.

use super::attribute::AttrType::{Array, Bool, Object, Text, Time};
use super::resource::{COMMON, Resource};

pub static USERS: Resource = Resource {
    table: "users",
    singular: "user",
    class: "User",
    kind: "arvados#user",
    infix: "tpzed",
    common: &COMMON,
    attrs: &[
        Text.attr("email"),
        Text.attr("username"),
        Text.attr("first_name"),
        Text.attr("last_name"),
        Text.attr("identity_url").unsearchable(),
        Bool.attr("is_active"),
        Bool.attr("is_admin"),
        Object.attr("prefs").unsearchable(),
    ],
    computed: &[
        Text.attr("full_name"),
        Bool.attr("is_invited"),
        Bool.attr("can_write"),
        Bool.attr("can_manage"),
        Array.attr("writable_by"),
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
        Text.attr("api_token").unsearchable(),
        Array.attr("scopes"),
        Time.attr("expires_at").null(),
        Time.attr("last_used_at").null(),
        Text.attr("last_used_by_ip_address").null(),
        Text.attr("created_by_ip_address").null(),
        // The container of an attempt token; null for every other token.
        Text.attr("attempt_of").null().hidden(),
        // The container that the server created this token for.
        Text.attr("container_of").null().hidden(),
        Text.attr("created_by").null().hidden(),
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
        Text.attr("name"),
        Text.attr("description").null(),
        Text.attr("group_class"),
        Object.attr("properties").queryable(),
        Bool.attr("is_trashed"),
        Time.attr("trash_at").null(),
        Time.attr("delete_at").null(),
        Text.attr("created_by").null().hidden(),
    ],
    computed: &[
        Bool.attr("can_write"),
        Bool.attr("can_manage"),
        Text.attr("frozen_by_uuid").null(),
    ],
};
