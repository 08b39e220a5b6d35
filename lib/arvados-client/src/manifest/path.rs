//! Paths inside a collection: `dir/sub/file`, with no leading `./` or `/`; the root is the empty
//! path.

use super::error::{ManifestError, Problem};

/// The path of `name` in the stream `stream` (`.` or `./dir`).
pub(super) fn join(stream: &str, name: &str) -> String {
    below(stream.strip_prefix("./").unwrap_or_default(), name)
}

/// The path of `name` in the directory `dir`.
pub(super) fn below(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

/// Directory and last name of a path.
pub(super) fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

/// The directories above `path`, nearest first, without the root.
pub(super) fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |p| Some(split(p).0))
        .skip(1)
        .take_while(|p| !p.is_empty())
}

/// Checks that every part between slashes can be the name of a file or directory.
pub(super) fn check_names(path: &str) -> Result<(), Problem> {
    for part in path.split('/') {
        match part {
            "" => return Err(Problem::EmptyName),
            "." | ".." => return Err(Problem::DotName),
            _ => {}
        }
    }
    Ok(())
}

/// Normalizes a path as users write it (`./a//b/`, `/a/b`, `.`).
pub(super) fn clean(path: &str) -> Result<String, ManifestError> {
    let mut clean = String::with_capacity(path.len());
    for part in path.split('/') {
        match part {
            "" | "." => continue,
            ".." => {
                return Err(ManifestError::Path {
                    path: path.to_owned(),
                    problem: Problem::DotName,
                });
            }
            _ => {}
        }
        if !clean.is_empty() {
            clean.push('/');
        }
        clean.push_str(part);
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned() {
        let cases = [
            ("", ""),
            (".", ""),
            ("/", ""),
            ("./a//b/", "a/b"),
            ("/a/./b", "a/b"),
            ("...", "..."),
        ];
        for (path, expected) in cases {
            assert_eq!(clean(path).unwrap(), expected);
        }
        assert!(clean("a/../b").is_err());
    }

    #[test]
    fn ancestors_are_the_directories_above() {
        assert_eq!(ancestors("a/b/c").collect::<Vec<_>>(), ["a/b", "a"]);
        assert_eq!(ancestors("a").count(), 0);
        assert_eq!(ancestors("").count(), 0);
    }
}
