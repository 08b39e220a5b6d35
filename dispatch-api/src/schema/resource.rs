//! One kind of record: its names in paths, bodies and uuids, and its attributes.

use super::attribute::Attr;
use super::attribute::AttrType::{Int, Text, Time};

/// What every stored record has.
pub const COMMON: [Attr; 6] = [
    Text.attr("uuid"),
    Text.attr("owner_uuid"),
    Time.attr("created_at"),
    Time.attr("modified_at"),
    Text.attr("modified_by_user_uuid").null(),
    Int.attr("row_version").hidden(),
];

/// One kind of record.
#[derive(Debug)]
pub struct Resource {
    /// Path segment and table name.
    pub table: &'static str,
    /// Key of the attributes in a request body.
    pub singular: &'static str,
    /// Class name in messages and in the discovery document.
    pub class: &'static str,
    /// The `kind` of one record.
    pub kind: &'static str,
    /// The middle part of its uuids.
    pub infix: &'static str,
    /// The attributes that other resources have too.
    pub common: &'static [Attr],
    pub attrs: &'static [Attr],
    /// Attributes that are not stored, but computed when a record is shown (`api/computed.rs`).
    pub computed: &'static [Attr],
}

impl Resource {
    /// Each is a column of the table.
    pub fn stored_attrs(&self) -> impl Iterator<Item = &'static Attr> {
        self.common.iter().chain(self.attrs)
    }

    pub fn attr(&self, name: &str) -> Option<&'static Attr> {
        self.stored_attrs().find(|attr| attr.name == name)
    }

    /// An attribute that is not hidden.
    pub fn public_attr(&self, name: &str) -> Option<&'static Attr> {
        self.attr(name).filter(|attr| !attr.hidden)
    }

    /// An attribute that clients may select.
    pub fn selectable_attr(&self, name: &str) -> Option<&'static Attr> {
        let computed = || self.computed.iter().find(|attr| attr.name == name);
        self.public_attr(name).or_else(computed)
    }

    pub fn is_computed(&self, attr: &Attr) -> bool {
        self.computed.iter().any(|other| other.name == attr.name)
    }

    /// An attribute that clients may filter and order by.
    pub fn searchable_attr(&self, name: &str) -> Option<&'static Attr> {
        self.public_attr(name).filter(|attr| !attr.unsearchable)
    }

    pub fn public_attrs(&self) -> impl Iterator<Item = &'static Attr> {
        self.stored_attrs().filter(|attr| !attr.hidden)
    }

    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }
}
