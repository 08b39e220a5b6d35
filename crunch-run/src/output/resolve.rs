//! Resolves a path as the container sees it: mounts first, then their content, with links followed
//! inside the container's file system.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use arvados_client::manifest::{self, FileTree, SharedPath};

use super::collections::MountedCollections;
use super::error::OutputError;
use super::host_fs::{self, FileStat};
use crate::inputs::{ContainerPath, MountSource, MountTable};

/// The container's file system: its mounts and the collections in them.
#[derive(Debug)]
pub struct ContainerFs {
    pub view: Arc<MountTable>,
    pub trees: MountedCollections,
}

/// The object at a path.
#[derive(Debug)]
pub enum Node {
    HostDirectory {
        host: HostPath,
        fd: OwnedFd,
    },
    HostFile {
        host: HostPath,
        stat: FileStat,
    },
    HostSpecial {
        mode: u32,
    },
    Keep {
        tree: Arc<FileTree>,
        path: String,
        is_dir: bool,
    },
    /// Content that is excluded from the output.
    Omitted,
    /// A directory that exists only because something is mounted below it.
    Implicit,
}

impl Node {
    fn is_directory(&self) -> bool {
        match self {
            Self::HostDirectory { .. } | Self::Omitted | Self::Implicit => true,
            Self::Keep { is_dir, .. } => *is_dir,
            Self::HostFile { .. } | Self::HostSpecial { .. } => false,
        }
    }
}

/// A path on this node, relative to the root of a mount.
#[derive(Debug, Clone)]
pub struct HostPath {
    pub root: Arc<PathBuf>,
    pub relative: SharedPath,
}

/// Result of a lookup before links are followed.
#[derive(Debug)]
pub enum Lookup {
    Absent,
    Link(Vec<u8>),
    Node(Node),
}

/// Looks up a path whose directories are not links.
pub fn lookup(fs: &ContainerFs, path: &ContainerPath) -> Result<Lookup, OutputError> {
    let ContainerFs { view, trees } = fs;
    let nothing = || match view.below(path).next() {
        Some(_) => Lookup::Node(Node::Implicit),
        None => Lookup::Absent,
    };
    let Some((target, entry)) = view.enclosing(path) else {
        return Ok(nothing());
    };
    let relative = path.below(&target).unwrap_or_default();
    if entry.excluded {
        return Ok(Lookup::Node(Node::Omitted));
    }
    match &entry.source {
        MountSource::Secret => Ok(Lookup::Node(Node::Omitted)),
        MountSource::Keep {
            collection,
            tree,
            path: part,
        } => {
            let tree = trees.tree(collection, tree, &target)?;
            let path = match (part.as_str(), relative) {
                (part, "") => part.to_owned(),
                ("", relative) => relative.to_owned(),
                (part, relative) => format!("{part}/{relative}"),
            };
            Ok(match tree.lookup(&path) {
                None => nothing(),
                Some(entry) => Lookup::Node(Node::Keep {
                    is_dir: entry == manifest::Entry::Directory,
                    tree,
                    path,
                }),
            })
        }
        MountSource::Host(root) => {
            let plan =
                host_fs::entry_below(root, relative).map_err(|source| read_error(path, source))?;
            let host = HostPath {
                root: Arc::new(root.clone()),
                relative: SharedPath::whole(relative),
            };
            Ok(match plan {
                None => nothing(),
                Some(entry) => lookup_entry(entry, host),
            })
        }
    }
}

/// Converts a directory entry into a lookup result.
pub fn lookup_entry(entry: host_fs::Entry, host: HostPath) -> Lookup {
    Lookup::Node(match entry {
        host_fs::Entry::Link(target) => return Lookup::Link(target),
        host_fs::Entry::Directory(fd) => Node::HostDirectory { host, fd },
        host_fs::Entry::File(stat) => Node::HostFile { host, stat },
        host_fs::Entry::Special(mode) => Node::HostSpecial { mode },
    })
}

pub fn read_error(path: &ContainerPath, source: io::Error) -> OutputError {
    OutputError::Read {
        path: path.to_string(),
        source,
    }
}

/// Follows the link `link` with content `target` to its end. Returns the path without links and its
/// node. Each followed link decrements `hops`.
pub fn follow_link(
    fs: &ContainerFs,
    link: &ContainerPath,
    target: &[u8],
    hops: &mut u32,
) -> Result<(ContainerPath, Node), OutputError> {
    let text = |bytes: &[u8]| match str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => Err(OutputError::NotUtf8 {
            path: link.to_string(),
        }),
    };
    let names = |text: &str| -> Vec<String> { text.split('/').map(str::to_owned).collect() };
    let mut hop = || match hops.checked_sub(1) {
        Some(left) => {
            *hops = left;
            Ok(())
        }
        None => Err(OutputError::Cycle {
            link: link.to_string(),
        }),
    };

    hop()?;
    let first = text(target)?;
    let mut here = match first.starts_with('/') {
        true => ContainerPath::root(),
        false => link.parent(),
    };
    let mut todo: VecDeque<String> = names(&first).into();
    let mut arrived = None;
    while let Some(name) = todo.pop_front() {
        match name.as_str() {
            "" | "." => continue,
            ".." => {
                here = here.parent();
                arrived = None;
                continue;
            }
            _ => {}
        }
        let next = here.join(&name);
        let is_last = todo.iter().all(|name| matches!(name.as_str(), "" | "."));
        match lookup(fs, &next)? {
            Lookup::Node(node) if is_last || node.is_directory() => {
                here = next;
                arrived = Some(node);
            }
            Lookup::Link(target) => {
                hop()?;
                let target = text(&target)?;
                if target.starts_with('/') {
                    here = ContainerPath::root();
                }
                arrived = None;
                for name in names(&target).into_iter().rev() {
                    todo.push_front(name);
                }
            }
            Lookup::Node(_) | Lookup::Absent => {
                // The error names the whole target, not only the missing part.
                let rest = todo
                    .iter()
                    .filter(|name| !matches!(name.as_str(), "" | "."));
                let target = rest.fold(next.clone(), |path, name| path.join(name));
                return Err(dangling_link(&fs.view, link, &next, target));
            }
        }
    }
    let node = match arrived {
        Some(node) => Ok(node),
        // The last step was `..`.
        None => match lookup(fs, &here)? {
            Lookup::Node(node) => Ok(node),
            Lookup::Absent | Lookup::Link(_) => {
                Err(dangling_link(&fs.view, link, &here, here.clone()))
            }
        },
    }?;
    match node {
        Node::Implicit => Err(OutputError::Outside {
            link: link.to_string(),
            target: here.to_string(),
        }),
        node => Ok((here, node)),
    }
}

fn dangling_link(
    view: &MountTable,
    link: &ContainerPath,
    missing: &ContainerPath,
    target: ContainerPath,
) -> OutputError {
    let (link, target) = (link.to_string(), target.to_string());
    match view.enclosing(missing) {
        Some(_) => OutputError::Dangling { link, target },
        None => OutputError::Outside { link, target },
    }
}
