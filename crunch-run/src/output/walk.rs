//! Finding what a path means to the container: mounts first, then what is in them, with links
//! followed inside the container's own view.

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use arvados_client::manifest::{self, FileTree};

use super::error::OutputError;
use super::host::{self, FileFacts};
use super::trees::Trees;
use crate::mounts::{ContainerPath, Source, View};

/// All that the container saw.
#[derive(Debug)]
pub struct Sight {
    pub view: Arc<View>,
    pub trees: Trees,
}

/// What is at a path.
#[derive(Debug)]
pub enum Node {
    HostDirectory {
        place: HostPlace,
        fd: OwnedFd,
    },
    HostFile {
        place: HostPlace,
        facts: FileFacts,
    },
    HostSpecial {
        mode: u32,
    },
    /// A directory or file of a collection.
    Keep {
        tree: Arc<FileTree>,
        path: String,
        is_dir: bool,
    },
    /// What must not be in the output, whatever it is.
    Omitted,
    /// A directory that exists only because something is mounted below it.
    Between,
}

impl Node {
    fn is_directory(&self) -> bool {
        match self {
            Self::HostDirectory { .. } | Self::Omitted | Self::Between => true,
            Self::Keep { is_dir, .. } => *is_dir,
            Self::HostFile { .. } | Self::HostSpecial { .. } => false,
        }
    }
}

/// Where something is on this node: a path below a mount's own.
#[derive(Debug, Clone)]
pub struct HostPlace {
    pub root: Arc<PathBuf>,
    pub relative: String,
}

impl HostPlace {
    pub fn join(&self, name: &str) -> Self {
        Self {
            root: self.root.clone(),
            relative: match self.relative.as_str() {
                "" => name.to_owned(),
                above => format!("{above}/{name}"),
            },
        }
    }
}

/// A name, before links are followed.
#[derive(Debug)]
pub enum Look {
    Nothing,
    Link(Vec<u8>),
    Node(Node),
}

/// What is at a path whose directories are no links.
pub fn look(sight: &Sight, path: &ContainerPath) -> Result<Look, OutputError> {
    let Sight { view, trees } = sight;
    let nothing = || match view.below(path).next() {
        Some(_) => Look::Node(Node::Between),
        None => Look::Nothing,
    };
    let Some((target, seen)) = view.around(path) else {
        return Ok(nothing());
    };
    let relative = path.below(&target).unwrap_or_default();
    if seen.excluded {
        return Ok(Look::Node(Node::Omitted));
    }
    match &seen.source {
        Source::Secret => Ok(Look::Node(Node::Omitted)),
        Source::Keep {
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
                Some(entry) => Look::Node(Node::Keep {
                    is_dir: entry == manifest::Entry::Directory,
                    tree,
                    path,
                }),
            })
        }
        Source::Host(root) => {
            let found = host::entry_below(root, relative).map_err(|source| read(path, source))?;
            let place = HostPlace {
                root: Arc::new(root.clone()),
                relative: relative.to_owned(),
            };
            Ok(match found {
                None => nothing(),
                Some(entry) => of_entry(entry, place),
            })
        }
    }
}

/// The same for an entry found by reading its directory.
pub fn of_entry(entry: host::Entry, place: HostPlace) -> Look {
    Look::Node(match entry {
        host::Entry::Link(target) => return Look::Link(target),
        host::Entry::Directory(fd) => Node::HostDirectory { place, fd },
        host::Entry::File(facts) => Node::HostFile { place, facts },
        host::Entry::Special(mode) => Node::HostSpecial { mode },
    })
}

pub fn read(path: &ContainerPath, source: io::Error) -> OutputError {
    OutputError::Read {
        path: path.to_string(),
        source,
    }
}

/// Follows the link `link`, which says `target`, to its end: the path there without links, and what
/// it is. Every link on the way is taken off `hops`.
pub fn follow(
    sight: &Sight,
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
        match look(sight, &next)? {
            Look::Node(node) if is_last || node.is_directory() => {
                here = next;
                arrived = Some(node);
            }
            Look::Link(target) => {
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
            Look::Node(_) | Look::Nothing => {
                // The whole of what was looked for, not only the part that is missing.
                let rest = todo
                    .iter()
                    .filter(|name| !matches!(name.as_str(), "" | "."));
                let target = rest.fold(next.clone(), |path, name| path.join(name));
                return Err(lost(&sight.view, link, &next, target));
            }
        }
    }
    let node = match arrived {
        Some(node) => Ok(node),
        // The last step was up.
        None => match look(sight, &here)? {
            Look::Node(node) => Ok(node),
            Look::Nothing | Look::Link(_) => Err(lost(&sight.view, link, &here, here.clone())),
        },
    }?;
    match node {
        Node::Between => Err(OutputError::Outside {
            link: link.to_string(),
            target: here.to_string(),
        }),
        node => Ok((here, node)),
    }
}

fn lost(
    view: &View,
    link: &ContainerPath,
    missing: &ContainerPath,
    target: ContainerPath,
) -> OutputError {
    let (link, target) = (link.to_string(), target.to_string());
    match view.around(missing) {
        Some(_) => OutputError::Dangling { link, target },
        None => OutputError::Outside { link, target },
    }
}
