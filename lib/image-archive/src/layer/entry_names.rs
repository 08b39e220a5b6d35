//! Validates names of entries: inside the layer, and short and shallow enough to be removed again.

use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Maximum depth: removal needs an open file per level.
const MAX_DEPTH: usize = 256;
/// Maximum length of a path, as in the kernel.
const MAX_PATH_BYTES: usize = 4095;
/// Maximum length of one name, as in the kernel.
const MAX_NAME_BYTES: usize = 255;

/// The path below the layer's root. A leading "/" means that root; ".." is refused.
pub fn relative(path: &Path) -> Result<PathBuf, String> {
    if path.as_os_str().len() > MAX_PATH_BYTES {
        return Err("has a name that is too long".to_owned());
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err("has a name that no file system takes".to_owned());
    }
    let mut inside = PathBuf::new();
    let mut depth = 0;
    for part in path.components() {
        match part {
            Component::Normal(part) if part.len() > MAX_NAME_BYTES => {
                return Err("has a name that is too long for any file system".to_owned());
            }
            Component::Normal(part) => {
                inside.push(part);
                depth += 1;
            }
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err("leads out of the image with \"..\"".to_owned());
            }
        }
    }
    if depth > MAX_DEPTH {
        return Err(format!("lies more than {MAX_DEPTH} directories deep"));
    }
    Ok(inside)
}

/// The name for a message: one line, shortened if long.
pub fn shown(entry: &Path) -> String {
    const MAX_DISPLAYED: usize = 200;
    let text = entry.to_string_lossy();
    let mut shown: String = text
        .chars()
        .take(MAX_DISPLAYED)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().nth(MAX_DISPLAYED).is_some() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_leads_out_or_too_deep_is_refused() {
        let deep = "d/".repeat(MAX_DEPTH);
        let cases: &[(&str, Option<&str>)] = &[
            ("a/b", Some("a/b")),
            ("./a//b/", Some("a/b")),
            ("/etc/passwd", Some("etc/passwd")),
            ("//a", Some("a")),
            ("./", Some("")),
            ("..", None),
            ("a/../b", None),
            ("a/..", None),
            ("/..", None),
            ("...", Some("...")),
            (&format!("{deep}x"), None),
            ("a\0b", None),
            (
                &"x".repeat(MAX_NAME_BYTES),
                Some(&"x".repeat(MAX_NAME_BYTES)),
            ),
            (&"x".repeat(MAX_NAME_BYTES + 1), None),
        ];
        for (name, inside) in cases {
            let found = relative(Path::new(name)).ok();
            assert_eq!(found.as_deref(), inside.map(Path::new), "{name}");
        }
        assert!(relative(Path::new(&deep)).is_ok());
        assert!(relative(Path::new(&"x".repeat(MAX_PATH_BYTES + 1))).is_err());
    }

    #[test]
    fn a_name_in_a_message_is_one_short_line() {
        let shown = |name: &str| shown(Path::new(name));
        assert_eq!(shown("bin/été"), "bin/été");
        assert_eq!(shown("a\nb\u{1b}[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(shown(&"x".repeat(5000)).chars().count(), 201);
    }

    proptest! {
        #[test]
        fn no_name_leads_out(name in "[./a\u{0}é-]{0,40}") {
            if let Ok(inside) = relative(Path::new(&name)) {
                prop_assert!(inside.components().all(|part| matches!(part, Component::Normal(_))));
            }
        }
    }
}
