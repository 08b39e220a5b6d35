//! Limits of JSON text that clients send and that is stored: it may take hundreds of times its size
//! in memory once it is parsed.

use serde_json::Value;

use crate::error::{ApiError, Result};

/// Maximum number of values in JSON text of a client. A bulk request of 250 items has about 15,000.
const MAX_VALUES: usize = 250_000;
/// Maximum nesting depth of JSON. Replies and audit entries wrap it in more levels, and clients
/// such as the dispatchers read at most 128.
const MAX_DEPTH: usize = 64;
/// Maximum size in bytes of one value in memory, without its text: an object with one member is
/// two, and takes most. What a request has and what is made of it are in memory together.
const MAX_VALUE_BYTES: usize = 2 * 350;

/// Parses JSON text of a client, unless it has more than [`MAX_VALUES`] values.
pub fn parse(text: &[u8]) -> Result<serde_json::Result<Value>> {
    match count_values(text) > MAX_VALUES {
        true => Err(ApiError::TooManyValues { limit: MAX_VALUES }),
        false if depth(text) > MAX_DEPTH => Err(ApiError::invalid(format!(
            "JSON with more than {MAX_DEPTH} levels is not accepted"
        ))),
        false => Ok(serde_json::from_slice(text)),
    }
}

/// An upper bound of the size in bytes of the values of JSON text once [`parse`] has read it,
/// without the size of the text.
pub fn parsed_bytes(text: &[u8]) -> usize {
    match count_values(text) {
        // It is rejected.
        values if values > MAX_VALUES => 0,
        values => values * MAX_VALUE_BYTES,
    }
}

/// The same for the JSON in a URL-encoded form.
pub fn parsed_bytes_of_form(form: &[u8]) -> usize {
    let begins_value = |byte: &&u8| b",:[%".contains(byte);
    form.iter().filter(begins_value).count() * MAX_VALUE_BYTES
}

/// An upper bound of the number of values in valid JSON text.
pub fn count_values(text: &[u8]) -> usize {
    1 + outside_strings(text)
        .filter(|byte| matches!(byte, b',' | b':' | b'['))
        .count()
}

/// The greatest number of arrays and objects that are open at once in valid JSON text.
fn depth(text: &[u8]) -> usize {
    let (mut depth, mut greatest) = (0_usize, 0);
    for byte in outside_strings(text) {
        match byte {
            b'[' | b'{' => depth += 1,
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        greatest = greatest.max(depth);
    }
    greatest
}

/// The bytes of valid JSON text that are in no string.
fn outside_strings(text: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_string, mut escaped) = (false, false);
    text.iter().copied().filter(move |byte| {
        match (in_string, byte) {
            (true, _) if escaped => escaped = false,
            (true, b'\\') => escaped = true,
            (_, b'"') => in_string = !in_string,
            _ => {}
        }
        !in_string
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_too_many_values_is_not_parsed() {
        let many = format!("{{\"a\":[{}1]}}", "{},".repeat(MAX_VALUES));
        assert_eq!(parse(many.as_bytes()).unwrap_err().status().as_u16(), 413);
        assert_eq!(parsed_bytes(many.as_bytes()), 0);
        let text = format!("{{\"a\":\"{}\\\"{}\"}}", ",".repeat(MAX_VALUES), ",:[");
        assert!(parse(text.as_bytes()).is_ok());
    }

    #[test]
    fn values_are_counted_at_least_once() {
        for (text, values) in [
            ("1", 1),
            ("[]", 2),
            (r#"{"a":1}"#, 2),
            (r#"[{"":0},{"":0}]"#, 5),
            (r#"["a,b:[","\""]"#, 3),
        ] {
            assert_eq!(count_values(text.as_bytes()), values, "{text}");
        }
    }
}
