//! Normalizes names within an archive. They never become paths of this node.

use std::path::{Component, Path};

/// `./a//b` as `a/b`; `None` for a name that leaves the archive.
pub fn normal(name: &[u8]) -> Option<String> {
    resolve(Path::new(""), std::str::from_utf8(name).ok()?)
}

pub fn resolve(base: &Path, name: &str) -> Option<String> {
    let mut parts: Vec<&str> = base.iter().filter_map(|p| p.to_str()).collect();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => parts.clear(),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_relative_to_the_archive() {
        let cases: &[(&str, &str, Option<&str>)] = &[
            ("", "./a//b/", Some("a/b")),
            ("x", "../y/layer.tar", Some("y/layer.tar")),
            ("", "../etc/passwd", None),
            ("a", "/b", Some("b")),
            ("", "./", None),
        ];
        for (base, name, expected) in cases {
            assert_eq!(
                resolve(Path::new(base), name).as_deref(),
                *expected,
                "{base} {name}"
            );
        }
    }
}
