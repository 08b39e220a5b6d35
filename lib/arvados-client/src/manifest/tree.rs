//! The files of a collection by path, each as a list of ranges of blocks.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use super::error::ManifestError;
use super::{Manifest, Segment, Stream, path};
use crate::locator::{BlockHash, Locator};

/// A piece of a file: a range of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extent {
    /// The block.
    pub locator: Arc<Locator>,
    /// First byte, counted from the beginning of the block.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// A file and its extents.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileEntry {
    /// Path from the root of the collection, without leading `./`.
    pub path: String,
    /// The pieces, in order.
    pub extents: Vec<Extent>,
}

impl FileEntry {
    /// Size in bytes.
    pub fn size(&self) -> u64 {
        total(&self.extents)
    }
}

/// The file or directory at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry<'a> {
    /// A file with its extents.
    File(&'a [Extent]),
    /// A directory.
    Directory,
}

/// Kind of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A file of this size.
    File {
        /// In bytes.
        size: u64,
    },
    /// A directory.
    Directory,
}

type Files = BTreeMap<String, Vec<Extent>>;

/// All files by directory and name. The root is the directory `""`. A directory is present if it
/// has files of its own or was added explicitly.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileTree {
    dirs: BTreeMap<String, Files>,
}

fn total(extents: &[Extent]) -> u64 {
    extents
        .iter()
        .fold(0, |sum: u64, e| sum.saturating_add(e.len))
}

/// Adds an extent, joined with the one before if it continues it.
fn push_extent(extents: &mut Vec<Extent>, next: Extent) {
    if next.len == 0 {
        return;
    }
    if let Some(last) = extents.last_mut() {
        let same_block =
            last.locator.hash == next.locator.hash && last.locator.size == next.locator.size;
        if same_block && last.offset + last.len == next.offset {
            last.len += next.len;
            return;
        }
    }
    extents.push(next);
}

impl Manifest {
    /// The files by path, for repeated lookups.
    pub fn tree(&self) -> FileTree {
        FileTree::of(self)
    }

    /// Every file with its extents, sorted by directory, then name.
    pub fn files(&self) -> impl Iterator<Item = FileEntry> + use<> {
        self.tree().dirs.into_iter().flat_map(|(dir, files)| {
            files.into_iter().map(move |(name, extents)| FileEntry {
                path: path::below(&dir, &name),
                extents,
            })
        })
    }
}

impl FileTree {
    pub(super) fn of(manifest: &Manifest) -> Self {
        let mut tree = Self::default();
        for stream in &manifest.streams {
            let layout = Layout::of(&stream.blocks);
            for segment in &stream.segments {
                if segment.is_directory_marker() {
                    let marked = path::join(&stream.name, ".");
                    tree.dirs
                        .entry(path::split(&marked).0.to_owned())
                        .or_default();
                    continue;
                }
                let path = path::join(&stream.name, &segment.name);
                let (dir, name) = path::split(&path);
                let files = tree.dirs.entry(dir.to_owned()).or_default();
                let extents = files.entry(name.to_owned()).or_default();
                layout.extents(segment, |extent| push_extent(extents, extent));
            }
        }
        tree
    }

    /// Appends extents to the file at `path`, which must be clean and not a directory.
    pub(super) fn append(
        &mut self,
        path: &str,
        extents: impl IntoIterator<Item = Extent>,
    ) -> Result<(), ManifestError> {
        let (dir, name) = path::split(path);
        self.add_directory(dir)?;
        if self.is_directory(path) {
            return Err(ManifestError::FileAndDirectory {
                path: path.to_owned(),
            });
        }
        let files = self.dirs.entry(dir.to_owned()).or_default();
        let file = files.entry(name.to_owned()).or_default();
        for extent in extents {
            push_extent(file, extent);
        }
        Ok(())
    }

    /// Adds a directory.
    pub(super) fn add_directory(&mut self, dir: &str) -> Result<(), ManifestError> {
        if self.dirs.contains_key(dir) {
            return Ok(());
        }
        let mut above = std::iter::once(dir)
            .filter(|d| !d.is_empty())
            .chain(path::ancestors(dir));
        if let Some(file) = above.find(|path| self.file(path).is_some()) {
            return Err(ManifestError::FileAndDirectory {
                path: file.to_owned(),
            });
        }
        self.dirs.insert(dir.to_owned(), Files::new());
        Ok(())
    }

    fn file(&self, path: &str) -> Option<&Vec<Extent>> {
        let (dir, name) = path::split(path);
        self.dirs.get(dir)?.get(name)
    }

    /// The directories below `dir`, with their files; `dir` itself not included.
    fn below(&self, dir: &str) -> impl Iterator<Item = (&str, &Files)> {
        let prefix = match dir {
            "" => String::new(),
            dir => format!("{dir}/"),
        };
        // Of the root everything but itself.
        let from = Bound::Excluded(prefix.clone());
        self.dirs
            .range::<String, _>((from, Bound::Unbounded))
            .map(|(dir, files)| (dir.as_str(), files))
            .take_while(move |(dir, _)| dir.starts_with(&prefix))
    }

    fn is_directory(&self, path: &str) -> bool {
        path.is_empty() || self.dirs.contains_key(path) || self.below(path).next().is_some()
    }

    /// The file or directory at `path`, if any.
    pub fn lookup(&self, path: &str) -> Option<Entry<'_>> {
        let path = path::clean(path).ok()?;
        if self.is_directory(&path) {
            return Some(Entry::Directory);
        }
        self.file(&path).map(|extents| Entry::File(extents))
    }

    /// The entries of the directory at `path` by name; `None` if there is no such directory.
    pub fn list(&self, path: &str) -> Option<BTreeMap<&str, EntryKind>> {
        let dir = path::clean(path).ok()?;
        if !self.is_directory(&dir) {
            return None;
        }
        let mut entries = BTreeMap::new();
        for (name, extents) in self.dirs.get(&dir).into_iter().flatten() {
            let size = total(extents);
            entries.insert(name.as_str(), EntryKind::File { size });
        }
        let skip = if dir.is_empty() { 0 } else { dir.len() + 1 };
        for (below, _) in self.below(&dir) {
            let name = below[skip..].split('/').next().unwrap_or_default();
            entries.insert(name, EntryKind::Directory);
        }
        Some(entries)
    }

    /// Every file as path and extents, sorted by directory, then name.
    pub fn files(&self) -> impl Iterator<Item = (String, &[Extent])> {
        self.dirs.iter().flat_map(|(dir, files)| {
            let files = files.iter();
            files.map(move |(name, extents)| (path::below(dir, name), extents.as_slice()))
        })
    }

    /// Every directory that has files of its own or was added explicitly, without the root.
    pub fn directories(&self) -> impl Iterator<Item = &str> {
        self.dirs
            .keys()
            .map(String::as_str)
            .filter(|d| !d.is_empty())
    }

    /// The directory or file at `path`, with that directory or the directory of the file as the
    /// root.
    pub fn subtree(&self, path: &str) -> Result<FileTree, ManifestError> {
        let wanted = path::clean(path)?;
        if wanted.is_empty() {
            return Ok(self.clone());
        }
        let mut tree = FileTree::default();
        if let Some(extents) = self.file(&wanted) {
            let name = path::split(&wanted).1.to_owned();
            let files = Files::from([(name, extents.clone())]);
            tree.dirs.insert(String::new(), files);
        } else if self.is_directory(&wanted) {
            if let Some(files) = self.dirs.get(&wanted) {
                tree.dirs.insert(String::new(), files.clone());
            }
            for (dir, files) in self.below(&wanted) {
                let dir = dir[wanted.len() + 1..].to_owned();
                tree.dirs.insert(dir, files.clone());
            }
        } else {
            return Err(ManifestError::NoSuchPath {
                path: path.to_owned(),
            });
        }
        Ok(tree)
    }

    /// The files in normal form: streams and files sorted, one stream per directory, every block
    /// once per stream and only where needed, adjacent segments joined.
    pub fn to_manifest(&self) -> Manifest {
        let mut streams = Vec::new();
        for (dir, files) in &self.dirs {
            let has_children = || self.below(dir).next().is_some();
            if files.is_empty() && (dir.is_empty() || has_children()) {
                continue; // other lines show that it exists
            }
            let name = match dir.as_str() {
                "" => ".".to_owned(),
                dir => format!("./{dir}"),
            };
            streams.push(to_stream(name, files));
        }
        Manifest { streams }
    }
}

/// Makes the stream of a directory: the blocks of its files, each once, in order of first use.
fn to_stream(name: String, files: &Files) -> Stream {
    let mut blocks: Vec<Arc<Locator>> = Vec::new();
    // By hash and size, so that two signatures of one block do not make two blocks.
    let mut starts: HashMap<(BlockHash, u64), u64> = HashMap::new();
    let mut size = 0u64;
    let mut segments: Vec<Segment> = Vec::new();
    for (name, extents) in files {
        let first = segments.len();
        for extent in extents {
            let block = &extent.locator;
            let start = *starts.entry((block.hash, block.size)).or_insert_with(|| {
                blocks.push(block.clone());
                let start = size;
                size = size.saturating_add(block.size);
                start
            });
            let position = start.saturating_add(extent.offset);
            match segments[first..].last_mut() {
                Some(last) if last.position + last.length == position => last.length += extent.len,
                _ => segments.push(Segment {
                    position,
                    length: extent.len,
                    name: name.clone(),
                }),
            }
        }
        if segments.len() == first {
            segments.push(Segment {
                position: 0,
                length: 0,
                name: name.clone(),
            });
        }
    }
    if files.is_empty() {
        segments.push(Segment {
            position: 0,
            length: 0,
            name: ".".to_owned(),
        });
    }
    if blocks.is_empty() {
        blocks.push(Arc::new(Locator::empty()));
    }
    Stream {
        name,
        blocks,
        segments,
    }
}

/// Where each block of a stream begins.
struct Layout<'a> {
    blocks: &'a [Arc<Locator>],
    starts: Vec<u64>,
}

impl<'a> Layout<'a> {
    fn of(blocks: &'a [Arc<Locator>]) -> Self {
        let mut next = 0u64;
        let starts = blocks.iter().map(|block| {
            let start = next;
            next = next.saturating_add(block.size);
            start
        });
        Self {
            starts: starts.collect(),
            blocks,
        }
    }

    /// Cuts a segment at the borders of blocks.
    fn extents(&self, segment: &Segment, mut f: impl FnMut(Extent)) {
        let end = segment.position + segment.length;
        // The last block that begins at or before the segment; blocks without content give no
        // pieces.
        let first = self
            .starts
            .partition_point(|start| *start <= segment.position)
            .saturating_sub(1);
        for (block, &start) in self.blocks[first..].iter().zip(&self.starts[first..]) {
            if start >= end {
                break;
            }
            let from = segment.position.max(start);
            let to = end.min(start.saturating_add(block.size));
            if from < to {
                f(Extent {
                    locator: block.clone(),
                    offset: from - start,
                    len: to - from,
                });
            }
        }
    }
}
