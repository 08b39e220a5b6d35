//! Reads environment variables. An empty variable counts as unset, as in the SDKs, because
//! upstream's dispatchers pass some that way.

use std::path::PathBuf;

/// The value, if it is not empty and valid UTF-8.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Directory of temporary files: TMPDIR, or /tmp.
pub fn temp_dir() -> PathBuf {
    let set = std::env::var_os("TMPDIR").filter(|value| !value.is_empty());
    set.map_or_else(|| "/tmp".into(), PathBuf::from)
}
