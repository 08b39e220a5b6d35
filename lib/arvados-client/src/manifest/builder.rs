//! Builds a manifest from files, trees and other manifests.

use std::sync::Arc;

use super::error::{ManifestError, Problem};
use super::tree::{Extent, FileTree};
use super::{Manifest, path};
use crate::locator::Locator;

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

    /// Adds a file that is exactly one block.
    pub fn add_block(
        &mut self,
        path: &str,
        locator: Arc<Locator>,
    ) -> Result<&mut Self, ManifestError> {
        let len = locator.size;
        self.add_file(
            path,
            [Extent {
                locator,
                offset: 0,
                len,
            }],
        )
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

    /// Adds everything of `manifest` below the directory `at`.
    pub fn add_manifest(
        &mut self,
        at: &str,
        manifest: &Manifest,
    ) -> Result<&mut Self, ManifestError> {
        self.add_tree(at, &manifest.tree())
    }

    /// Adds everything of `tree` below the directory `at`.
    pub fn add_tree(&mut self, at: &str, tree: &FileTree) -> Result<&mut Self, ManifestError> {
        let at = path::clean(at)?;
        let below = |path: &str| match at.as_str() {
            "" => path.to_owned(),
            at => format!("{at}/{path}"),
        };
        for dir in tree.directories() {
            self.tree.add_directory(&below(dir))?;
        }
        for (path, extents) in tree.files() {
            self.tree.append(&below(&path), extents.iter().cloned())?;
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
            builder.add_manifest(".", manifest)?;
        }
        Ok(builder.build())
    }
}

/// The clean form of the path of a file.
pub(crate) fn file_path(path: &str) -> Result<String, ManifestError> {
    let clean = path::clean(path)?;
    if clean.is_empty() || path.ends_with('/') {
        return Err(ManifestError::Path {
            path: path.to_owned(),
            problem: Problem::EmptyName,
        });
    }
    Ok(clean)
}
