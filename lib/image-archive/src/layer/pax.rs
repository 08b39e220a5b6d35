//! The records of a PAX header, `LENGTH KEY=VALUE` and a newline each (POSIX pax, "Extended
//! Header"). A value may hold any byte, a newline too, so that only the length ends a record.

/// The records in their order; `None` if they do not fill the header exactly.
pub fn records(mut data: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut records = Vec::new();
    while !data.is_empty() {
        let space = data.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&data[..space]).ok()?.parse().ok()?;
        let record = data.get(space + 1..length)?.strip_suffix(b"\n")?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        records.push((&record[..equals], &record[equals + 1..]));
        data = &data[length..];
    }
    Some(records)
}

/// The whole seconds of a time like `-1.5`, rounded down.
pub fn seconds(value: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(value).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let is_before = whole.starts_with('-') && fraction.bytes().any(|digit| digit != b'0');
    Some(seconds - i64::from(is_before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_length_ends_a_record() {
        let good: [(&str, &[(&str, &str)]); 5] = [
            ("", &[]),
            ("6 a=b\n", &[("a", "b")]),
            ("8 a=\n\n\n\n7 b==c\n", &[("a", "\n\n\n"), ("b", "=c")]),
            // A record within a value is none.
            ("14 a=\n6 b=c\n\n\n", &[("a", "\n6 b=c\n\n")]),
            ("5 a=\n", &[("a", "")]),
        ];
        for (data, expected) in good {
            let text = |bytes| std::str::from_utf8(bytes).unwrap();
            let found = records(data.as_bytes()).unwrap();
            let found: Vec<_> = found.iter().map(|(k, v)| (text(k), text(v))).collect();
            assert_eq!(found, expected, "{data}");
        }
        for bad in [
            "7 a=b\n",
            "6 a=bc",
            "5 ab\n\n",
            "6 a=b\n\0\0",
            "2",
            "1 a=b\n",
        ] {
            assert_eq!(records(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn times_are_rounded_down() {
        let rows = [
            ("0", Some(0)),
            ("1.9", Some(1)),
            ("-1", Some(-1)),
            ("-1.5", Some(-2)),
            ("-0.5", Some(-1)),
            ("-1.0", Some(-1)),
            ("1.", Some(1)),
            ("", None),
            ("1.x", None),
            ("99999999999999999999", None),
        ];
        for (text, expected) in rows {
            assert_eq!(seconds(text.as_bytes()), expected, "{text}");
        }
    }
}
