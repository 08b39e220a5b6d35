//! Writes container.json: the container record as it was when the attempt began.

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

/// Attributes that must not appear in logs, even if a server returns them.
const SECRET: [&str; 2] = ["secret_mounts", "runtime_token"];

/// Renders the record with four spaces of indentation, exact numbers and no secrets.
pub fn container_json(record: &Value) -> Vec<u8> {
    let mut record = record.clone();
    if let Some(attributes) = record.as_object_mut() {
        for name in SECRET {
            attributes.remove(name);
        }
    }
    let mut text = Vec::new();
    let formatter = PrettyFormatter::with_indent(b"    ");
    let written = record.serialize(&mut Serializer::with_formatter(&mut text, formatter));
    if written.is_err() {
        // A value that was read from JSON can be written as JSON.
        text.clear();
    }
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_exact_and_secrets_stay_out() {
        let record = serde_json::json!({
            "uuid": "zzzzz-dz642-0123456789abcde", "priority": 562_948_158_193_364_795_i64,
            "secret_mounts": {"/s": {"kind": "text", "content": "sesame"}}, "runtime_token": "v2/x/sesame",
        });
        let text = String::from_utf8(container_json(&record)).unwrap();
        assert!(text.contains("\n    \"priority\": 562948158193364795,"));
        assert!(!text.contains("sesame"), "{text}");
    }
}
