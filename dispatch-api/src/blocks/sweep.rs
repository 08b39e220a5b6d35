//! Removal of blocks. A hold keeps a client's new collection and the removal of its blocks apart.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLockReadGuard};
use std::time::SystemTime;

use arvados_client::keep::BlockHash;

use super::signature;
use super::store::{BlockStore, store_error};
use crate::error::{ApiError, Result};

/// While it exists, no block is removed.
pub type Hold<'a> = RwLockReadGuard<'a, ()>;

/// A block on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredBlock {
    pub hash: BlockHash,
    pub bytes: u64,
    /// Time when a client stored it last.
    pub stored_at: SystemTime,
}

impl BlockStore {
    pub fn hold(&self) -> Hold<'_> {
        self.removal.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that every block of a manifest is stored. The caller has a hold until the manifest is
    /// committed.
    pub fn check_present(&self, manifest: &str, _: &Hold<'_>) -> Result<()> {
        let nothing = BlockHash::of(b"");
        for locator in signature::locators(manifest) {
            if locator.hash != nothing && self.size(locator.hash)?.is_none() {
                return Err(ApiError::invalid(format!(
                    "block {} is not stored here any more: no collection referred to it when unused blocks were removed; store it again",
                    locator.stripped()
                )));
            }
        }
        Ok(())
    }

    /// Passes all blocks to `each`.
    pub fn for_each(&self, mut each: impl FnMut(StoredBlock) -> Result<()>) -> Result<()> {
        for shard in read_dir(self.root())? {
            if shard.file_name().is_none_or(|name| name.len() != 3) {
                continue;
            }
            for path in read_dir(&shard)? {
                if let Some(block) = stored_block(&path)? {
                    each(block)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the candidates that nobody has stored again since `before`, and that `used_now` does
    /// not name. Nobody stores or refers to a block meanwhile. Returns the removed blocks.
    pub fn remove_unused(
        &self,
        candidates: &[StoredBlock],
        before: SystemTime,
        used_now: impl FnOnce() -> Result<HashSet<BlockHash>>,
    ) -> Result<Vec<StoredBlock>> {
        let _alone = self.removal.write().unwrap_or_else(PoisonError::into_inner);
        let used = used_now()?;
        let mut removed = Vec::new();
        for candidate in candidates
            .iter()
            .filter(|block| !used.contains(&block.hash))
        {
            let path = self.path(&candidate.hash.to_string());
            match stored_block(&path)? {
                Some(block) if block.stored_at < before => {
                    fs::remove_file(&path).map_err(|source| store_error(&path, source))?;
                    removed.push(block);
                }
                _ => {}
            }
        }
        Ok(removed)
    }
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(|source| store_error(path, source))?;
    Ok(entries.into_iter().map(|entry| entry.path()).collect())
}

/// `None` for a file that is no block, or has just been moved aside.
fn stored_block(path: &Path) -> Result<Option<StoredBlock>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(hash) = name.and_then(|name| BlockHash::parse(name).ok()) else {
        return Ok(None);
    };
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(store_error(path, source)),
    };
    let stored_at = found
        .modified()
        .map_err(|source| store_error(path, source))?;
    Ok(Some(StoredBlock {
        hash,
        bytes: found.len(),
        stored_at,
    }))
}
