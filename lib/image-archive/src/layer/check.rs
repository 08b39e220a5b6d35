//! Finds what would be refused when a layer is unpacked, from its entries alone. It keeps the
//! layer's tree in memory, as the unpacker has it on the disk.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

use super::{EntryKind, LayerStream, refusal};
use crate::ArchiveError;

/// Reads the whole layer.
pub fn check(mut layer: LayerStream<'_>) -> Result<(), ArchiveError> {
    let mut tree = Tree::default();
    while let Some(entry) = layer.next_entry()? {
        tree.add(entry.path, entry.kind)
            .map_err(|reason| layer.refused(reason))?;
    }
    layer.finish()
}

/// The paths of the layer; true for a directory. Parents come before what is in them.
#[derive(Default)]
struct Tree(BTreeMap<PathBuf, bool>);

impl Tree {
    fn add(&mut self, path: PathBuf, kind: EntryKind) -> Result<(), String> {
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        match kind {
            EntryKind::Ignored => return Ok(()),
            EntryKind::Directory => {
                self.add_directories(&parent)?;
                self.0.insert(path, true);
            }
            EntryKind::Opaque => self.add_directories(&parent)?,
            EntryKind::Whiteout(hidden) => {
                self.add_directories(&parent)?;
                // A node of the disk, unless the layer has the name itself.
                self.0.entry(parent.join(hidden)).or_insert(false);
            }
            EntryKind::HardLink(target) => {
                self.add_directories(&parent)?;
                self.check_target(&target)?;
                self.replace(&path)?;
                // A link to itself, which is replaced first.
                if path == target {
                    return Err(refusal::link_target_missing(&target));
                }
                self.0.insert(path, false);
            }
            EntryKind::File { .. }
            | EntryKind::Symlink(_)
            | EntryKind::CharDevice(..)
            | EntryKind::BlockDevice(..)
            | EntryKind::Fifo => {
                self.add_directories(&parent)?;
                self.replace(&path)?;
                self.0.insert(path, false);
            }
        }
        Ok(())
    }

    /// Adds a directory and those that it is in.
    fn add_directories(&mut self, path: &Path) -> Result<(), String> {
        if self.0.get(path) == Some(&true) {
            return Ok(());
        }
        let mut outer: Vec<&Path> = path.ancestors().collect();
        outer.reverse();
        for dir in outer {
            let is_dir = *self.0.entry(dir.to_owned()).or_insert(true);
            if !is_dir {
                let name = dir.file_name().unwrap_or_default();
                return Err(refusal::through(Path::new(name)));
            }
        }
        Ok(())
    }

    fn check_target(&self, target: &Path) -> Result<(), String> {
        let parts = target.parent().into_iter().flat_map(Path::ancestors);
        for dir in parts {
            if self.0.get(dir) == Some(&false) {
                let name = dir.file_name().unwrap_or_default();
                return Err(refusal::through(Path::new(name)));
            }
        }
        match self.0.get(target) {
            _ if target.file_name().is_none() => Err(refusal::link_target_missing(target)),
            Some(false) => Ok(()),
            Some(true) => Err(refusal::link_to_directory(target)),
            None => Err(refusal::link_target_missing(target)),
        }
    }

    /// Removes what had the path before, unless it is a directory that holds something.
    fn replace(&mut self, path: &Path) -> Result<(), String> {
        let behind = (Bound::Excluded(path), Bound::Unbounded);
        let next = self.0.range::<Path, _>(behind).next();
        if next.is_some_and(|(next, _)| next.starts_with(path)) {
            return Err(refusal::REPLACES_DIRECTORY.to_owned());
        }
        self.0.remove(path);
        Ok(())
    }
}
