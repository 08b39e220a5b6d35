//! One row of any table as a JSON object, hidden columns included.

use std::fmt;

use serde_json::{Map, Value};

/// A record keyed by attribute name. Its `Debug` names the record and shows no attribute,
/// because a token's secret is an attribute like any other.
#[derive(Clone, Default, PartialEq)]
pub struct Record(pub Map<String, Value>);

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Record({})", self.text("uuid"))
    }
}

impl Record {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn get(&self, name: &str) -> &Value {
        self.0.get(name).unwrap_or(&Value::Null)
    }

    /// A text attribute; null reads as the empty text.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).as_str().unwrap_or("")
    }

    /// A text attribute that counts as absent when null or empty.
    pub fn some_text(&self, name: &str) -> Option<&str> {
        self.get(name).as_str().filter(|text| !text.is_empty())
    }

    pub fn int(&self, name: &str) -> i64 {
        self.get(name).as_i64().unwrap_or(0)
    }

    pub fn float(&self, name: &str) -> f64 {
        self.get(name).as_f64().unwrap_or(0.0)
    }

    pub fn bool(&self, name: &str) -> bool {
        self.get(name).as_bool().unwrap_or(false)
    }

    pub fn uuid(&self) -> &str {
        self.text("uuid")
    }

    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// Names whose values differ between this record and a later form of it.
    pub fn changed<'a>(&'a self, later: &'a Record) -> Vec<&'a str> {
        later
            .0
            .iter()
            .filter(|(name, value)| self.get(name) != *value)
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

impl FromIterator<(String, Value)> for Record {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(pairs: I) -> Self {
        Record(pairs.into_iter().collect())
    }
}
