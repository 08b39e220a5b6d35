//! One pattern of `output_glob` as a regular expression over whole paths. Names are text, so `?` is a character and not
//! a byte of one.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Of one pattern, in bytes: the time it takes to match grows with this and with the length of the path. Some thousand
/// `?`, or ten times as many plain characters, are within it.
const MOST_MEMORY: usize = 4 << 20;

/// `*` and `?` stay within a name, `**` as a whole part is any depth, `[…]` and `{…,…}` choose, `\` takes the next
/// character as it is.
pub fn regex(text: &str) -> Result<Regex, String> {
    let mut rest = text.chars().peekable();
    let mut regex = String::from(r"(?s)\A(?:");
    // What a part may begin after.
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
                        pass_over_more(&mut rest);
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
    let compiled = RegexBuilder::new(&regex).size_limit(MOST_MEMORY).build();
    compiled.map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => "it is too long".to_owned(),
        other => other.to_string().replace('\n', " "),
    })
}

/// Any depth and once more any depth is any depth.
fn pass_over_more(rest: &mut Peekable<Chars<'_>>) {
    loop {
        let mut ahead = rest.clone();
        if !"**/".chars().all(|c| ahead.next() == Some(c)) {
            return;
        }
        *rest = ahead;
    }
}

/// What is between brackets; never a slash.
fn class(rest: &mut Peekable<Chars<'_>>) -> Result<String, String> {
    let is_negated = rest.next_if(|c| matches!(c, '!' | '^')).is_some();
    let mut items = String::new();
    loop {
        match rest.next().ok_or("a [ is not closed")? {
            ']' if !items.is_empty() => break,
            '\\' => items += &literal(rest.next().ok_or("it ends in a backslash")?),
            // At either end it is itself.
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
