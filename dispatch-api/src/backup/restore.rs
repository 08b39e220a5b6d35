//! `restore`: makes a state directory from a backup. Until it is whole, no server starts there.

use std::fs;
use std::io;
use std::path::Path;

use fail_points::fail_point;

use super::copy_blocks;
use super::error::{BackupError, Result};
use super::files::{BACKUP_FILE, Files, RESTORE_FILE};
use super::snapshot::{self, CopyReport};
use crate::blocks::store::BlockStore;

/// Copies the backup into the state directory `state`: a new one, or one of a restore that did not
/// end.
pub fn restore(backup: &Path, state: &Path) -> Result<CopyReport> {
    let backup = Files::open(backup)?;
    if !backup.has(BACKUP_FILE) {
        return Err(BackupError::NoBackup(backup.dir));
    }
    if !backup.database().exists() {
        return Err(BackupError::Unfinished(backup.dir));
    }
    let server = backup.identity()?;
    let _backup_lock = backup.lock()?;
    let state = Files::create(state)?;
    let continues = state.has(RESTORE_FILE) && state.belongs_to(&server)?;
    if !continues && !state.is_empty()? {
        return Err(BackupError::NotEmpty(state.dir));
    }
    let _lock = state.lock()?;
    if !continues && !state.is_empty()? {
        return Err(BackupError::NotEmpty(state.dir));
    }
    state.make_private()?;
    state.write(RESTORE_FILE, b"")?;
    state.sync()?;
    fail_point("api.restore.begun");
    let report = copy_state(&backup, &state)?;
    let note = state.dir.join(RESTORE_FILE);
    state.sync_all()?;
    fail_point("api.restore.before-end");
    fs::remove_file(&note).map_err(BackupError::io(&note))?;
    state.sync()?;
    Ok(report)
}

fn copy_state(backup: &Files, state: &Files) -> Result<CopyReport> {
    let database = backup.database();
    let connection = snapshot::open(&database)?;
    snapshot::require_integrity(&connection, &database)?;
    let blocks = snapshot::blocks(&connection).map_err(BackupError::database(&database))?;
    let from = BlockStore::for_reading(backup.blocks());
    let path = state.blocks();
    let to = BlockStore::open(path.clone()).map_err(BackupError::io(&path))?;
    let copied = copy_blocks::copy(&from, &to, &blocks)?;
    let damage = snapshot::damage(&connection, &copied.bad);
    let damage = damage.map_err(BackupError::database(&database))?;
    drop(connection);
    state.copy_private_files(backup)?;
    fail_point("api.restore.files-copied");
    copy_file(&database, &state.database()).map_err(BackupError::io(&state.database()))?;
    Ok(CopyReport::of(&blocks, &copied, damage))
}

/// With the mode of the backup's file, which only its owner can read.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to)?;
    fs::File::open(to)?.sync_all()
}
