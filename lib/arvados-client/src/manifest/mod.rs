//! Manifests: texts that describe the files of a collection as ranges of blocks.
//!
//! A line is a *stream*: a directory, its blocks, and for each file its *segments*
//! (`position:length:name`) of the concatenated blocks.
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
mod file_paths;
mod parse;
mod path;
mod pdh;
mod shared_path;
mod tree;
mod write;

use std::collections::HashSet;
use std::sync::Arc;

use crate::ids::Pdh;
use crate::locator::Locator;

pub use builder::ManifestBuilder;
pub use error::{ManifestError, Problem};
pub use file_paths::file_paths;
pub use pdh::portable_data_hash;
pub use shared_path::{PathSharer, SharedPath};
pub use tree::{Entry, EntryKind, Extent, FileEntry, FileTree};

/// The content of a collection. Every value is consistent: segments lie inside their streams, names
/// are valid, and no path is both a file and a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    streams: Vec<Stream>,
}

/// One line of a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stream {
    /// `.` or `./some/directory`.
    name: String,
    /// The blocks whose concatenation the segments refer to.
    blocks: Vec<Arc<Locator>>,
    /// In the order of the text.
    segments: Vec<Segment>,
}

/// A range of a stream that belongs to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Segment {
    /// First byte, counted from the beginning of the stream.
    position: u64,
    /// Number of bytes.
    length: u64,
    /// The file, relative to the stream; `.` (always with length 0) marks an empty directory.
    name: String,
}

impl Segment {
    fn is_directory_marker(&self) -> bool {
        self.name == "."
    }
}

impl Manifest {
    /// Whether the collection is empty.
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

    /// The portable data hash of the content, independent of signatures.
    ///
    /// For a text from elsewhere use [`portable_data_hash`], which hashes the text unchanged. This
    /// hashes the output of [`Display`](std::fmt::Display), and two spellings of a name have
    /// different hashes.
    pub fn pdh(&self) -> Pdh {
        portable_data_hash(&self.to_string())
    }

    /// Replaces the hints of every locator by those of the locator that `f` returns. Hash and size
    /// do not change.
    pub fn map_locators(&self, mut f: impl FnMut(&Locator) -> Locator) -> Manifest {
        let mut mapped = self.clone();
        for block in mapped.streams.iter_mut().flat_map(|s| &mut s.blocks) {
            *block = Arc::new(Locator {
                hints: f(block).hints,
                ..block.stripped()
            });
        }
        mapped
    }

    /// The manifest without hints, as hashed for the portable data hash.
    pub fn stripped(&self) -> Manifest {
        self.map_locators(Locator::stripped)
    }
}

#[cfg(test)]
mod tests;
