//! What the container sees at which path: the table of its mounts.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use arvados_client::ids::Pdh;
use arvados_client::manifest::FileTree;

use super::path::ContainerPath;

/// Every mount by its target, except what is put there by ourselves (certificates). What was copied
/// into the output directory is not a mount of its own: there the files count as they are at the end.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub(super) mounts: BTreeMap<ContainerPath, Seen>,
}

/// One mount.
#[derive(Debug, Clone)]
pub struct Seen {
    pub source: Source,
    /// Its own content never becomes part of the output.
    pub excluded: bool,
}

/// Where the content of a mount is.
#[derive(Debug, Clone)]
pub enum Source {
    /// A directory or file in our scratch directory that the container may have written to.
    Host(PathBuf),
    /// A directory or file of a collection that nobody can have changed.
    Keep {
        collection: Pdh,
        tree: Arc<FileTree>,
        path: String,
    },
    /// Content that must never leave the node.
    Secret,
}

impl View {
    /// What is mounted at exactly this place.
    pub fn at(&self, target: &ContainerPath) -> Option<&Seen> {
        self.mounts.get(target)
    }

    /// The mount in which a path lies.
    pub fn around(&self, path: &ContainerPath) -> Option<(ContainerPath, &Seen)> {
        path.and_above()
            .find_map(|target| self.at(&target).map(|seen| (target, seen)))
    }

    /// The targets strictly below a path, sorted.
    pub fn below<'a>(&'a self, path: &ContainerPath) -> impl Iterator<Item = &'a ContainerPath> {
        let path = path.clone();
        self.mounts
            .range((Bound::Excluded(path.clone()), Bound::Unbounded))
            .map(|(target, _)| target)
            .skip_while({
                let path = path.clone();
                // Between "/a" and "/a/b" may be "/a-b".
                move |target| !target.is_below(&path)
            })
            .take_while(move |target| target.is_below(&path))
    }

    /// The targets below a path that are not inside another mount below it.
    pub fn next_below<'a>(&'a self, path: &ContainerPath) -> Vec<&'a ContainerPath> {
        let is_outermost = |target: &&ContainerPath| {
            let mut between = target.parent();
            while between.is_below(path) {
                if self.at(&between).is_some() {
                    return false;
                }
                between = between.parent();
            }
            true
        };
        self.below(path).filter(is_outermost).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> ContainerPath {
        ContainerPath::parse(text).unwrap()
    }

    fn view(targets: &[&str]) -> View {
        let seen = |_| Seen {
            source: Source::Secret,
            excluded: false,
        };
        View {
            mounts: targets.iter().map(|t| (path(t), seen(t))).collect(),
        }
    }

    #[test]
    fn the_innermost_mount_decides() {
        let view = view(&["/a", "/a/b", "/ab"]);
        let around = |p| view.around(&path(p)).map(|(target, _)| target.to_string());
        assert_eq!(around("/a/b/c").as_deref(), Some("/a/b"));
        assert_eq!(around("/a/bc").as_deref(), Some("/a"));
        assert_eq!(around("/ab").as_deref(), Some("/ab"));
        assert_eq!(around("/abc"), None);
    }

    #[test]
    fn mounts_below_are_found_past_similar_names() {
        let view = view(&["/a", "/a-b", "/a/b", "/a/b/c", "/a/d", "/b"]);
        let below: Vec<&str> = view.below(&path("/a")).map(|t| t.as_str()).collect();
        assert_eq!(below, ["/a/b", "/a/b/c", "/a/d"]);
        let next: Vec<&str> = view
            .next_below(&path("/a"))
            .iter()
            .map(|t| t.as_str())
            .collect();
        assert_eq!(next, ["/a/b", "/a/d"]);
        assert_eq!(view.below(&ContainerPath::root()).count(), 6);
    }
}
