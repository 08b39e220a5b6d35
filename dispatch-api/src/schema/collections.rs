//! Collections, links, log entries and Keep services.

use super::attribute::Attr;
use super::resource::{COMMON, Resource};

pub static COLLECTIONS: Resource = Resource {
    table: "collections",
    singular: "collection",
    class: "Collection",
    kind: "arvados#collection",
    infix: "4zz18",
    common: &COMMON,
    attrs: &[
        Attr::text("name"),
        Attr::text("description").null(),
        Attr::object("properties").queryable(),
        Attr::text("portable_data_hash"),
        Attr::text("manifest_text").bulky(),
        Attr::text("unsigned_manifest_text").bulky().unsearchable(),
        Attr::int("file_count"),
        Attr::int("file_size_total"),
        Attr::int("replication_desired").null(),
        Attr::int("replication_confirmed").null(),
        Attr::time("replication_confirmed_at").null(),
        Attr::array("storage_classes_desired").queryable(),
        Attr::array("storage_classes_confirmed").queryable(),
        Attr::time("storage_classes_confirmed_at").null(),
        Attr::int("version"),
        Attr::text("current_version_uuid"),
        Attr::bool("preserve_version"),
        Attr::bool("is_trashed"),
        Attr::time("trash_at").null(),
        Attr::time("delete_at").null(),
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
        Attr::text("link_class"),
        Attr::text("name"),
        Attr::text("head_uuid"),
        Attr::text("tail_uuid"),
        Attr::object("properties").queryable(),
        Attr::text("created_by").null().hidden(),
        Attr::text("head_pdh").null().hidden(),
    ],
    computed: &[
        Attr::text("head_kind").null(),
        Attr::text("tail_kind").null(),
    ],
};

pub static LOGS: Resource = Resource {
    table: "logs",
    singular: "log",
    class: "Log",
    kind: "arvados#log",
    infix: "57u5n",
    common: &COMMON,
    attrs: &[
        Attr::int("id"),
        Attr::text("object_uuid").null(),
        Attr::text("object_owner_uuid").null(),
        Attr::text("object_kind").null(),
        Attr::time("event_at"),
        Attr::text("event_type"),
        Attr::text("summary").null(),
        Attr::object("properties").queryable(),
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
        Attr::text("uuid"),
        Attr::text("owner_uuid"),
        Attr::text("service_host"),
        Attr::int("service_port"),
        Attr::bool("service_ssl_flag"),
        Attr::text("service_type"),
        Attr::bool("read_only"),
    ],
    computed: &[],
};
