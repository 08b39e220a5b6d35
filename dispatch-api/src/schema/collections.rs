//! Collections, links, log entries and Keep services.

use super::attribute::AttrType::{Array, Bool, Int, Object, Text, Time};
use super::resource::{COMMON, Resource};

pub static COLLECTIONS: Resource = Resource {
    table: "collections",
    singular: "collection",
    class: "Collection",
    kind: "arvados#collection",
    infix: "4zz18",
    common: &COMMON,
    attrs: &[
        Text.attr("name"),
        Text.attr("description").null(),
        Object.attr("properties").queryable(),
        Text.attr("portable_data_hash"),
        Text.attr("manifest_text").bulky(),
        Text.attr("unsigned_manifest_text").bulky().unsearchable(),
        Int.attr("file_count"),
        Int.attr("file_size_total"),
        Int.attr("replication_desired").null(),
        Int.attr("replication_confirmed").null(),
        Time.attr("replication_confirmed_at").null(),
        Array.attr("storage_classes_desired").queryable(),
        Array.attr("storage_classes_confirmed").queryable(),
        Time.attr("storage_classes_confirmed_at").null(),
        Int.attr("version"),
        Text.attr("current_version_uuid"),
        Bool.attr("preserve_version"),
        Bool.attr("is_trashed"),
        Time.attr("trash_at").null(),
        Time.attr("delete_at").null(),
    ],
    computed: &[],
};

pub static LINKS: Resource = Resource {
    table: "links",
    singular: "link",
    class: "Link",
    kind: "arvados#link",
    infix: "o0j2j",
    common: &COMMON,
    attrs: &[
        Text.attr("link_class"),
        Text.attr("name"),
        Text.attr("head_uuid"),
        Text.attr("tail_uuid"),
        Object.attr("properties").queryable(),
        Text.attr("created_by").null().hidden(),
        Text.attr("head_pdh").null().hidden(),
    ],
    computed: &[Text.attr("head_kind").null(), Text.attr("tail_kind").null()],
};

pub static LOGS: Resource = Resource {
    table: "logs",
    singular: "log",
    class: "Log",
    kind: "arvados#log",
    infix: "57u5n",
    common: &COMMON,
    attrs: &[
        Int.attr("id"),
        Text.attr("object_uuid").null(),
        Text.attr("object_owner_uuid").null(),
        Text.attr("object_kind").null(),
        Time.attr("event_at"),
        Text.attr("event_type"),
        Text.attr("summary").null(),
        Object.attr("properties").queryable(),
    ],
    computed: &[],
};

/// Not a table: this server is the only service.
pub static KEEP_SERVICES: Resource = Resource {
    table: "keep_services",
    singular: "keep_service",
    class: "KeepService",
    kind: "arvados#keepService",
    infix: "bi6l4",
    common: &[],
    attrs: &[
        Text.attr("uuid"),
        Text.attr("owner_uuid"),
        Text.attr("service_host"),
        Int.attr("service_port"),
        Bool.attr("service_ssl_flag"),
        Text.attr("service_type"),
        Bool.attr("read_only"),
    ],
    computed: &[],
};
