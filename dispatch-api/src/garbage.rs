//! Finds the blocks that no collection refers to, which `blocks/sweep.rs` removes, and empties the
//! trash.
//!
//! A block stays while a collection refers to it, also one in the trash; while it is younger than a
//! limit, because its client may not have saved the collection yet; and if it was stored after the
//! start of a container that still runs. The same holds for collections that were created in the
//! trash, as crunch-run does; others leave the trash by their time there alone. A kill at any
//! moment leaves at most more garbage.

use std::collections::HashSet;
use std::time::{Duration, SystemTime};

use arvados_client::keep::BlockHash;
use fail_points::fail_point;
use jiff::Timestamp;
use rusqlite::Connection;
use serde::Serialize;
use serde_json::Value;

use crate::app::App;
use crate::blocks::signature;
use crate::blocks::sweep::StoredBlock;
use crate::clock;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::schema::COLLECTIONS;
use crate::store::transaction::Tx;

/// Number of blocks that are removed while nobody can store or refer to one.
const BATCH_BLOCKS: usize = 256;
/// Maximum number of collections that one write deletes from the trash.
const BATCH_COLLECTIONS: i64 = 200;
/// Maximum number of blocks that one call removes.
const MAX_REMOVED: u64 = 20_000;

/// What to remove.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    /// Minimum age of blocks, and minimum time of collections in the trash.
    pub older_than: Duration,
    /// Whether collections in the trash are deleted first.
    pub empty_trash: bool,
    /// Whether nothing is removed, only counted.
    pub dry_run: bool,
}

/// What was removed, or would be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    pub blocks: u64,
    pub bytes: u64,
    /// Collections deleted from the trash.
    pub collections: u64,
    /// Collections that stay in the trash.
    pub kept_trash: u64,
    /// Blocks that stay.
    pub kept_blocks: u64,
    pub kept_bytes: u64,
    /// Those of them that no collection refers to, and that are too young.
    pub young_blocks: u64,
    pub young_bytes: u64,
    /// Those of them that are old enough, and may belong to a container that runs.
    pub held_blocks: u64,
    pub held_bytes: u64,
    /// Whether another call would remove more.
    pub more: bool,
}

impl Report {
    fn add(&mut self, removed: &[StoredBlock]) {
        self.blocks += removed.len() as u64;
        self.bytes += removed.iter().map(|block| block.bytes).sum::<u64>();
    }
}

/// Removes garbage. Only one call does so at a time.
pub fn collect(app: &App, request: Request) -> Result<Report> {
    let sweep = app.blocks.begin_sweep().ok_or(ApiError::Busy)?;
    let mut report = Report::default();
    let mut is_full = false;
    if request.empty_trash && !request.dry_run {
        match empty_trash(app, request.older_than) {
            // There may be room for this after the removal of blocks.
            Err(ApiError::DiskFull) => is_full = true,
            deleted => report.collections = deleted?,
        }
    }
    let (used, before) = app.readers.read_everything(|connection| {
        let going = match request.empty_trash && request.dry_run {
            true => in_old_trash(connection, request.older_than, i64::MAX)?,
            false => Vec::new(),
        };
        report.collections += going.len() as u64;
        report.kept_trash = in_trash(connection)?.saturating_sub(going.len() as u64);
        let going: HashSet<String> = going.into_iter().collect();
        let before = SystemTime::from(cutoff(connection, request.older_than)?);
        Ok((used_blocks(connection, &going)?, before))
    })?;
    let old = SystemTime::from(Timestamp::now() - request.older_than);
    fail_point("api.garbage.marked");
    let mut candidates = Vec::new();
    app.blocks.for_each(|block| {
        if *app.stop.borrow() {
            return Err(ApiError::Stopping);
        }
        let is_used = used.contains(&block.hash);
        if is_used || block.stored_at >= before {
            report.kept_blocks += 1;
            report.kept_bytes += block.bytes;
            if !is_used {
                report.young_blocks += 1;
                report.young_bytes += block.bytes;
                if block.stored_at < old {
                    report.held_blocks += 1;
                    report.held_bytes += block.bytes;
                }
            }
            return Ok(());
        }
        if request.dry_run {
            report.add(&[block]);
            return Ok(());
        }
        if report.blocks >= MAX_REMOVED {
            report.more = true;
            return Ok(());
        }
        candidates.push(block);
        if candidates.len() == BATCH_BLOCKS {
            report.add(&sweep.remove(&candidates, before)?);
            candidates.clear();
            fail_point("api.garbage.removed");
        }
        Ok(())
    })?;
    report.add(&sweep.remove(&candidates, before)?);
    match (is_full, report.blocks) {
        (true, 0) => Err(ApiError::DiskFull),
        (true, _) => Ok(Report {
            more: true,
            ..report
        }),
        (false, _) => Ok(report),
    }
}

/// The time before which an unused block must have been stored, and a collection put into the
/// trash. What unfinished containers have stored is younger.
fn cutoff(connection: &Connection, older_than: Duration) -> Result<Timestamp> {
    // Nothing has the time of a lock; it is after the creation.
    let first_start: Option<String> = connection.query_row(
        "SELECT min(CASE state WHEN 'Running' THEN coalesce(started_at, created_at) ELSE created_at END) \
         FROM containers WHERE state IN ('Locked', 'Running')",
        [],
        |row| row.get(0),
    )?;
    let old = Timestamp::now() - older_than;
    let first_start = first_start.as_deref().and_then(clock::parse);
    Ok(first_start.map_or(old, |start| old.min(start)))
}

/// The blocks of all collections but those in `except`.
fn used_blocks(connection: &Connection, except: &HashSet<String>) -> Result<HashSet<BlockHash>> {
    let mut statement = connection.prepare_cached("SELECT uuid, manifest_text FROM collections")?;
    let mut rows = statement.query([])?;
    let mut used = HashSet::new();
    while let Some(row) = rows.next()? {
        let uuid: String = row.get(0)?;
        if !except.contains(&uuid) {
            let text = row.get_ref(1)?;
            let text = text.as_str().map_err(rusqlite::Error::from)?;
            used.extend(signature::locators(text).map(|locator| locator.hash));
        }
    }
    Ok(used)
}

fn in_trash(connection: &Connection) -> Result<u64> {
    let count = "SELECT count(*) FROM collections WHERE is_trashed = 1";
    let number: i64 = connection.query_row(count, [], |row| row.get(0))?;
    Ok(number.unsigned_abs())
}

/// Deletes the collections that have been in the trash for so long.
fn empty_trash(app: &App, older_than: Duration) -> Result<u64> {
    let mut deleted = 0;
    loop {
        let batch = app.write(move |tx| {
            let due = in_old_trash(tx.conn, older_than, BATCH_COLLECTIONS)?;
            for uuid in &due {
                delete(tx, uuid)?;
            }
            Ok(due.len())
        })?;
        deleted += batch as u64;
        if batch == 0 {
            return Ok(deleted);
        }
    }
}

fn delete(tx: &Tx<'_>, uuid: &str) -> Result<()> {
    match rows::fetch(tx.conn, &COLLECTIONS, uuid)? {
        Some(collection) => tx.delete(&COLLECTIONS, &tx.system, &collection),
        None => Ok(()),
    }
}

/// The uuids of collections that have been in the trash for so long, and that no unfinished
/// container names. Those that were created in the trash may be for one that is unfinished.
fn in_old_trash(connection: &Connection, older_than: Duration, limit: i64) -> Result<Vec<String>> {
    let in_use = content_in_use(connection)?;
    let before = clock::stamp(cutoff(connection, older_than)?);
    let old = clock::stamp(Timestamp::now() - older_than);
    let mut statement = connection.prepare_cached(
        "SELECT uuid FROM collections WHERE is_trashed = 1 \
         AND trash_at < CASE WHEN trash_at > created_at THEN ?1 ELSE ?2 END \
         AND portable_data_hash NOT IN (SELECT value FROM json_each(?3)) LIMIT ?4",
    )?;
    let uuids = statement.query_map((old, before, in_use, limit), |row| row.get(0))?;
    Ok(uuids.collect::<rusqlite::Result<_>>()?)
}

/// The content that unfinished containers name: images, inputs, logs and outputs. A JSON array of
/// portable data hashes. A queued container without a request never runs.
pub fn content_in_use(connection: &Connection) -> Result<String> {
    let mut statement = connection.prepare_cached(
        "SELECT container_image, log, output, mounts FROM containers \
         WHERE state IN ('Locked', 'Running') OR state = 'Queued' AND EXISTS \
         (SELECT 1 FROM container_requests \
          WHERE container_uuid = containers.uuid AND container_requests.state = 'Committed')",
    )?;
    let mut rows = statement.query([])?;
    let mut hashes: HashSet<String> = HashSet::new();
    while let Some(row) = rows.next()? {
        for column in 0..3 {
            hashes.extend(row.get::<_, Option<String>>(column)?);
        }
        let mounts: String = row.get(3)?;
        let mounts: Value = serde_json::from_str(&mounts).unwrap_or_default();
        let mounts = mounts.as_object().into_iter().flatten();
        let named = mounts.filter_map(|(_, mount)| mount["portable_data_hash"].as_str());
        hashes.extend(named.map(str::to_owned));
    }
    Ok(Value::from_iter(hashes).to_string())
}
