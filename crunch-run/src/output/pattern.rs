//! Translates one pattern of `output_glob` into a regular expression over whole paths. `?` matches
//! one character, not one byte.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Maximum size of a compiled pattern in bytes. Matching time grows with this size and with the
/// length of the path.
const MAX_REGEX_BYTES: usize = 4 << 20;

/// `*` and `?` match within a name, `**` as a whole part matches any depth, `[…]` and `{…,…}`
/// choose, and `\` escapes the next character.
pub fn regex(text: &str) -> Result<Regex, String> {
    let mut rest = text.chars().peekable();
    let mut regex = String::from(r"(?s)\A(?:");
    // True at positions where a part of the path may begin.
    let (mut begins_part, mut depth) = (true, 0);
    while let Some(c) = rest.next() {
        let was_begin = std::mem::replace(&mut begins_part, false);
        match c {
            '\\' => regex += &literal(rest.next().ok_or("it ends in a backslash")?),
            '?' => regex += "[^/]",
            '*' => {
                let mut stars = 1;
                while rest.next_if_eq(&'*').is_some() {
                    stars += 1;
                }
                match rest.peek() {
                    Some('/') if was_begin && stars == 2 => {
                        rest.next();
                        skip_repeated_any_depth(&mut rest);
                        begins_part = true;
                        regex += "(?:.*/)?";
                    }
                    None if was_begin && stars == 2 => regex += ".*",
                    Some(',' | '}') if was_begin && stars == 2 && depth > 0 => regex += ".*",
                    _ => regex += "[^/]*",
                }
            }
            '[' => regex += &class(&mut rest)?,
            '{' => {
                depth += 1;
                begins_part = was_begin;
                regex += "(?:";
            }
            ',' if depth > 0 => {
                begins_part = true;
                regex.push('|');
            }
            '}' if depth > 0 => {
                depth -= 1;
                regex.push(')');
            }
            '/' => {
                begins_part = true;
                regex.push('/');
            }
            c => regex += &literal(c),
        }
    }
    if depth > 0 {
        return Err("a { is not closed".to_owned());
    }
    regex += r")\z";
    let compiled = RegexBuilder::new(&regex)
        .size_limit(MAX_REGEX_BYTES)
        .build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it is too long".to_owned(),
        other => other.to_string().replace('\n', " "),
    })
}

/// Skips further `**/`, which add nothing.
fn skip_repeated_any_depth(rest: &mut Peekable<Chars<'_>>) {
    loop {
        let mut ahead = rest.clone();
        if !"**/".chars().all(|c| ahead.next() == Some(c)) {
            return;
        }
        *rest = ahead;
    }
}

/// Parses a character class. It never matches a slash.
fn class(rest: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let is_negated = rest.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut items = String::new();
    loop {
        match rest.next().ok_or("a [ is not closed")? {
            ']' if !items.is_empty() => break,
            '\\' => items += &literal(rest.next().ok_or("it ends in a backslash")?),
            // A hyphen at either end of a class is literal.
            '-' if !items.is_empty() && rest.peek().is_some_and(|next| *next != ']') => {
                items.push('-');
            }
            c => items += &literal(c),
        }
    }
    Ok(match is_negated {
        true => format!("[^/{items}]"),
        false => format!("[[{items}]&&[^/]]"),
    })
}

fn literal(c: char) -> String {
    format!(r"\x{{{:X}}}", u32::from(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_and_the_paths_they_match() {
        let cases: [(&str, &[&str], &[&str]); 14] = [
            ("?", &["a", "ü", "漢"], &["", "ab", "/"]),
            ("a[!b]", &["aü", "ac"], &["ab", "a/", "a"]),
            ("[α-ω]x", &["βx"], &["bx"]),
            ("[a-c-]", &["b", "-"], &["d"]),
            ("[]a]", &["]", "a"], &["b"]),
            ("[/]", &[], &["/"]),
            ("a**b", &["ab", "axb"], &["a/b"]),
            ("**/x", &["x", "a/x", "a/b/x"], &["ax", "x/a"]),
            ("a/**/x", &["a/x", "a/b/c/x"], &["ax", "b/x"]),
            ("a/**", &["a/b", "a/b/c"], &["a", "b"]),
            ("{a,b/**}/x", &["a/x", "b/c/x"], &["b", "c/x"]),
            ("{**/x,y}", &["a/x", "x", "y"], &["a/y"]),
            (r"\*.\[", &["*.["], &["a.["]),
            ("a.c", &["a.c"], &["abc"]),
        ];
        for (pattern, yes, no) in cases {
            let regex = regex(pattern).unwrap();
            for path in yes {
                assert!(regex.is_match(path), "{pattern} {path}");
            }
            for path in no {
                assert!(!regex.is_match(path), "{pattern} {path}");
            }
        }
        for bad in ["[", "[a", r"a\", "{a", "[b-a]", "[]"] {
            assert!(regex(bad).is_err(), "{bad}");
        }
    }
}
