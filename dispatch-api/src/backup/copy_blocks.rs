//! Copies blocks from one block store to another, each checked against its hash.

use std::collections::{HashMap, HashSet};
use std::io;

use arvados_client::keep::BlockHash;
use serde::Serialize;

use super::error::{BackupError, Result};
use crate::blocks::store::BlockStore;
use crate::blocks::verify::Verified;

/// Why a block cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "damage", rename_all = "lowercase")]
pub enum Damage {
    Missing,
    /// Its content has another hash.
    Changed {
        found: BlockHash,
    },
    /// The disk or the file system failed.
    Unreadable {
        error: String,
    },
}

impl Damage {
    /// The damage of a block that is not whole.
    pub fn of<T>(found: io::Result<Verified<T>>) -> Option<Self> {
        match found {
            Ok(Verified::Whole(_)) => None,
            Ok(Verified::Missing) => Some(Self::Missing),
            Ok(Verified::Changed(found)) => Some(Self::Changed { found }),
            Err(error) => Some(Self::Unreadable {
                error: error.to_string(),
            }),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BadBlock {
    pub hash: BlockHash,
    #[serde(flatten)]
    pub damage: Damage,
}

/// What was copied.
#[derive(Debug, Default)]
pub struct Copied {
    pub blocks: u64,
    pub bytes: u64,
    /// Those that could not be read.
    pub bad: HashMap<BlockHash, Damage>,
}

/// Copies the blocks that `to` does not have yet. A block that cannot be read is left out; one that
/// cannot be written is an error.
pub fn copy(from: &BlockStore, to: &BlockStore, blocks: &HashSet<BlockHash>) -> Result<Copied> {
    let mut copied = Copied::default();
    for &hash in blocks {
        let failed = || BackupError::blocks(to.root());
        // One that was cut off is copied again.
        let whole = from.look_up(hash);
        let is_there = |size| !matches!(whole, Ok(Verified::Whole(other)) if other != size);
        if to.size(hash).map_err(failed())?.is_some_and(is_there) {
            continue;
        }
        let found = from.read_verified(hash);
        if let Ok(Verified::Whole(data)) = &found {
            to.put(hash, data).map_err(failed())?;
            copied.blocks += 1;
            copied.bytes += data.len() as u64;
        }
        copied
            .bad
            .extend(Damage::of(found).map(|damage| (hash, damage)));
    }
    Ok(copied)
}
