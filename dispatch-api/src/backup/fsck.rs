//! `fsck`: compares the database of a state directory, or of a backup, with its blocks.

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::Serialize;
use tracing::info;

use super::copy_blocks::Damage;
use super::error::{BackupError, Result};
use super::files::{BACKUP_FILE, Files};
use super::snapshot::{self, DamageReport};
use crate::blocks::store::BlockStore;
use crate::blocks::verify::Verified;

/// Time between two log lines about the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(30);

/// What is read of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Its content.
    Content,
    /// Only whether it is there.
    Presence,
}

#[derive(Debug, Default, Serialize)]
pub struct FsckReport {
    pub collections: u64,
    /// Blocks that collections name.
    pub blocks: u64,
    /// Size of those of them that are good.
    pub bytes: u64,
    /// Number of those of them whose SHA-256 was not kept: their MD5 alone can be compared.
    pub blocks_without_sha256: u64,
    /// What SQLite finds wrong with the database.
    pub database_errors: Vec<String>,
    #[serde(flatten)]
    pub damage: DamageReport,
}

impl FsckReport {
    pub fn is_sound(&self) -> bool {
        self.database_errors.is_empty() && self.damage.is_empty()
    }
}

/// Checks a state directory or a backup. It changes nothing.
pub fn fsck(dir: &Path, depth: Depth) -> Result<FsckReport> {
    let files = Files::open(dir)?;
    files.identity()?;
    // A backup that is made meanwhile removes blocks.
    let _lock = match files.has(BACKUP_FILE) {
        true => files.lock()?,
        false => None,
    };
    let path = files.database();
    let failed = BackupError::database;
    let connection = snapshot::open(&path)?;
    let database_errors = snapshot::integrity(&connection).map_err(failed(&path))?;
    if !database_errors.is_empty() {
        // What it says of blocks may be wrong.
        return Ok(FsckReport {
            database_errors,
            ..FsckReport::default()
        });
    }
    let blocks = snapshot::blocks(&connection).map_err(failed(&path))?;
    let store = BlockStore::for_reading(files.blocks());
    let mut bad = HashMap::new();
    let (mut bytes, mut blocks_without_sha256, mut told) = (0, 0, Instant::now());
    for (number, &hash) in blocks.iter().enumerate() {
        if told.elapsed() >= PROGRESS_INTERVAL {
            info!(
                checked = number,
                of = blocks.len(),
                bad = bad.len(),
                "checking blocks"
            );
            told = Instant::now();
        }
        let found = match depth {
            Depth::Content => store.verify(hash),
            Depth::Presence => store.look_up(hash),
        };
        if let Ok(Verified::Whole(size)) = found {
            bytes += size;
            blocks_without_sha256 += u64::from(!store.has_sha256(hash));
        }
        bad.extend(Damage::of(found).map(|damage| (hash, damage)));
    }
    // What is there by now was removed and stored again meanwhile.
    bad.retain(|&hash, _| !matches!(store.verify(hash), Ok(Verified::Whole(_))));
    // Of the database as it is now: what was deleted meanwhile is not damaged.
    let damage = snapshot::damage(&connection, &bad).map_err(failed(&path))?;
    let count = "SELECT count(*) FROM collections";
    let collections: i64 = connection
        .query_row(count, [], |row| row.get(0))
        .map_err(failed(&path))?;
    Ok(FsckReport {
        collections: collections.unsigned_abs(),
        blocks: blocks.len() as u64,
        bytes,
        blocks_without_sha256,
        database_errors,
        damage,
    })
}
