//! A path as the container sees it: absolute and clean, never a path of this node.

use std::fmt;

/// An absolute path without `.`, `..`, doubled or trailing slashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerPath(
    /// Empty for the root, so that joining needs no special case.
    String,
);

/// Why a text is not a valid path. The text follows a name and a colon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathProblem {
    #[error("it does not begin with /")]
    NotAbsolute,
    #[error("it has a part \"..\"")]
    Parent,
    #[error("it has a zero byte")]
    ZeroByte,
    #[error("it is the root of the container")]
    Root,
}

impl ContainerPath {
    pub fn root() -> Self {
        Self(String::new())
    }

    pub fn parse(text: &str) -> Result<Self, PathProblem> {
        if !text.starts_with('/') {
            return Err(PathProblem::NotAbsolute);
        }
        if text.contains('\0') {
            return Err(PathProblem::ZeroByte);
        }
        let mut path = Self::root();
        for part in text.split('/') {
            match part {
                "" | "." => {}
                ".." => return Err(PathProblem::Parent),
                name => path = path.join(name),
            }
        }
        Ok(path)
    }

    /// Like [`parse`](Self::parse), for mount targets: the root is refused.
    pub fn parse_target(text: &str) -> Result<Self, PathProblem> {
        let path = Self::parse(text)?;
        match path.0.is_empty() {
            true => Err(PathProblem::Root),
            false => Ok(path),
        }
    }

    /// Appends `name`: one part, or several clean ones.
    pub fn join(&self, name: &str) -> Self {
        Self(format!("{}/{name}", self.0))
    }

    /// The parent; the root is its own parent.
    pub fn parent(&self) -> Self {
        let end = self.0.rfind('/').unwrap_or(0);
        Self(self.0[..end].to_owned())
    }

    /// This path relative to `ancestor`, if it is strictly below it.
    pub fn below(&self, ancestor: &Self) -> Option<&str> {
        self.0.strip_prefix(&ancestor.0)?.strip_prefix('/')
    }

    pub fn is_below(&self, ancestor: &Self) -> bool {
        self.below(ancestor).is_some()
    }

    /// The directory with a file system of the kernel that this path is in. Shared memory below
    /// /dev is ordinary space.
    pub fn in_system_directory(&self) -> Option<&'static str> {
        let is_in = |dir: &str| self.0 == dir || self.0.starts_with(&format!("{dir}/"));
        let mut all = ["/proc", "/sys", "/dev"].into_iter();
        all.find(|dir| is_in(dir)).filter(|_| !is_in("/dev/shm"))
    }

    /// This path and its ancestors, nearest first, without the root.
    pub fn and_above(&self) -> impl Iterator<Item = Self> + use<> {
        std::iter::successors(Some(self.clone()), |path| Some(path.parent()))
            .take_while(|path| !path.0.is_empty())
    }

    pub fn depth(&self) -> usize {
        self.0.matches('/').count()
    }

    pub fn as_str(&self) -> &str {
        match self.0.as_str() {
            "" => "/",
            path => path,
        }
    }
}

impl fmt::Display for ContainerPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_clean_absolute_paths_remain() {
        let cases = [
            ("/out", Ok("/out")),
            ("//out/./a//b/", Ok("/out/a/b")),
            ("/", Ok("/")),
            ("/...", Ok("/...")),
            ("out", Err(PathProblem::NotAbsolute)),
            ("", Err(PathProblem::NotAbsolute)),
            ("/out/../etc", Err(PathProblem::Parent)),
            ("/o\0t", Err(PathProblem::ZeroByte)),
        ];
        for (text, expected) in cases {
            let path = ContainerPath::parse(text);
            let path = path.as_ref().map(ContainerPath::as_str).map_err(|p| *p);
            assert_eq!(path, expected, "{text:?}");
        }
        assert_eq!(ContainerPath::parse_target("//"), Err(PathProblem::Root));
    }

    #[test]
    fn below_counts_whole_names_only() {
        let path = |text| ContainerPath::parse(text).unwrap();
        assert_eq!(path("/out/a/b").below(&path("/out")), Some("a/b"));
        assert_eq!(path("/out").below(&path("/out")), None);
        assert_eq!(path("/output").below(&path("/out")), None);
        assert_eq!(path("/out").below(&ContainerPath::root()), Some("out"));
    }

    #[test]
    fn the_way_up_ends_before_the_root() {
        let path = ContainerPath::parse("/a/b/c").unwrap();
        let above: Vec<String> = path.and_above().map(|p| p.to_string()).collect();
        assert_eq!(above, ["/a/b/c", "/a/b", "/a"]);
        assert_eq!(path.depth(), 3);
        assert_eq!(ContainerPath::root().parent(), ContainerPath::root());
    }
}
