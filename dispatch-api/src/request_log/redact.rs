//! Removes secrets from paths and messages that are logged.

/// Maximum length in bytes of a path or message in a log.
const MAX_LOGGED_TEXT: usize = 300;

/// Text from a request for a log: percent-decoded, shortened, without block signatures and secrets
/// of tokens.
pub fn redact(text: &str) -> String {
    let text = percent_encoding::percent_decode_str(text).decode_utf8_lossy();
    let mut result = String::new();
    for (index, part) in text
        .split_inclusive(['/', '+', ' ', '"', '\'', '&', '='])
        .enumerate()
    {
        let word = part.trim_end_matches(['/', '+', ' ', '"', '\'', '&', '=']);
        let is_signature = index > 0 && word.starts_with('A') && word.contains('@');
        let is_secret = word.len() >= 40
            && word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            || word.starts_with("eyJ");
        match is_signature || is_secret {
            true => result.push_str(&part.replace(word, "***")),
            false => result.push_str(part),
        }
    }
    if result.len() > MAX_LOGGED_TEXT {
        let end = result.floor_char_boundary(MAX_LOGGED_TEXT);
        result.truncate(end);
        result.push('…');
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_passes() {
        let secret = "3kg6k6lzmp9kj5cpkcoxie963cmvjahbt2fod9zru30k1jqdmi";
        for (text, expected) in [
            ("/arvados/v1/containers", "/arvados/v1/containers"),
            (
                "/acbd18db4cc2f85cedef654fccc4a4d8+3+A0123456789012345678901234567890123456789@65e0c000",
                "/acbd18db4cc2f85cedef654fccc4a4d8+3+***",
            ),
            (
                &format!("/x/v2/local-gj3su-000000000000000/{secret}/y"),
                "/x/v2/local-gj3su-000000000000000/***/y",
            ),
            (
                &format!(
                    "/x/v2%2Flocal-gj3su-000000000000000%2F{}%{:x}",
                    &secret[..49],
                    b'i'
                ),
                "/x/v2/local-gj3su-000000000000000/***",
            ),
            ("/a%2BA0123%4065e0c000", "/a+***"),
            ("filter \"eyJhbGciOi.J9\" fails", "filter \"***\" fails"),
        ] {
            assert_eq!(redact(text), expected);
        }
        assert!(redact(&"x/".repeat(400)).len() < 310);
    }
}
