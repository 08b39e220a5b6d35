//! Builds a manifest from files, trees and other manifests.

use super::error::{ManifestError, Problem};
use super::tree::{Extent, FileTree};
use super::{Manifest, path};

/// Collects files for a normalised [`Manifest`].
#[derive(Debug, Clone, Default)]
pub struct ManifestBuilder {
    tree: FileTree,
}

impl ManifestBuilder {
    /// An empty collection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file, or appends to an existing one. Without extents, the file is empty.
    pub fn add_file(
        &mut self,
        path: &str,
        extents: impl IntoIterator<Item = Extent>,
    ) -> Result<&mut Self, ManifestError> {
        let clean = file_path(path)?;
        let extents: Vec<Extent> = extents.into_iter().collect();
        for extent in &extents {
            let end = extent.offset.saturating_add(extent.len);
            if end > extent.locator.size {
                return Err(ManifestError::OutsideBlock {
                    path: clean,
                    block: extent.locator.stripped().to_string(),
                    end,
                    size: extent.locator.size,
                });
            }
        }
        self.tree.append(&clean, extents)?;
        Ok(self)
    }

    /// Adds an empty file `.keep` to an empty directory, except to the root.
    pub fn add_dir_placeholder(&mut self, dir: &str) -> Result<&mut Self, ManifestError> {
        let dir = path::clean(dir)?;
        if !dir.is_empty() {
            self.tree.append(&format!("{dir}/.keep"), [])?;
        }
        Ok(self)
    }

    /// Adds the directory `dir`, which can be empty.
    pub fn add_directory(&mut self, dir: &str) -> Result<&mut Self, ManifestError> {
        self.tree.add_directory(&path::clean(dir)?)?;
        Ok(self)
    }

    /// Adds everything of `tree` below the directory `at`.
    pub fn add_tree(&mut self, at: &str, tree: &FileTree) -> Result<&mut Self, ManifestError> {
        let at = path::clean(at)?;
        for dir in tree.directories() {
            self.tree.add_directory(&path::below(&at, dir))?;
        }
        for (path, extents) in tree.files() {
            let path = path::below(&at, &path);
            self.tree.append(&path, extents.iter().cloned())?;
        }
        Ok(self)
    }

    /// The files added so far.
    pub fn tree(&self) -> &FileTree {
        &self.tree
    }

    /// The normalised manifest.
    pub fn build(&self) -> Manifest {
        self.tree.to_manifest()
    }
}

impl Manifest {
    /// All files of several manifests in one. Files with the same path are concatenated in order.
    pub fn merged<'a>(
        manifests: impl IntoIterator<Item = &'a Manifest>,
    ) -> Result<Manifest, ManifestError> {
        let mut builder = ManifestBuilder::new();
        for manifest in manifests {
            builder.add_tree(".", &manifest.tree())?;
        }
        Ok(builder.build())
    }
}

/// The clean form of the path of a file.
fn file_path(path: &str) -> Result<String, ManifestError> {
    let clean = path::clean(path)?;
    if clean.is_empty() || path.ends_with('/') {
        return Err(ManifestError::Path {
            path: path.to_owned(),
            problem: Problem::EmptyName,
        });
    }
    Ok(clean)
}
