//! The table of a container's mounts: what it sees at which path.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;

use arvados_client::ids::Pdh;
use arvados_client::manifest::FileTree;

use super::path::ContainerPath;

/// All mounts by target, except certificates. Content copied into the output directory is not a
/// mount: there the files count as they are at the end.
#[derive(Debug, Clone, Default)]
pub struct MountTable {
    pub(super) mounts: BTreeMap<ContainerPath, MountEntry>,
}

/// One mount.
#[derive(Debug, Clone)]
pub struct MountEntry {
    pub source: MountSource,
    /// Whether the content is excluded from the output.
    pub excluded: bool,
}

/// Source of a mount's content.
#[derive(Debug, Clone)]
pub enum MountSource {
    /// A directory or file in the scratch directory, writable for the container.
    Host(PathBuf),
    /// A read-only directory or file of a collection.
    Keep {
        collection: Pdh,
        tree: Arc<FileTree>,
        path: String,
    },
    /// Content that must never leave the node.
    Secret,
}

impl MountTable {
    /// The mount at exactly this path.
    pub fn at(&self, target: &ContainerPath) -> Option<&MountEntry> {
        self.mounts.get(target)
    }

    /// The innermost mount that contains a path.
    pub fn enclosing(&self, path: &ContainerPath) -> Option<(ContainerPath, &MountEntry)> {
        path.and_above()
            .find_map(|target| self.at(&target).map(|entry| (target, entry)))
    }

    /// The targets strictly below a path, sorted.
    pub fn below<'a>(&'a self, path: &ContainerPath) -> impl Iterator<Item = &'a ContainerPath> {
        let path = path.clone();
        self.mounts
            .range((Bound::Excluded(path.clone()), Bound::Unbounded))
            .map(|(target, _)| target)
            .skip_while({
                let path = path.clone();
                // In sorted order, "/a-b" is between "/a" and "/a/b".
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

    fn view(targets: &[&str]) -> MountTable {
        let entry = |_| MountEntry {
            source: MountSource::Secret,
            excluded: false,
        };
        MountTable {
            mounts: targets.iter().map(|t| (path(t), entry(t))).collect(),
        }
    }

    #[test]
    fn the_innermost_mount_decides() {
        let view = view(&["/a", "/a/b", "/ab"]);
        let enclosing = |p| {
            view.enclosing(&path(p))
                .map(|(target, _)| target.to_string())
        };
        assert_eq!(enclosing("/a/b/c").as_deref(), Some("/a/b"));
        assert_eq!(enclosing("/a/bc").as_deref(), Some("/a"));
        assert_eq!(enclosing("/ab").as_deref(), Some("/ab"));
        assert_eq!(enclosing("/abc"), None);
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
