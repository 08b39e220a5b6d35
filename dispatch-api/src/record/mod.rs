//! One row of any table as a JSON object, including hidden columns.

pub mod field;
pub mod patch;

use std::collections::BTreeMap;
use std::fmt;

use data_encoding::HEXLOWER;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use field::Field;

/// A record keyed by attribute name. `Debug` prints only the uuid, because attributes may be
/// secrets.
#[derive(Clone, Default, PartialEq)]
pub struct Record(pub BTreeMap<String, Field>);

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
        self.0.get(name).map_or(&Value::Null, Field::value)
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

    /// The etag of this version of the record.
    pub fn etag(&self) -> String {
        let digest = Sha256::digest(format!("{}:{}", self.uuid(), self.int("row_version")));
        HEXLOWER.encode(&digest[..12])
    }

    pub fn set(&mut self, name: &str, value: impl Into<Value>) -> &mut Self {
        let value: Value = value.into();
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Sets an attribute to that of another record, which shares it.
    pub fn copy(&mut self, name: &str, from: &Record) -> &mut Self {
        self.0.insert(name.to_owned(), from.field(name));
        self
    }

    pub fn field(&self, name: &str) -> Field {
        self.0.get(name).cloned().unwrap_or_default()
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.set(name, value);
        self
    }

    /// All attributes.
    pub fn into_object(self) -> Map<String, Value> {
        let fields = self.0.into_iter();
        fields
            .map(|(name, field)| (name, field.into_value()))
            .collect()
    }

    /// Names of the attributes whose values differ in a later version of this record.
    pub fn changed_attributes<'a>(&'a self, later: &'a Record) -> Vec<&'a str> {
        later
            .0
            .iter()
            .filter(|(name, field)| match self.0.get(*name) {
                Some(own) => own != *field,
                None => !field.value().is_null(),
            })
            .map(|(name, _)| name.as_str())
            .collect()
    }
}

impl<F: Into<Field>> FromIterator<(String, F)> for Record {
    fn from_iter<I: IntoIterator<Item = (String, F)>>(pairs: I) -> Self {
        let fields = pairs.into_iter().map(|(name, field)| (name, field.into()));
        Record(fields.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_do_not_print_their_attributes() {
        let token = Record::new().with("uuid", "u").with("api_token", "secret");
        assert!(!format!("{token:?}").contains("secret"));
    }
}
