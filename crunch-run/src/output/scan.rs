//! Walks the output as the container sees it and decides on every path. In: mounts and globs. Out:
//! an [`OutputPlan`].

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use arvados_client::manifest::{FileTree, PathSharer, SharedPath};

use super::error::OutputError;
use super::glob::Globs;
use super::host_fs::{self, FileStat};
use super::left_out_report::{BadEntries, LeftOutReport};
use super::resolve::{self, ContainerFs, HostPath, Lookup, Node};
use crate::inputs::{ContainerPath, MountTable};

/// Maximum number of links followed for one path. More count as a cycle.
const MAX_LINK_HOPS: u32 = 11;
/// Maximum depth of directories. Every level keeps a directory open.
const MAX_DEPTH: usize = 200;
/// Maximum number of remarks for the log.
const MAX_REMARKS: usize = 100;
/// Maximum number of entries. More make a manifest that no server accepts.
const MAX_ENTRIES: usize = 2_000_000;
/// Maximum number of bytes of all names, and of the paths of directories, which the plan holds.
const MAX_NAME_BYTES: usize = 64 << 20;

/// The files and directories of the output. Paths are relative to the output.
#[derive(Debug, Default)]
pub struct OutputPlan {
    /// To be uploaded, in the order of the walk.
    pub files: Vec<LocalFile>,
    /// Other names of files above: path and index.
    pub aliases: Vec<(SharedPath, usize)>,
    pub collection_parts: Vec<CollectionPart>,
    /// Directories that are to get a `.keep`.
    pub empty: Vec<String>,
    /// Directories that exist, whatever else is in them.
    pub directories: Vec<String>,
    pub left_out: LeftOutReport,
    /// Remarks about mounts that are not in the output.
    pub remarks: Vec<String>,
    /// Indices of files that are not to be uploaded.
    pub skipped: HashSet<usize>,
}

/// A file of this node.
#[derive(Debug)]
pub struct LocalFile {
    pub path: SharedPath,
    pub host: HostPath,
    pub size: u64,
}

/// A file or directory of a collection, added by reference.
#[derive(Debug)]
pub struct CollectionPart {
    pub path: String,
    pub tree: Arc<FileTree>,
    pub inner: String,
}

/// Walks everything the container sees at `output`.
pub fn scan(
    fs: &ContainerFs,
    output: &ContainerPath,
    globs: &Globs,
    scratch: &[ContainerPath],
    bad_entries: BadEntries,
) -> Result<OutputPlan, OutputError> {
    let mut walker = Walker {
        fs,
        view: &fs.view,
        globs,
        scratch,
        bad_entries,
        plan: OutputPlan::default(),
        uploaded: HashMap::new(),
        stack: Vec::new(),
        entries: 0,
        name_bytes: 0,
        sharer: PathSharer::default(),
    };
    if let Lookup::Node(node) = resolve::lookup(fs, output)? {
        walker.visit(output, "", node, MAX_LINK_HOPS)?;
    }
    Ok(walker.plan)
}

struct Walker<'a> {
    fs: &'a ContainerFs,
    view: &'a MountTable,
    globs: &'a Globs,
    /// `tmp` mounts that are no part of the output, as the container's own /tmp.
    scratch: &'a [ContainerPath],
    bad_entries: BadEntries,
    plan: OutputPlan,
    /// Files to be uploaded by device and inode.
    uploaded: HashMap<(u64, u64), usize>,
    /// The directories being walked, to recognise a link to one of them.
    stack: Vec<ContainerPath>,
    entries: usize,
    name_bytes: usize,
    sharer: PathSharer,
}

fn join(dir: &str, name: &str) -> String {
    match dir {
        "" => name.to_owned(),
        dir => format!("{dir}/{name}"),
    }
}

impl Walker<'_> {
    /// Adds `node`, which the container sees at `here`, to the output as `dest`.
    fn visit(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        node: Node,
        hops: u32,
    ) -> Result<(), OutputError> {
        match node {
            Node::Omitted | Node::Implicit => {}
            Node::HostDirectory { host, fd } => self.walk_directory(here, dest, host, fd, hops)?,
            Node::Keep {
                tree,
                path,
                is_dir: true,
            } => self.visit_collection(here, dest, &tree, path)?,
            Node::Keep { tree, path, .. } => {
                if self.takes_file(dest)? {
                    self.splice(dest, &tree, path)?;
                }
                return Ok(());
            }
            Node::HostFile { host, stat } => {
                if self.takes_file(dest)? {
                    self.add_file(dest, host, stat)?;
                }
                return Ok(());
            }
            Node::HostSpecial { mode } => {
                let what = host_fs::special_word(mode);
                let left_out = &mut self.plan.left_out;
                left_out.add(|| format!("{here} is not in the output because it is {what}"));
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
    fn add_file(&mut self, dest: &str, host: HostPath, stat: FileStat) -> Result<(), OutputError> {
        let path = self.shared(dest)?;
        match self.uploaded.entry(stat.id) {
            Entry::Occupied(uploaded) => self.plan.aliases.push((path, *uploaded.get())),
            Entry::Vacant(unknown) => {
                unknown.insert(self.plan.files.len());
                let size = stat.size;
                self.plan.files.push(LocalFile { path, host, size });
            }
        }
        Ok(())
    }

    /// The path of a file on this node. Its name is also held as that on the node.
    fn shared(&mut self, path: &str) -> Result<SharedPath, OutputError> {
        let (shared, new_dir_bytes) = self.sharer.share(path);
        self.count_names(new_dir_bytes + 2 * shared.name().len())?;
        Ok(shared)
    }

    fn count_names(&mut self, bytes: usize) -> Result<(), OutputError> {
        self.name_bytes += bytes;
        match self.name_bytes > MAX_NAME_BYTES {
            true => Err(OutputError::LongNames {
                limit: MAX_NAME_BYTES,
            }),
            false => Ok(()),
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
                if self.plan.remarks.len() < MAX_REMARKS {
                    self.plan.remarks.push(format!(
                        "mount {target} is not in the output because no output_glob matches in it"
                    ));
                }
                continue;
            }
            let visited = match resolve::lookup(self.fs, target) {
                Ok(Lookup::Node(node)) => self.visit(target, &dest, node, hops),
                Ok(Lookup::Absent | Lookup::Link(_)) => Ok(()),
                Err(error) => Err(error),
            };
            self.or_leave_out(visited)?;
        }
        Ok(())
    }

    /// Adds a directory of a collection, without paths that other mounts cover.
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
            return self.splice(dest, tree, path);
        }
        for (file, _) in files.files() {
            let seen_at = here.join(&file);
            let is_hidden = hidden.iter().any(|h| seen_at == **h || seen_at.is_below(h));
            let dest = join(dest, &file);
            if !is_hidden && self.globs.wants_file(&dest) {
                self.count(1)?;
                self.splice(&dest, tree, join(&path, &file))?;
            }
        }
        Ok(())
    }

    /// Walks a directory of this node. Mounts inside it are visited later.
    fn walk_directory(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        host: HostPath,
        fd: OwnedFd,
        hops: u32,
    ) -> Result<(), OutputError> {
        self.count(1)?;
        if self.stack.len() >= MAX_DEPTH {
            return Err(OutputError::TooDeep {
                path: here.to_string(),
                limit: MAX_DEPTH,
            });
        }
        let left = MAX_ENTRIES - self.entries;
        let host_fs::Names { good: names, odd } =
            host_fs::names(&fd, left).map_err(|source| resolve::read_error(here, source))?;
        if names.len() + odd.len() > left {
            return self.count(names.len() + odd.len());
        }
        for name in odd {
            let path = here.join(&name).to_string();
            self.or_leave_out(Err(OutputError::NotUtf8 { path }))?;
        }
        if !dest.is_empty() {
            self.note_directory(dest, names.is_empty())?;
        }
        self.stack.push(here.clone());
        let below: Arc<str> = host.relative.to_string().into();
        self.count_names(below.len())?;
        for name in names {
            let path = here.join(&name);
            if self.view.at(&path).is_none() {
                let on_node = HostPath {
                    root: host.root.clone(),
                    relative: SharedPath::new(&below, &name),
                };
                let visited = self.visit_name(&path, &join(dest, &name), on_node, &fd, &name, hops);
                self.or_leave_out(visited)?;
            }
        }
        self.stack.pop();
        Ok(())
    }

    /// Goes on without an entry that cannot be saved. It counts as an entry, so that links to
    /// directories full of links end.
    fn or_leave_out(&mut self, visited: Result<(), OutputError>) -> Result<(), OutputError> {
        let Err(error) = visited else {
            return Ok(());
        };
        self.plan.left_out.add_or_refuse(self.bad_entries, error)?;
        self.count(1)
    }

    fn note_directory(&mut self, dest: &str, is_empty: bool) -> Result<(), OutputError> {
        self.count_names(dest.len())?;
        if is_empty && self.globs.wants_file(&join(dest, ".keep")) {
            self.plan.empty.push(dest.to_owned());
        } else if self.globs.wants_directory(dest) {
            self.plan.directories.push(dest.to_owned());
        }
        Ok(())
    }

    fn visit_name(
        &mut self,
        here: &ContainerPath,
        dest: &str,
        on_node: HostPath,
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
        let entry = host_fs::entry(fd, name).map_err(|source| resolve::read_error(here, source))?;
        match entry.map(|entry| resolve::lookup_entry(entry, on_node)) {
            Some(Lookup::Node(Node::HostDirectory { host, fd })) => {
                // Not `visit`, because the caller visits mounts below.
                self.walk_directory(here, dest, host, fd, hops)
            }
            Some(Lookup::Node(node)) => self.visit(here, dest, node, hops),
            Some(Lookup::Link(target)) => {
                let (end, node) = resolve::follow_link(self.fs, here, &target, &mut hops)?;
                if self.stack.contains(&end) {
                    return Err(OutputError::Cycle {
                        link: here.to_string(),
                    });
                }
                self.check_scratch(here, &end)?;
                self.visit(&end, dest, node, hops)
            }
            Some(Lookup::Absent) | None => Ok(()),
        }
    }

    /// A link in the output must not lead to scratch space, which is no output.
    fn check_scratch(&self, link: &ContainerPath, end: &ContainerPath) -> Result<(), OutputError> {
        let is_scratch = |path| {
            let mount = self.view.enclosing(path);
            mount.is_some_and(|(target, _)| self.scratch.contains(&target))
        };
        match is_scratch(end) && !is_scratch(link) {
            true => Err(OutputError::Outside {
                link: link.to_string(),
                target: end.to_string(),
            }),
            false => Ok(()),
        }
    }

    fn splice(
        &mut self,
        dest: &str,
        tree: &Arc<FileTree>,
        inner: String,
    ) -> Result<(), OutputError> {
        self.count_names(dest.len() + inner.len())?;
        self.plan.collection_parts.push(CollectionPart {
            path: dest.to_owned(),
            tree: tree.clone(),
            inner,
        });
        Ok(())
    }

    fn count(&mut self, more: usize) -> Result<(), OutputError> {
        self.entries += more;
        match self.entries > MAX_ENTRIES {
            true => Err(OutputError::TooMany { limit: MAX_ENTRIES }),
            false => Ok(()),
        }
    }
}
