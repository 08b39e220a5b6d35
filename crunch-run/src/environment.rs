//! Variables of this program's environment. One that is set but empty counts as unset, as the SDKs
//! take it: upstream's dispatchers pass some along that way.

use std::path::PathBuf;

/// The value, where there is one that is UTF-8 text.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Where temporary files go: TMPDIR, or /tmp.
pub fn temp_dir() -> PathBuf {
    let set = std::env::var_os("TMPDIR").filter(|value| !value.is_empty());
    set.map_or_else(|| "/tmp".into(), PathBuf::from)
}
