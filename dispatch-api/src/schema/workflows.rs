//! Registered workflows.

use super::attribute::Attr;
use super::resource::Resource;

pub static WORKFLOWS: Resource = Resource {
    table: "workflows",
    singular: "workflow",
    class: "Workflow",
    kind: "arvados#workflow",
    infix: "7fd4e",
    attrs: &[
        Attr::text("uuid"),
        Attr::text("owner_uuid"),
        Attr::time("created_at"),
        Attr::time("modified_at"),
        Attr::text("modified_by_user_uuid").null(),
        Attr::text("name"),
        Attr::text("description").null(),
        // CWL as YAML or JSON.
        Attr::text("definition").null(),
        Attr::int("row_version").hidden(),
    ],
    computed: &[],
};
