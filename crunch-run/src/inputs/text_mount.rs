//! Renders the content of json and text mounts.

use std::fmt::Write;

use serde_json::Value;

/// Compact JSON as every Arvados executor writes it: keys sorted, and `<`, `>`, `&` and the two
/// line separators escaped, so that equal values give equal files everywhere.
pub fn canonical_json(value: &Value) -> String {
    let mut text = String::new();
    render(value, &mut text);
    // JSON has none of these characters outside of strings.
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a String cannot fail.
                let _ = write!(escaped, "\\u{:04x}", c as u32);
            }
            _ => escaped.push(c),
        }
    }
    escaped
}

/// Sorts keys explicitly, because their order in a [`Value`] depends on how serde_json was built.
fn render(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            text.push('{');
            for (index, key) in keys.into_iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                render(&Value::String(key.clone()), text);
                text.push(':');
                render(&map[key], text);
            }
            text.push('}');
        }
        Value::Array(list) => {
            text.push('[');
            for (index, value) in list.iter().enumerate() {
                if index > 0 {
                    text.push(',');
                }
                render(value, text);
            }
            text.push(']');
        }
        plain => text.push_str(&plain.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json as value;

    use super::*;

    #[test]
    fn json_is_written_in_one_way_only() {
        let cases = [
            (value!("foo"), r#""foo""#),
            (value!(null), "null"),
            (value!(123456789123456789i64), "123456789123456789"),
            (
                value!({"b": 1, "a": [true, {}]}),
                r#"{"a":[true,{}],"b":1}"#,
            ),
            (value!("<a&b>"), r#""\u003ca\u0026b\u003e""#),
            (value!("\u{2028}\"\n"), r#""\u2028\"\n""#),
        ];
        for (value, expected) in cases {
            assert_eq!(canonical_json(&value), expected);
            let back: Value = serde_json::from_str(&canonical_json(&value)).unwrap();
            assert_eq!(back, value);
        }
    }
}
