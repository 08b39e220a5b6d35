//! `backup`: copies what has changed since the last backup into it.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use arvados_client::keep::BlockHash;
use fail_points::fail_point;
use host_state::file;

use super::copy_blocks::{self, Copied};
use super::error::{BackupError, Result};
use super::files::{BACKUP_FILE, BackupNote, Files};
use super::snapshot::{self, CopyReport, DamageReport};
use crate::blocks::store::BlockStore;
use crate::clock;
use crate::state_dir::ServerIdentity;

/// Maximum number of times that the database is copied because blocks of the last copy have been
/// deleted meanwhile.
const MAX_COPIES: usize = 5;

/// The last database whose manifests are all whole, if those of the newest are not.
const WHOLE_DATABASE: &str = "state.db.whole";

/// Copies the state directory `state` into the backup `target`, which is created if needed.
pub fn create(state: &Path, target: &Path) -> Result<CopyReport> {
    let state = Files::open(state)?;
    let server = state.identity()?;
    if state.has(BACKUP_FILE) {
        return Err(BackupError::IsBackup(state.dir));
    }
    let target = open_target(&state, target)?;
    // Before the lock, which would leave a file in a wrong directory, and again with it.
    check_target(&target, &server)?;
    let _lock = target.lock()?;
    check_target(&target, &server)?;
    target.make_private()?;
    let mut note = BackupNote {
        cluster_id: server.cluster_id,
        finished_at: None,
    };
    if !target.has(BACKUP_FILE) {
        target.write_note(&note)?;
    }
    let copied = copy_database_and_blocks(&state, &target)?;
    target.copy_private_files(&state)?;
    fail_point("api.backup.before-rename");
    target.sync_all()?;
    let database = target.database();
    let is_rotten = copied.damage.has_bad_manifests();
    let whole = target.dir.join(WHOLE_DATABASE);
    if is_rotten && !whole.exists() && database.exists() {
        fs::hard_link(&database, &whole).map_err(BackupError::io(&whole))?;
    }
    fs::rename(next_database(&target), &database).map_err(BackupError::io(&database))?;
    target.sync()?;
    fail_point("api.backup.after-rename");
    note.finished_at = Some(clock::now());
    target.write_note(&note)?;
    target.sync()?;
    let removed_blocks = match is_rotten {
        // The last whole database may name others.
        true => 0,
        false => {
            file::ignore_missing(fs::remove_file(&whole)).map_err(BackupError::io(&whole))?;
            remove_unnamed(&copied.store, &copied.blocks)?
        }
    };
    Ok(CopyReport {
        removed_blocks: Some(removed_blocks),
        ..CopyReport::of(&copied.blocks, &copied.copied, copied.damage)
    })
}

fn open_target(state: &Files, target: &Path) -> Result<Files> {
    // Before the directory is created, so that nothing is left of a wrong path.
    let above = target
        .ancestors()
        .find_map(|path| match path.as_os_str().is_empty() {
            true => Path::new(".").canonicalize().ok(),
            false => path.canonicalize().ok(),
        });
    if above.is_some_and(|above| above.starts_with(&state.dir)) {
        return Err(BackupError::Inside {
            inner: target.to_owned(),
            outer: state.dir.clone(),
        });
    }
    Files::create(target)
}

/// Rejects a directory with something else, and the backup of another server.
fn check_target(target: &Files, server: &ServerIdentity) -> Result<()> {
    if !target.has(BACKUP_FILE) && !target.is_empty()? {
        return Err(BackupError::NoBackup(target.dir.clone()));
    }
    match target.belongs_to(server)? {
        true => Ok(()),
        false => Err(BackupError::OtherServer(target.dir.clone())),
    }
}

/// The copy of the database that becomes the backup's.
fn next_database(target: &Files) -> std::path::PathBuf {
    target.dir.join("state.db.next")
}

struct CopiedState {
    store: BlockStore,
    /// The blocks that the copy of the database names.
    blocks: HashSet<BlockHash>,
    copied: Copied,
    damage: DamageReport,
}

/// Copies the database, and then the blocks that it names.
///
/// A block can be deleted in between, with the last collection that has it. So with a block
/// missing, the database is copied anew: one that is missing again is lost.
fn copy_database_and_blocks(state: &Files, target: &Files) -> Result<CopiedState> {
    let from = BlockStore::for_reading(state.blocks());
    let path = target.blocks();
    let store = BlockStore::open(path.clone()).map_err(BackupError::io(&path))?;
    let database = next_database(target);
    let mut all = Copied::default();
    for _ in 0..MAX_COPIES {
        snapshot::copy(&state.database(), &database)?;
        fail_point("api.backup.database-copied");
        let connection = snapshot::open(&database)?;
        // The copy has the errors of the original.
        snapshot::require_integrity(&connection, &state.database())?;
        let blocks = snapshot::blocks(&connection).map_err(BackupError::database(&database))?;
        let copied = copy_blocks::copy(&from, &store, &blocks)?;
        all.blocks += copied.blocks;
        all.bytes += copied.bytes;
        let before = std::mem::replace(&mut all.bad, copied.bad);
        if all.bad.keys().all(|block| before.contains_key(block)) {
            let damage = snapshot::damage(&connection, &all.bad);
            let damage = damage.map_err(BackupError::database(&database))?;
            return Ok(CopiedState {
                store,
                blocks,
                copied: all,
                damage,
            });
        }
    }
    file::ignore_missing(fs::remove_file(&database)).map_err(BackupError::io(&database))?;
    Err(BackupError::BlocksVanish)
}

/// Removes the blocks that the backup's database does not name.
fn remove_unnamed(store: &BlockStore, named: &HashSet<BlockHash>) -> Result<u64> {
    let mut removed = 0;
    let done = store.for_each(|block| {
        if !named.contains(&block.hash) {
            store.remove(block.hash)?;
            removed += 1;
        }
        Ok(())
    });
    done.map_err(BackupError::blocks(store.root()))?;
    Ok(removed)
}
