//! Texts in HTCondor's submit language, so that they mean themselves: condor_submit(1), "Submit Description File Commands".
//! What it cannot hold is refused.

/// A text that a submit description cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be written into a submit description, for it {why}: {text:?}")]
pub struct Unwritable {
    what: &'static str,
    why: &'static str,
    text: String,
}

fn refuse<T>(what: &'static str, why: &'static str, text: &str) -> Result<T, Unwritable> {
    Err(Unwritable {
        what,
        why,
        text: text.to_owned(),
    })
}

/// Part of a line, as it is.
pub fn line(what: &'static str, text: &str) -> Result<String, Unwritable> {
    match text {
        _ if text.contains(['\n', '\r', '\0']) => refuse(what, "holds a line break or a NUL", text),
        _ if text.ends_with('\\') => refuse(what, "ends with a backslash", text),
        _ => Ok(text.to_owned()),
    }
}

/// Part of a line where a `$` stands for itself. Two of them HTCondor would take for a question to the machine.
fn plain(what: &'static str, text: &str) -> Result<String, Unwritable> {
    match text {
        _ if text.contains("$$") => refuse(what, "holds $$", text),
        _ => Ok(line(what, text)?.replace('$', "$(DOLLAR)")),
    }
}

/// A path by itself in a line.
pub fn path(what: &'static str, text: &str) -> Result<String, Unwritable> {
    match text {
        _ if text != text.trim() => refuse(what, "begins or ends with a blank", text),
        _ if text.contains(['"', '\'']) => refuse(what, "holds a quotation mark", text),
        _ => plain(what, text),
    }
}

/// A path in a list of paths.
pub fn listed_path(what: &'static str, text: &str) -> Result<String, Unwritable> {
    match text.contains([',', ':']) {
        true => refuse(what, "holds a comma or a colon", text),
        false => path(what, text),
    }
}

/// A word in an item of `queue … from (`, where blanks and commas divide; `$(Comma)` is one.
pub fn item(what: &'static str, text: &str) -> Result<String, Unwritable> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.+@,".contains(c);
    match text {
        "" => Ok("$(Nothing)".to_owned()),
        _ if !text.chars().all(is_plain) => {
            refuse(what, "holds more than letters, digits and _-.+@", text)
        }
        _ => Ok(text.replace(',', "$(Comma)")),
    }
}

/// The words of `arguments` or `environment`, as [`word`] makes them, in the "new" syntax.
pub fn list(words: &[String]) -> String {
    format!("\"{}\"", words.join(" "))
}

/// One of them.
pub fn word(what: &'static str, text: &str) -> Result<String, Unwritable> {
    // What comes behind is a quotation mark, so a backslash at the end is none of the line's.
    let text = plain(what, &format!("{text}'"))?;
    Ok(of_ours(text.strip_suffix('\'').unwrap_or(&text)))
}

/// One in which `$(…)` is meant to be replaced.
pub fn of_ours(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''").replace('"', "\"\""))
}

/// A variable of `environment`.
pub fn variable(name: &str, value: &str) -> Result<String, Unwritable> {
    const WHAT: &str = "a variable for jobs";
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match name.is_empty() || !name.chars().all(is_plain) {
        true => refuse(WHAT, "has a name of more than letters, digits and _", name),
        false => Ok(format!("{name}={}", word(WHAT, value)?)),
    }
}

#[cfg(test)]
mod tests;
