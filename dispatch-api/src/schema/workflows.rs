//! Registered workflows.

use super::attribute::AttrType::Text;
use super::resource::{COMMON, Resource};

pub static WORKFLOWS: Resource = Resource {
    table: "workflows",
    singular: "workflow",
    class: "Workflow",
    kind: "arvados#workflow",
    infix: "7fd4e",
    common: &COMMON,
    attrs: &[
        Text.attr("name"),
        Text.attr("description").null(),
        // CWL as YAML or JSON.
        Text.attr("definition").null(),
    ],
    computed: &[],
};
