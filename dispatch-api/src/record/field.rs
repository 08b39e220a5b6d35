//! The value of one attribute. Long JSON of the database stays text until somebody looks into it:
//! parsed, it takes a hundred times its size, and most writes change another attribute.

use std::fmt;
use std::sync::{Arc, OnceLock};

use serde::de::IgnoredAny;
use serde_json::Value;

/// Size in bytes from which JSON stays text.
pub const LONG_JSON_BYTES: usize = 32 << 10;

/// A value, parsed or not; null by default. Copies of a record share it.
#[derive(Clone, Default)]
pub struct Field {
    /// The JSON text of a value that was long in the database.
    text: Option<Arc<str>>,
    value: Arc<OnceLock<Value>>,
}

impl Field {
    /// The field of JSON text. It is checked as a whole, whether it is parsed or not.
    pub fn from_json(text: &str) -> serde_json::Result<Self> {
        if text.len() < LONG_JSON_BYTES {
            return Ok(serde_json::from_str::<Value>(text)?.into());
        }
        serde_json::from_str::<IgnoredAny>(text)?;
        Ok(Self {
            text: Some(text.into()),
            value: Arc::default(),
        })
    }

    pub fn value(&self) -> &Value {
        self.value.get_or_init(|| parse(self.text.as_deref()))
    }

    pub fn into_value(self) -> Value {
        match Arc::try_unwrap(self.value) {
            Ok(own) => own.into_inner(),
            Err(shared) => shared.get().cloned(),
        }
        .unwrap_or_else(|| parse(self.text.as_deref()))
    }

    /// The JSON text of a value that is long and as it was in the database.
    pub fn long_json(&self) -> Option<&str> {
        self.text.as_deref()
    }
}

/// The program wrote the text, and its form was checked.
fn parse(text: Option<&str>) -> Value {
    text.and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

impl From<Value> for Field {
    fn from(value: Value) -> Self {
        Self {
            text: None,
            value: Arc::new(value.into()),
        }
    }
}

impl PartialEq for Field {
    fn eq(&self, other: &Self) -> bool {
        let texts = self.text.as_ref().zip(other.text.as_ref());
        // The same text of a copy needs no look at its content.
        Arc::ptr_eq(&self.value, &other.value)
            || texts.is_some_and(|(one, other)| one == other)
            || self.value() == other.value()
    }
}

impl fmt::Debug for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a secret.
        f.write_str("Field")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn long_json_is_parsed_when_somebody_looks_into_it() {
        let long = json!({"a": vec![json!({"b": 1}); LONG_JSON_BYTES / 8]});
        let field = Field::from_json(&long.to_string()).unwrap();
        assert_eq!(field.long_json().unwrap(), long.to_string());
        let copy = field.clone();
        assert!(copy == field);
        assert_eq!(field.value.get(), None);
        assert_eq!(field.value(), &long);
        assert!(std::ptr::eq(copy.value(), field.value()), "it is shared");
        assert!(field == Field::from(long.clone()) && field != json!({}).into());
        assert_eq!(copy.into_value(), long);
        let short = Field::from_json("[1]").unwrap();
        assert_eq!((short.long_json(), short.value()), (None, &json!([1])));
    }

    #[test]
    fn what_is_no_json_is_told_at_once() {
        for text in ["", "{", "[1,", "nul"] {
            let long = format!("{text}{}", " ".repeat(LONG_JSON_BYTES));
            assert!(Field::from_json(text).is_err() && Field::from_json(&long).is_err());
        }
    }
}
