//! Small files of the cache, one for each archive. Each directory has a bounded number of them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use host_state::file::{Durability, create_private_dir, replace_by};
use serde::Serialize;

/// Maximum number of records in a directory; the oldest goes.
const MAX_RECORDS: usize = 1000;
/// Maximum size of a record in bytes. A configuration may have anything in it.
const MAX_RECORD_BYTES: usize = 1 << 20;

/// Writes a record and removes those that are too old. One that is too large is left out.
pub fn write(path: &Path, record: &impl Serialize, ttl: Duration) -> io::Result<()> {
    let text = serde_json::to_vec(record)?;
    if text.len() > MAX_RECORD_BYTES {
        return Ok(());
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    create_private_dir(dir)?;
    prune(dir, ttl)?;
    let draft = path.with_extension(std::process::id().to_string());
    replace_by(&draft, path, &text, Durability::Power)
}

pub fn is_young(written: SystemTime, ttl: Duration) -> bool {
    written.elapsed().is_ok_and(|age| age < ttl)
}

/// Removes records that are too old, and the oldest until there is room for another.
fn prune(dir: &Path, ttl: Duration) -> io::Result<()> {
    let mut records = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        // Who removed a lock could let two in.
        if entry
            .path()
            .extension()
            .is_none_or(|ending| ending != "lock")
        {
            records.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    records.sort();
    let surplus = (records.len() + 1).saturating_sub(MAX_RECORDS);
    for (number, (written, path)) in records.iter().enumerate() {
        if number < surplus || !is_young(*written, ttl) {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        for n in 0..MAX_RECORDS + 5 {
            fs::write(dir.path().join(format!("{n}.json")), "").unwrap();
            fs::write(dir.path().join(format!("{n}.lock")), "").unwrap();
        }
        let count = || fs::read_dir(dir.path()).unwrap().count() - MAX_RECORDS - 5;
        let new = dir.path().join("new.json");
        write(&new, &"x".repeat(MAX_RECORD_BYTES), Duration::MAX).unwrap();
        assert_eq!(count(), MAX_RECORDS + 5);
        write(&new, &"x", Duration::MAX).unwrap();
        assert_eq!(count(), MAX_RECORDS);
        assert_eq!(fs::read(&new).unwrap(), b"\"x\"");
    }
}
