//! Removal of blocks, and what keeps it from a block that a client refers to meanwhile.
//! `garbage.rs` says which are old enough.
//!
//! A client's new manifest is checked, noted and committed under a [`Hold`]. A [`Sweep`] begins
//! when no hold exists. So each manifest is either committed before the sweep reads the
//! collections, or noted.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use arvados_client::keep::BlockHash;
use parking_lot::{MutexGuard, RwLockReadGuard};

use super::store::{BlockStore, store_error};
use super::{if_present, signature};
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
        self.removal.read()
    }

    /// Begins the removal of blocks; `None` if another is going on.
    pub fn begin_sweep(&self) -> Option<Sweep<'_>> {
        let alone = self.sweep.try_lock()?;
        let _nobody = self.removal.write();
        *self.named.lock() = Some(HashSet::new());
        Some(Sweep {
            store: self,
            _alone: alone,
        })
    }

    /// Notes the blocks of a manifest, which are not removed then. With `must_exist`, fails if one
    /// is not stored. The caller has the hold until the manifest is committed.
    pub fn refer_to(&self, manifest: &str, must_exist: bool, _: &Hold<'_>) -> Result<()> {
        let nothing = BlockHash::of(b"");
        for locator in signature::locators(manifest) {
            if must_exist && locator.hash != nothing && self.size(locator.hash)?.is_none() {
                return Err(ApiError::invalid(format!(
                    "block {} is not stored here any more: no collection referred to it when unused blocks were removed; store it again",
                    locator.stripped()
                )));
            }
        }
        if let Some(named) = &mut *self.named.lock() {
            named.extend(signature::locators(manifest).map(|locator| locator.hash));
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
}

/// A removal of blocks.
pub struct Sweep<'a> {
    store: &'a BlockStore,
    _alone: MutexGuard<'a, ()>,
}

impl Sweep<'_> {
    /// Removes the candidates that no client has stored again since `before`, or referred to since
    /// the sweep began. Returns the removed blocks.
    pub fn remove(
        &self,
        candidates: &[StoredBlock],
        before: SystemTime,
    ) -> Result<Vec<StoredBlock>> {
        let store = self.store;
        let _nobody = store.removal.write();
        let named = store.named.lock();
        let is_named = |hash| named.as_ref().is_some_and(|named| named.contains(hash));
        let mut removed = Vec::new();
        for candidate in candidates.iter().filter(|block| !is_named(&block.hash)) {
            let path = store.path(&candidate.hash.to_string());
            match stored_block(&path)? {
                Some(block) if block.stored_at < before => {
                    fs::remove_file(&path).map_err(store_error(&path))?;
                    removed.push(block);
                }
                _ => {}
            }
        }
        Ok(removed)
    }
}

impl Drop for Sweep<'_> {
    fn drop(&mut self) {
        *self.store.named.lock() = None;
    }
}

fn read_dir(path: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.map_err(store_error(path))?;
    Ok(entries.into_iter().map(|entry| entry.path()).collect())
}

/// `None` for a file that is no block, or has just been moved aside.
fn stored_block(path: &Path) -> Result<Option<StoredBlock>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(hash) = name.and_then(|name| BlockHash::parse(name).ok()) else {
        return Ok(None);
    };
    let Some(found) = if_present(fs::metadata(path)).map_err(store_error(path))? else {
        return Ok(None);
    };
    let stored_at = found.modified().map_err(store_error(path))?;
    Ok(Some(StoredBlock {
        hash,
        bytes: found.len(),
        stored_at,
    }))
}
