//! The resources of the API as data: which attributes each has, of which type, and how each is used.

mod container_tables;
mod data_tables;
mod people_tables;

pub use container_tables::{CONTAINER_REQUESTS, CONTAINERS};
pub use data_tables::{COLLECTIONS, KEEP_SERVICES, LINKS, LOGS};
pub use people_tables::{GROUPS, TOKENS, USERS};

use serde_json::{Value, json};

use crate::clock;
use crate::error::{ApiError, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrType {
    Text,
    Int,
    Float,
    Bool,
    Time,
    Object,
    Array,
}

/// One attribute of a resource and one column of its table.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    pub name: &'static str,
    pub kind: AttrType,
    pub nullable: bool,
    /// Never shown, selected, filtered or written by clients.
    pub hidden: bool,
    /// May be filtered by sub-property (`properties.key`) and `contains`.
    pub queryable: bool,
    /// Left out of list replies unless selected, because it may be large.
    pub bulky: bool,
}

impl Attr {
    const fn new(name: &'static str, kind: AttrType) -> Self {
        Attr {
            name,
            kind,
            nullable: false,
            hidden: false,
            queryable: false,
            bulky: false,
        }
    }

    pub const fn text(name: &'static str) -> Self {
        Self::new(name, AttrType::Text)
    }

    pub const fn int(name: &'static str) -> Self {
        Self::new(name, AttrType::Int)
    }

    pub const fn float(name: &'static str) -> Self {
        Self::new(name, AttrType::Float)
    }

    pub const fn bool(name: &'static str) -> Self {
        Self::new(name, AttrType::Bool)
    }

    pub const fn time(name: &'static str) -> Self {
        Self::new(name, AttrType::Time)
    }

    pub const fn object(name: &'static str) -> Self {
        Self::new(name, AttrType::Object)
    }

    pub const fn array(name: &'static str) -> Self {
        Self::new(name, AttrType::Array)
    }

    pub const fn null(mut self) -> Self {
        self.nullable = true;
        self
    }

    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub const fn queryable(mut self) -> Self {
        self.queryable = true;
        self
    }

    pub const fn bulky(mut self) -> Self {
        self.bulky = true;
        self
    }

    /// The value a client sent, in the form it is stored, or why it cannot be.
    pub fn coerce(&self, given: &Value) -> Result<Value> {
        let wrong = || ApiError::invalid(format!("{} has an invalid value {given}", self.human()));
        if given.is_null() {
            return Ok(if self.nullable {
                Value::Null
            } else {
                self.empty()
            });
        }
        Ok(match (self.kind, given) {
            (AttrType::Text, Value::String(_)) => given.clone(),
            (AttrType::Text, Value::Number(number)) => json!(number.to_string()),
            (AttrType::Int, Value::Number(number)) => json!(number.as_i64().ok_or_else(wrong)?),
            (AttrType::Int, Value::String(text)) => {
                json!(text.trim().parse::<i64>().map_err(|_| wrong())?)
            }
            (AttrType::Float, Value::Number(number)) => json!(number.as_f64().ok_or_else(wrong)?),
            (AttrType::Float, Value::String(text)) => {
                json!(text.trim().parse::<f64>().map_err(|_| wrong())?)
            }
            (AttrType::Bool, Value::Bool(_)) => given.clone(),
            (AttrType::Bool, Value::String(text)) => match text.as_str() {
                "true" | "1" => json!(true),
                "false" | "0" | "" => json!(false),
                _ => return Err(wrong()),
            },
            (AttrType::Bool, Value::Number(number)) => json!(number.as_i64() != Some(0)),
            (AttrType::Time, Value::String(text)) => {
                json!(clock::normalise(text).ok_or_else(wrong)?)
            }
            (AttrType::Object, Value::Object(_)) | (AttrType::Array, Value::Array(_)) => {
                given.clone()
            }
            _ => return Err(wrong()),
        })
    }

    fn empty(&self) -> Value {
        match self.kind {
            AttrType::Text => json!(""),
            AttrType::Int => json!(0),
            AttrType::Float => json!(0.0),
            AttrType::Bool => json!(false),
            AttrType::Time => Value::Null,
            AttrType::Object => json!({}),
            AttrType::Array => json!([]),
        }
    }

    /// `exit_code` as it reads at the start of a validation sentence: `Exit code`.
    pub fn human(&self) -> String {
        humanise(self.name)
    }
}

/// Attribute name to sentence start, the way Rails does it.
pub fn humanise(name: &str) -> String {
    let spaced = name.trim_end_matches("_uuid").replace('_', " ");
    let mut letters = spaced.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => spaced,
    }
}

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
    pub attrs: &'static [Attr],
}

impl Resource {
    pub fn attr(&self, name: &str) -> Option<&'static Attr> {
        self.attrs.iter().find(|attr| attr.name == name)
    }

    /// An attribute that clients may know about.
    pub fn public_attr(&self, name: &str) -> Option<&'static Attr> {
        self.attr(name).filter(|attr| !attr.hidden)
    }

    pub fn public_attrs(&self) -> impl Iterator<Item = &'static Attr> {
        self.attrs.iter().filter(|attr| !attr.hidden)
    }

    pub fn list_kind(&self) -> String {
        format!("{}List", self.kind)
    }
}

/// Every resource kept in a table, in the order of the discovery document.
pub static ALL: [&Resource; 8] = [
    &TOKENS,
    &COLLECTIONS,
    &CONTAINERS,
    &CONTAINER_REQUESTS,
    &GROUPS,
    &LINKS,
    &LOGS,
    &USERS,
];

/// The resource whose uuids look like this one.
pub fn by_uuid(uuid: &str) -> Option<&'static Resource> {
    let infix = uuid.split('-').nth(1)?;
    ALL.into_iter().find(|resource| resource.infix == infix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_values_are_brought_into_their_stored_form() {
        let cases = [
            (Attr::int("n"), json!("12"), Some(json!(12))),
            (Attr::int("n"), json!(1.5), None),
            (Attr::int("n").null(), json!(null), Some(json!(null))),
            (Attr::int("n"), json!(null), Some(json!(0))),
            (Attr::bool("b"), json!("true"), Some(json!(true))),
            (Attr::object("o"), json!([]), None),
            (Attr::object("o"), json!(null), Some(json!({}))),
            (Attr::text("t"), json!({"a": 1}), None),
            (
                Attr::time("t"),
                json!("2026-01-01T00:00:00Z"),
                Some(json!("2026-01-01T00:00:00.000000000Z")),
            ),
            (Attr::time("t"), json!("soon"), None),
        ];
        for (attr, given, expected) in cases {
            assert_eq!(attr.coerce(&given).ok(), expected, "{attr:?} {given}");
        }
    }

    #[test]
    fn names_read_as_sentence_starts() {
        assert_eq!(humanise("exit_code"), "Exit code");
        assert_eq!(humanise("locked_by_uuid"), "Locked by");
    }
}
