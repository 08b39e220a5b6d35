//! A path whose directory is stored once for all files in it: an output may have a million files
//! below long names.
//!
//! Input: a directory and a name, or a whole path. Output: the path, when it is needed.

use std::fmt;
use std::sync::Arc;

use super::path;

/// A relative path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPath {
    /// Empty for the root.
    dir: Arc<str>,
    name: Box<str>,
}

impl SharedPath {
    /// The path of `name` in `dir`.
    pub fn new(dir: &Arc<str>, name: &str) -> Self {
        Self {
            dir: dir.clone(),
            name: name.into(),
        }
    }

    /// The last part of the path.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A path whose directory is shared with nothing.
    pub fn whole(path: &str) -> Self {
        let (dir, name) = path::split(path);
        Self::new(&dir.into(), name)
    }
}

/// Shares the directories of paths that come directory by directory.
#[derive(Debug, Default)]
pub struct PathSharer {
    /// The directory of the last path.
    dir: Arc<str>,
}

impl PathSharer {
    /// The path, and the bytes of its directory if it is another than before.
    pub fn share(&mut self, path: &str) -> (SharedPath, usize) {
        let (dir, name) = path::split(path);
        let is_other = *dir != *self.dir;
        if is_other {
            self.dir = dir.into();
        }
        let bytes = if is_other { dir.len() } else { 0 };
        (SharedPath::new(&self.dir, name), bytes)
    }
}

impl fmt::Display for SharedPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&path::below(&self.dir, &self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_its_directory_and_its_name() {
        for path in ["", "a", "a/b", "a/b/c"] {
            assert_eq!(SharedPath::whole(path).to_string(), path);
        }
        let dir: Arc<str> = "a/b".into();
        assert_eq!(SharedPath::new(&dir, "c"), SharedPath::whole("a/b/c"));
        assert_eq!(SharedPath::new(&"".into(), "c").to_string(), "c");
        let mut sharer = PathSharer::default();
        for (path, bytes) in [("x", 0), ("a/b/c", 3), ("a/b/d", 0), ("a/e", 1), ("x", 0)] {
            assert_eq!(sharer.share(path), (SharedPath::whole(path), bytes));
        }
    }
}
