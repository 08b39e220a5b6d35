//! Quotes texts for HTCondor's submit language: condor_submit(1), "Submit Description File
//! Commands". Pure.
//!
//! A text that the language cannot hold is an error.

/// A text that a submit description cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be written into a submit description, because it {why}: {text:?}")]
pub struct Unquotable {
    what: &'static str,
    why: &'static str,
    text: String,
}

fn unquotable<T>(what: &'static str, why: &'static str, text: &str) -> Result<T, Unquotable> {
    Err(Unquotable {
        what,
        why,
        text: text.to_owned(),
    })
}

/// A part of a line, unchanged.
pub fn line(what: &'static str, text: &str) -> Result<String, Unquotable> {
    match text {
        _ if text.contains(['\n', '\r', '\0']) => {
            unquotable(what, "holds a line break or a NUL", text)
        }
        _ if text.ends_with('\\') => unquotable(what, "ends with a backslash", text),
        _ => Ok(text.to_owned()),
    }
}

/// A part of a line in which `$` is literal. HTCondor would expand `$$` on the execute node.
fn escape_dollars(what: &'static str, text: &str) -> Result<String, Unquotable> {
    match text {
        _ if text.contains("$$") => unquotable(what, "holds $$", text),
        _ => Ok(line(what, text)?.replace('$', "$(DOLLAR)")),
    }
}

/// A path as the rest of a line.
pub fn path(what: &'static str, text: &str) -> Result<String, Unquotable> {
    match text {
        _ if text != text.trim() => unquotable(what, "begins or ends with a blank", text),
        _ if text.contains(['"', '\'']) => unquotable(what, "holds a quotation mark", text),
        _ => escape_dollars(what, text),
    }
}

/// A path in a comma-separated list.
pub fn path_in_list(what: &'static str, text: &str) -> Result<String, Unquotable> {
    match text.contains([',', ':']) {
        true => unquotable(what, "holds a comma or a colon", text),
        false => path(what, text),
    }
}

/// A field in an item of `queue … from (`, where blanks and commas are separators; `$(Comma)`
/// stands for a comma.
pub fn item(what: &'static str, text: &str) -> Result<String, Unquotable> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.+@,".contains(c);
    match text {
        "" => Ok("$(Nothing)".to_owned()),
        _ if !text.chars().all(is_plain) => {
            unquotable(what, "holds more than letters, digits and _-.+@", text)
        }
        _ => Ok(text.replace(',', "$(Comma)")),
    }
}

/// The value of `arguments` or `environment` in the "new" syntax, from words quoted by [`word`].
pub fn quoted_list(words: &[String]) -> String {
    format!("\"{}\"", words.join(" "))
}

/// A word of such a value, in which everything is literal.
pub fn word(what: &'static str, text: &str) -> Result<String, Unquotable> {
    // A quotation mark follows, so a backslash at the end does not continue the line.
    let text = escape_dollars(what, &format!("{text}'"))?;
    Ok(with_macros(text.strip_suffix('\'').unwrap_or(&text)))
}

/// A word in which `$(…)` is replaced by the macro.
pub fn with_macros(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''").replace('"', "\"\""))
}

/// A variable in the value of `environment`.
pub fn variable(name: &str, value: &str) -> Result<String, Unquotable> {
    const SUBJECT: &str = "a variable for jobs";
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.is_empty() || !name.chars().all(is_plain) {
        true => unquotable(
            SUBJECT,
            "has a name of more than letters, digits and _",
            name,
        ),
        false => Ok(format!("{name}={}", word(SUBJECT, value)?)),
    }
}

#[cfg(test)]
mod tests;
