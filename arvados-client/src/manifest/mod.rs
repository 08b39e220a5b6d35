//! Manifests: the text that says which bytes of which blocks make up the files of a collection.
//!
//! A line is a *stream*: a directory, the blocks whose concatenation is its content, and for each file the
//! *segments* (`position:length:name`) of that content it consists of.
//!
//! ```
//! use arvados_client::manifest::Manifest;
//! let text = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:foo\n";
//! let manifest = Manifest::parse(text)?;
//! assert_eq!(manifest.total_size(), 3);
//! assert_eq!(manifest.pdh().as_str(), "1f4b0bc7583c2a7f9102c395f4ffc5e3+45");
//! # Ok::<(), arvados_client::manifest::ManifestError>(())
//! ```

mod builder;
mod error;
mod escape;
mod parse;
mod path;
mod pdh;
mod tree;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::ids::Pdh;
use crate::keep::Locator;

pub use builder::ManifestBuilder;
pub use error::{ManifestError, Problem};
pub use pdh::{portable_data_hash, portable_text};
pub use tree::{DirEntry, Entry, EntryKind, Extent, FileEntry, FileTree};

/// The content of a collection. Every value of this type is consistent: segments lie inside their streams, names
/// are usable, and no path is both a file and a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    streams: Vec<Stream>,
}

/// One line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    name: String,
    blocks: Vec<Arc<Locator>>,
    segments: Vec<Segment>,
}

/// A range of a stream that belongs to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// First byte, counted from the beginning of the stream.
    pub position: u64,
    /// Number of bytes.
    pub length: u64,
    /// The file, relative to the stream; `.` (always with length 0) only says that the directory exists.
    pub name: String,
}

impl Segment {
    fn is_directory_marker(&self) -> bool {
        self.name == "."
    }
}

impl Stream {
    /// `.` or `./some/directory`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The blocks whose concatenation the segments refer to.
    pub fn blocks(&self) -> &[Arc<Locator>] {
        &self.blocks
    }

    /// The pieces of files, in the order of the text.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }
}

impl Manifest {
    /// Reads a manifest. The empty text is the empty collection.
    pub fn parse(text: &str) -> Result<Self, ManifestError> {
        parse::parse(text)
    }

    /// The lines, in the order of the text.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }

    /// Whether there is nothing in it at all.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Number of files; markers of empty directories do not count.
    pub fn file_count(&self) -> u64 {
        let mut paths = HashSet::new();
        for stream in &self.streams {
            for segment in &stream.segments {
                if !segment.is_directory_marker() {
                    paths.insert(path::join(&stream.name, &segment.name));
                }
            }
        }
        paths.len() as u64
    }

    /// Sum of the sizes of all files.
    pub fn total_size(&self) -> u64 {
        let segments = self.streams.iter().flat_map(|s| &s.segments);
        segments.fold(0, |sum: u64, s| sum.saturating_add(s.length))
    }

    /// Every block locator, in the order of the text.
    pub fn locators(&self) -> impl Iterator<Item = &Arc<Locator>> {
        self.streams.iter().flat_map(|s| &s.blocks)
    }

    /// The hash that names this content, whoever's signatures are in it.
    ///
    /// For a text received from elsewhere use [`portable_data_hash`]: it hashes what was written, where this hashes
    /// what [`Display`](fmt::Display) writes, and two spellings of one name differ.
    pub fn pdh(&self) -> Pdh {
        portable_data_hash(&self.to_string())
    }

    /// The same content in the usual form: streams and files sorted, each directory its own stream, every block once
    /// per stream and only where it is needed, neighbouring segments joined.
    pub fn normalised(&self) -> Manifest {
        self.tree().to_manifest()
    }

    /// The manifest with the hints of every locator replaced: `f` gives the locator to take them from (hash and size
    /// cannot change).
    pub fn map_locators(&self, mut f: impl FnMut(&Locator) -> Locator) -> Manifest {
        let same: Result<_, std::convert::Infallible> = self.try_map_locators(|l| Ok(f(l)));
        match same {
            Ok(manifest) => manifest,
            Err(never) => match never {},
        }
    }

    /// [`map_locators`](Self::map_locators) that stops at the first failure.
    pub fn try_map_locators<E>(
        &self,
        mut f: impl FnMut(&Locator) -> Result<Locator, E>,
    ) -> Result<Manifest, E> {
        let mut streams = Vec::with_capacity(self.streams.len());
        for stream in &self.streams {
            let mut blocks = Vec::with_capacity(stream.blocks.len());
            for block in &stream.blocks {
                blocks.push(Arc::new(Locator {
                    hints: f(block)?.hints,
                    ..block.stripped()
                }));
            }
            streams.push(Stream {
                name: stream.name.clone(),
                blocks,
                segments: stream.segments.clone(),
            });
        }
        Ok(Manifest { streams })
    }

    /// Without any hint, as it is when its portable data hash is computed.
    pub fn stripped(&self) -> Manifest {
        self.map_locators(Locator::stripped)
    }

    /// The files by path, for repeated look-ups.
    pub fn tree(&self) -> FileTree {
        FileTree::of(self)
    }

    /// Every file with the pieces it consists of, sorted by directory, then name.
    pub fn files(&self) -> impl Iterator<Item = FileEntry> + use<> {
        self.tree().into_files()
    }

    /// The directory or file at `path` as a manifest of its own: the directory's content at the root, or the one file
    /// at the root under its last name.
    pub fn subtree(&self, path: &str) -> Result<Manifest, ManifestError> {
        self.tree().subtree(path).map(|tree| tree.to_manifest())
    }

    /// All files of several manifests in one; what has the same path is concatenated in order.
    pub fn merged<'a>(
        manifests: impl IntoIterator<Item = &'a Manifest>,
    ) -> Result<Manifest, ManifestError> {
        let mut builder = ManifestBuilder::new();
        for manifest in manifests {
            builder.add_manifest(".", manifest)?;
        }
        Ok(builder.build())
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stream in &self.streams {
            write!(f, "{}", escape::EscapedStream(&stream.name))?;
            for block in &stream.blocks {
                write!(f, " {block}")?;
            }
            for segment in &stream.segments {
                let name = escape::Escaped(&segment.name);
                write!(f, " {}:{}:{name}", segment.position, segment.length)?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl FromStr for Manifest {
    type Err = ManifestError;
    fn from_str(text: &str) -> Result<Self, ManifestError> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests;
