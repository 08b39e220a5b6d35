//! Walking the output as the container sees it and deciding what becomes of every path.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arvados_client::manifest::FileTree;

use super::error::OutputError;
use super::glob::Globs;
use super::host::{self, FileFacts};
use super::remarks::Remarks;
use super::walk::{self, HostPlace, Look, Node, Sight};
use crate::mounts::{ContainerPath, View};

/// Links that may lead to each other, or be passed on the way down, before it is called a cycle.
const MOST_HOPS: u32 = 11;
/// Every level costs an open directory.
const MOST_LEVELS: usize = 200;
/// More make a manifest that no server accepts.
const MOST_ENTRIES: usize = 2_000_000;

/// What the output consists of. Paths are relative to the output.
#[derive(Debug, Default)]
pub struct Found {
    /// To be uploaded, in the order of the walk.
    pub files: Vec<LocalFile>,
    /// Other names of files above: path and index.
    pub aliases: Vec<(String, usize)>,
    pub spliced: Vec<Spliced>,
    /// Directories that are to get a `.keep`.
    pub empty: Vec<String>,
    /// Directories that exist, whatever else is in them.
    pub directories: Vec<String>,
    pub remarks: Remarks,
}

/// A file of this node.
#[derive(Debug)]
pub struct LocalFile {
    pub path: String,
    pub place: HostPlace,
    pub size: u64,
}

/// A file or directory of a collection, taken over by reference.
#[derive(Debug)]
pub struct Spliced {
    pub path: String,
    pub tree: Arc<FileTree>,
    pub inner: String,
}

/// Walks everything the container sees at `output`.
pub fn scan(sight: &Sight, output: &ContainerPath, globs: &Globs) -> Result<Found, OutputError> {
    let mut walker = Walker {
        sight,
        view: &sight.view,
        globs,
        found: Found::default(),
        known: HashMap::new(),
        stack: Vec::new(),
        entries: 0,
    };
    if let Look::Node(node) = walk::look(sight, output)? {
        walker.visit(output, "", node, MOST_HOPS)?;
    }
    walker.found.remarks.finish();
    Ok(walker.found)
}

struct Walker<'a> {
    sight: &'a Sight,
    view: &'a View,
    globs: &'a Globs,
    found: Found,
    /// Files to be uploaded by device and inode.
    known: HashMap<(u64, u64), usize>,
    /// The directories being walked, to recognise a link to one of them.
    stack: Vec<ContainerPath>,
    entries: usize,
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

impl Walker<'_> {
    /// Takes `node`, which the container sees at `here`, into the output as `dest`.
    fn visit(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        node: Node,
        hops: u32,
    ) -> Result<(), OutputError> {
        match node {
            Node::Omitted | Node::Between => {}
            Node::HostDirectory { place, fd } => {
                self.walk_directory(here, dest, place, fd, hops)?
            }
            Node::Keep {
                tree,
                path,
                is_dir: true,
            } => self.visit_collection(here, dest, &tree, path)?,
            Node::Keep { tree, path, .. } => {
                if self.takes_file(dest)? {
                    self.splice(dest, &tree, path);
                }
                return Ok(());
            }
            Node::HostFile { place, facts } => {
                if self.takes_file(dest)? {
                    self.add_file(dest, place, facts);
                }
                return Ok(());
            }
            Node::HostSpecial { mode } => {
                let what = host::special_word(mode);
                let remarks = &mut self.found.remarks;
                remarks.add(|| format!("{here} is not in the output because it is {what}"));
                return Ok(());
            }
        }
        self.visit_mounts_below(here, dest, hops)
    }

    fn takes_file(&mut self, dest: &str) -> Result<bool, OutputError> {
        let takes = !dest.is_empty() && self.globs.wants_file(dest);
        if takes {
            self.count(1)?;
        }
        Ok(takes)
    }

    /// A file with several names is uploaded once.
    fn add_file(&mut self, dest: &str, place: HostPlace, facts: FileFacts) {
        let path = dest.to_owned();
        match self.known.entry(facts.id) {
            Entry::Occupied(known) => self.found.aliases.push((path, *known.get())),
            Entry::Vacant(unknown) => {
                unknown.insert(self.found.files.len());
                let size = facts.size;
                self.found.files.push(LocalFile { path, place, size });
            }
        }
    }

    /// The mounts inside the directory `here`.
    fn visit_mounts_below(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        hops: u32,
    ) -> Result<(), OutputError> {
        for target in self.view.next_below(here) {
            let dest = join(dest, target.below(here).unwrap_or_default());
            if !self.globs.wants_file(&dest) && !self.globs.could_want_below(&dest) {
                let remarks = &mut self.found.remarks;
                remarks.add(|| {
                    format!(
                        "mount {target} is not in the output because no output_glob matches in it"
                    )
                });
                continue;
            }
            if let Look::Node(node) = walk::look(self.sight, target)? {
                self.visit(target, &dest, node, hops)?;
            }
        }
        Ok(())
    }

    /// A directory of a collection, without what is hidden by mounts inside it.
    fn visit_collection(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        tree: &Arc<FileTree>,
        path: String,
    ) -> Result<(), OutputError> {
        let hidden = self.view.next_below(here);
        let part;
        let files = match path.as_str() {
            "" => tree,
            path => {
                part = Arc::new(tree.subtree(path)?);
                &part
            }
        };
        if hidden.is_empty() && self.globs.is_everything() {
            self.count(files.files().count())?;
            self.splice(dest, tree, path);
            return Ok(());
        }
        for (file, _) in files.files() {
            let seen_at = here.join(&file);
            let is_hidden = hidden.iter().any(|h| seen_at == **h || seen_at.is_below(h));
            let dest = join(dest, &file);
            if !is_hidden && self.globs.wants_file(&dest) {
                self.count(1)?;
                self.splice(&dest, tree, join(&path, &file));
            }
        }
        Ok(())
    }

    /// A directory of this node. What is mounted over something in it comes later.
    fn walk_directory(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        place: HostPlace,
        fd: OwnedFd,
        hops: u32,
    ) -> Result<(), OutputError> {
        self.count(1)?;
        if self.stack.len() >= MOST_LEVELS {
            return Err(OutputError::TooDeep {
                path: here.to_string(),
                limit: MOST_LEVELS,
            });
        }
        let left = MOST_ENTRIES - self.entries;
        let names = host::names(&fd, left).map_err(|source| walk::read(here, source))?;
        let names = names.map_err(|name| OutputError::NotUtf8 {
            path: here.join(&name).to_string(),
        })?;
        if names.len() > left {
            return self.count(names.len());
        }
        if !dest.is_empty() {
            self.note_directory(dest, names.is_empty());
        }
        self.stack.push(here.clone());
        for name in names {
            let path = here.join(&name);
            if self.view.at(&path).is_none() {
                self.visit_name(&path, &join(dest, &name), &place, &fd, &name, hops)?;
            }
        }
        self.stack.pop();
        Ok(())
    }

    fn note_directory(&mut self, dest: &str, is_empty: bool) {
        if is_empty && self.globs.wants_file(&join(dest, ".keep")) {
            self.found.empty.push(dest.to_owned());
        } else if self.globs.wants_directory(dest) {
            self.found.directories.push(dest.to_owned());
        }
    }

    fn visit_name(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        dir: &HostPlace,
        fd: &OwnedFd,
        name: &str,
        mut hops: u32,
    ) -> Result<(), OutputError> {
        let is_wanted = self.globs.wants_file(dest)
            || self.globs.wants_directory(dest)
            || self.globs.could_want_below(dest);
        if !is_wanted {
            return Ok(());
        }
        let entry = host::entry(fd, name).map_err(|source| walk::read(here, source))?;
        match entry.map(|entry| walk::of_entry(entry, dir.join(name))) {
            Some(Look::Node(Node::HostDirectory { place, fd })) => {
                // Not `visit`: mounts below are the business of where the walk began.
                self.walk_directory(here, dest, place, fd, hops)
            }
            Some(Look::Node(node)) => self.visit(here, dest, node, hops),
            Some(Look::Link(target)) => {
                let (end, node) = walk::follow(self.sight, here, &target, &mut hops)?;
                if self.stack.contains(&end) {
                    return Err(OutputError::Cycle {
                        link: here.to_string(),
                    });
                }
                self.visit(&end, dest, node, hops)
            }
            Some(Look::Nothing) | None => Ok(()),
        }
    }

    fn splice(&mut self, dest: &str, tree: &Arc<FileTree>, inner: String) {
        self.found.spliced.push(Spliced {
            path: dest.to_owned(),
            tree: tree.clone(),
            inner,
        });
    }

    fn count(&mut self, more: usize) -> Result<(), OutputError> {
        self.entries += more;
        match self.entries > MOST_ENTRIES {
            true => Err(OutputError::TooMany {
                limit: MOST_ENTRIES,
            }),
            false => Ok(()),
        }
    }
}
