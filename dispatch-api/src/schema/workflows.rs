//! Registered workflows.

use super::attribute::Attr;
use super::resource::{COMMON, Resource};

pub static WORKFLOWS: Resource = Resource {
    table: "workflows",
    singular: "workflow",
    class: "Workflow",
    kind: "arvados#workflow",
    infix: "7fd4e",
    common: &COMMON,
    attrs: &[
        Attr::text("name"),
        Attr::text("description").null(),
        // CWL as YAML or JSON.
        Attr::text("definition").null(),
    ],
    computed: &[],
};
