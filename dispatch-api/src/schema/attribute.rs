//! One attribute of a resource: its type, its uses, and the stored form of its values.

use std::borrow::Cow;

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

impl AttrType {
    /// An attribute of this type.
    pub const fn attr(self, name: &'static str) -> Attr {
        Attr {
            name,
            kind: self,
            nullable: false,
            hidden: false,
            unsearchable: false,
            queryable: false,
            bulky: false,
        }
    }

    /// What a value must be, as the end of a sentence.
    fn description(self) -> &'static str {
        match self {
            AttrType::Text => "text",
            AttrType::Int => "a whole number",
            AttrType::Float => "a number",
            AttrType::Bool => "true or false",
            AttrType::Time => "a time such as 2026-01-01T00:00:00Z",
            AttrType::Object => "an object",
            AttrType::Array => "an array",
        }
    }
}

/// One attribute of a resource and one column of its table.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    pub name: &'static str,
    pub kind: AttrType,
    pub nullable: bool,
    /// Whether clients can never see, select, filter or write it.
    pub hidden: bool,
    /// Whether clients cannot filter or order by it: that would reveal it bit by bit, or find
    /// nothing, because it is not stored.
    pub unsearchable: bool,
    /// Whether filters on sub-properties (`properties.key`) and `contains` are permitted.
    pub queryable: bool,
    /// Whether lists omit it unless selected, because it may be large.
    pub bulky: bool,
}

impl Attr {
    pub const fn null(mut self) -> Self {
        self.nullable = true;
        self
    }

    pub const fn hidden(mut self) -> Self {
        self.hidden = true;
        self
    }

    pub const fn unsearchable(mut self) -> Self {
        self.unsearchable = true;
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

    /// Maximum number of JSON values in what is read with every request of a user, or searched.
    /// Mounts have no limit of their own: a workflow and its inputs are in them.
    fn max_values(&self) -> Option<usize> {
        match self.name {
            "scopes" | "runtime_auth_scopes" => Some(1000),
            "prefs" | "properties" | "output_properties" => Some(10_000),
            _ => None,
        }
    }

    /// Converts a client's value to its stored form; it is borrowed if that is the same.
    pub fn coerce<'a>(&self, given: &'a Value) -> Result<Cow<'a, Value>> {
        // The value may be a secret; the type of what was sent is enough to find the mistake.
        let invalid = || {
            let kind = json_type(given);
            ApiError::invalid(format!(
                "{} has an invalid value: it is {kind}, and must be {}",
                humanise(self.name),
                self.kind.description()
            ))
        };
        if given.is_null() {
            return Ok(match self.nullable {
                true => Cow::Borrowed(given),
                false => Cow::Owned(self.empty()),
            });
        }
        Ok(Cow::Owned(match (self.kind, given) {
            (AttrType::Text, Value::String(_)) | (AttrType::Bool, Value::Bool(_)) => {
                return Ok(Cow::Borrowed(given));
            }
            (AttrType::Text, Value::Number(number)) => json!(number.to_string()),
            (AttrType::Int, Value::Number(number)) => json!(number.as_i64().ok_or_else(invalid)?),
            (AttrType::Int, Value::String(text)) => {
                json!(text.trim().parse::<i64>().map_err(|_| invalid())?)
            }
            (AttrType::Float, Value::Number(number)) => json!(number.as_f64().ok_or_else(invalid)?),
            (AttrType::Float, Value::String(text)) => {
                json!(text.trim().parse::<f64>().map_err(|_| invalid())?)
            }
            (AttrType::Bool, Value::String(text)) => match text.as_str() {
                "true" | "1" => json!(true),
                "false" | "0" | "" => json!(false),
                _ => return Err(invalid()),
            },
            (AttrType::Bool, Value::Number(number)) => json!(number.as_i64() != Some(0)),
            (AttrType::Time, Value::String(text)) => {
                json!(clock::normalise(text).ok_or_else(invalid)?)
            }
            (AttrType::Object, Value::Object(_)) | (AttrType::Array, Value::Array(_)) => {
                let most = self.max_values();
                if most.is_some_and(|most| count_values(given, most) > most) {
                    return Err(ApiError::invalid(format!(
                        "{} has more than {} values",
                        humanise(self.name),
                        most.unwrap_or_default()
                    )));
                }
                return Ok(Cow::Borrowed(given));
            }
            _ => return Err(invalid()),
        }))
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
}

/// Converts an attribute name to the start of a sentence, as Rails does: `exit_code` becomes
/// `Exit code`.
pub fn humanise(name: &str) -> String {
    let spaced = name.trim_end_matches("_uuid").replace('_', " ");
    let mut letters = spaced.chars();
    match letters.next() {
        Some(first) => first.to_uppercase().chain(letters).collect(),
        None => spaced,
    }
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// The number of values in a value, counted up to `most` of its own members.
fn count_values(value: &Value, most: usize) -> usize {
    let inside: usize = match value {
        Value::Array(items) => items
            .iter()
            .take(most + 1)
            .map(|v| count_values(v, most))
            .sum(),
        Value::Object(members) => {
            let values = members.values().take(most + 1);
            values.map(|v| count_values(v, most)).sum()
        }
        _ => 0,
    };
    inside + 1
}

#[cfg(test)]
mod tests {
    use super::AttrType::{Bool, Int, Object, Text, Time};
    use super::*;

    #[test]
    fn attribute_values_are_brought_into_their_stored_form() {
        let cases = [
            (Int.attr("n"), json!("12"), Some(json!(12))),
            (Int.attr("n"), json!(1.5), None),
            (Int.attr("n").null(), json!(null), Some(json!(null))),
            (Int.attr("n"), json!(null), Some(json!(0))),
            (Bool.attr("b"), json!("true"), Some(json!(true))),
            (Object.attr("o"), json!([]), None),
            (Object.attr("o"), json!(null), Some(json!({}))),
            (Text.attr("t"), json!({"a": 1}), None),
            (
                Time.attr("t"),
                json!("2026-01-01T00:00:00Z"),
                Some(json!("2026-01-01T00:00:00.000000000Z")),
            ),
            (Time.attr("t"), json!("soon"), None),
        ];
        for (attr, given, expected) in cases {
            assert_eq!(
                attr.coerce(&given).ok().as_deref(),
                expected.as_ref(),
                "{attr:?} {given}"
            );
        }
    }

    #[test]
    fn properties_have_a_bounded_number_of_values() {
        let many = |count: usize| json!({"a": vec![json!({}); count - 2]});
        for (name, count, is_taken) in [
            ("properties", 10_000, true),
            ("properties", 10_001, false),
            ("prefs", 10_001, false),
            ("mounts", 50_000, true),
        ] {
            let given = many(count);
            let taken = Object.attr(name).coerce(&given);
            assert_eq!(taken.is_ok(), is_taken, "{name} {count}");
        }
        let scopes = vec![json!("GET /"); 1000];
        assert!(
            AttrType::Array
                .attr("scopes")
                .coerce(&json!(scopes))
                .is_err()
        );
    }

    #[test]
    fn names_read_as_sentence_starts() {
        assert_eq!(humanise("exit_code"), "Exit code");
        assert_eq!(humanise("locked_by_uuid"), "Locked by");
    }
}
