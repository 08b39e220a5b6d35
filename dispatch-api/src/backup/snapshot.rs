//! The database at one moment: its copy, the blocks that it names, and the collections that miss
//! some of them.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::Path;

use arvados_client::keep::BlockHash;
use arvados_client::manifest;
use host_state::file;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use serde::Serialize;

use super::copy_blocks::{BadBlock, Copied, Damage};
use super::error::{BackupError, Result};
use crate::blocks::signature;
use crate::db;

/// Opens the database for reading only. Its layout may be older than that of this program.
pub fn open(path: &Path) -> Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(BackupError::database(path))?;
    connection
        .busy_timeout(db::BUSY_TIMEOUT)
        .map_err(BackupError::database(path))?;
    db::check_layout(&connection, path).map_err(BackupError::Layout)?;
    Ok(connection)
}

/// Copies the database into a new file, as of one moment. A damaged one is an error.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    file::ignore_missing(std::fs::remove_file(to)).map_err(BackupError::io(to))?;
    // SQLite would create it for all to read.
    file::make_private(to).map_err(BackupError::io(to))?;
    let name = to.to_str().ok_or(io::ErrorKind::InvalidFilename.into());
    let name = name.map_err(BackupError::io(to))?;
    let connection = open(from)?;
    connection
        .execute("VACUUM INTO ?1", [name])
        .map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => BackupError::DiskFull(to.to_owned()),
            _ => BackupError::database(from)(error),
        })?;
    // SQLite does not sync it.
    File::open(to)
        .and_then(|file| file.sync_all())
        .map_err(BackupError::io(to))
}

/// Passes uuid, name, portable data hash and manifest of each collection to `each`.
pub fn for_each_collection(
    connection: &Connection,
    mut each: impl FnMut(&str, &str, &str, &str),
) -> rusqlite::Result<()> {
    let sql = "SELECT uuid, name, portable_data_hash, manifest_text FROM collections";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let text = |column| -> rusqlite::Result<&str> { Ok(row.get_ref(column)?.as_str()?) };
        each(text(0)?, text(1)?, text(2)?, text(3)?);
    }
    Ok(())
}

/// The blocks of all collections. The empty block needs no file.
pub fn blocks(connection: &Connection) -> rusqlite::Result<HashSet<BlockHash>> {
    let mut blocks = HashSet::new();
    for_each_collection(connection, |_, _, _, manifest| {
        blocks.extend(signature::locators(manifest).map(|locator| locator.hash));
    })?;
    blocks.remove(&BlockHash::of(b""));
    Ok(blocks)
}

/// A collection that cannot be read as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DamagedCollection {
    pub uuid: String,
    pub name: String,
    pub portable_data_hash: String,
    /// Number of its blocks, each counted once.
    pub blocks: usize,
    pub bad_blocks: Vec<BlockHash>,
    /// Whether its manifest is another than its portable data hash says.
    pub bad_manifest: bool,
}

/// What is damaged, as far as a collection has it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DamageReport {
    pub bad_blocks: Vec<BadBlock>,
    pub damaged_collections: Vec<DamagedCollection>,
}

impl DamageReport {
    /// Whether the database itself says something else than it did.
    pub fn has_bad_manifests(&self) -> bool {
        let mut collections = self.damaged_collections.iter();
        collections.any(|collection| collection.bad_manifest)
    }

    pub fn is_empty(&self) -> bool {
        self.bad_blocks.is_empty() && self.damaged_collections.is_empty()
    }
}

/// What a backup or a restore has done.
#[derive(Debug, Serialize)]
pub struct CopyReport {
    /// Blocks of the backup, or of the state directory, that are good.
    pub blocks: u64,
    /// Those of them that were copied now.
    pub copied_blocks: u64,
    pub copied_bytes: u64,
    /// Blocks that only an earlier backup named; none of a restore.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removed_blocks: Option<u64>,
    /// What could not be copied, because it is damaged where it comes from.
    #[serde(flatten)]
    pub damage: DamageReport,
}

impl CopyReport {
    pub fn of(named: &HashSet<BlockHash>, copied: &Copied, damage: DamageReport) -> Self {
        CopyReport {
            blocks: (named.len() - damage.bad_blocks.len()) as u64,
            copied_blocks: copied.blocks,
            copied_bytes: copied.bytes,
            removed_blocks: None,
            damage,
        }
    }
}

/// The collections with bad blocks or manifests, and those of the blocks that they name.
pub fn damage(
    connection: &Connection,
    bad: &HashMap<BlockHash, Damage>,
) -> rusqlite::Result<DamageReport> {
    let mut report = DamageReport::default();
    let mut named = HashSet::new();
    for_each_collection(connection, |uuid, name, hash, text| {
        let blocks: HashSet<BlockHash> = signature::locators(text)
            .map(|locator| locator.hash)
            .collect();
        let is_bad = |block: &&BlockHash| bad.contains_key(*block);
        let mut bad_blocks: Vec<BlockHash> = blocks.iter().filter(is_bad).copied().collect();
        bad_blocks.sort_unstable();
        let bad_manifest = manifest::portable_data_hash(text).to_string() != hash;
        if bad_blocks.is_empty() && !bad_manifest {
            return;
        }
        named.extend(bad_blocks.iter().copied());
        report.damaged_collections.push(DamagedCollection {
            uuid: uuid.to_owned(),
            name: name.to_owned(),
            portable_data_hash: hash.to_owned(),
            blocks: blocks.len(),
            bad_blocks,
            bad_manifest,
        });
    })?;
    report.bad_blocks = bad
        .iter()
        .filter(|(hash, _)| named.contains(hash))
        .map(|(hash, damage)| BadBlock {
            hash: *hash,
            damage: damage.clone(),
        })
        .collect();
    report.bad_blocks.sort_unstable_by_key(|block| block.hash);
    Ok(report)
}

/// What is wrong with the database, at most 100 lines.
pub fn integrity(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("PRAGMA integrity_check(100)")?;
    let lines = statement.query_map([], |row| row.get::<_, String>(0))?;
    let mut found: Vec<String> = Vec::new();
    for line in lines {
        match line {
            Ok(line) if line == "ok" => {}
            Ok(line) => found.push(line),
            // Too damaged to go on.
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt) => {
                found.push(error.to_string());
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// Fails if something is wrong with the database.
pub fn require_integrity(connection: &Connection, path: &Path) -> Result<()> {
    let mut found = integrity(connection).map_err(BackupError::database(path))?;
    match found.is_empty() {
        true => Ok(()),
        false => Err(BackupError::Damaged {
            path: path.to_owned(),
            problem: found.swap_remove(0),
        }),
    }
}
