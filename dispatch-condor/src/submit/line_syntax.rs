//! The syntax of one line of a submit description: `KEY = VALUE`. Pure.

/// The key and the value of a line, without blanks around them.
pub fn split_line(text: &str) -> (&str, &str) {
    let (key, value) = text.split_once('=').unwrap_or((text, ""));
    (key.trim(), value.trim())
}

/// A key without what HTCondor ignores: `+OnExitRemove`, `MY.OnExitRemove` and `on_exit_remove` are
/// equal.
pub fn normalized_key(key: &str) -> String {
    let lower = key.trim().to_lowercase();
    let name = lower.strip_prefix('+').unwrap_or(&lower);
    let name = name.trim().strip_prefix("my.").unwrap_or(name.trim());
    name.replace('_', "")
}
