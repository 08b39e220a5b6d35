//! Directories of Keep blocks that a run may read without asking a server.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::finding::Finding;

const WHAT: &str = "Keep blocks";

/// Nothing where none is given.
pub fn look(dirs: &[PathBuf]) -> Vec<Finding> {
    dirs.iter().map(|dir| judge(dir, first_of(dir))).collect()
}

/// Whether there is anything in it.
fn first_of(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir)?.next() {
        Some(entry) => entry.map(|_| true),
        None => Ok(false),
    }
}

/// Without it blocks come from the Keep servers: slower, and nothing fails.
fn judge(dir: &Path, seen: io::Result<bool>) -> Finding {
    let place = dir.display();
    match seen {
        Ok(true) => Finding::ok(WHAT, format!("{place} can be read")),
        Ok(false) => Finding::warn(
            WHAT,
            format!("{place} is empty: all blocks come from Keep servers"),
            "mount what belongs there, or leave --block-dir out on this node",
        ),
        Err(error) => Finding::warn(
            WHAT,
            format!("{place} cannot be read, so that all blocks come from Keep servers: {error}"),
            "let this user read it, or leave --block-dir out on this node",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::finding::Level;

    #[test]
    fn a_directory_of_blocks_is_read_or_it_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let (full, empty) = (dir.path().join("full"), dir.path().join("empty"));
        fs::create_dir_all(full.join("acb")).unwrap();
        fs::create_dir(&empty).unwrap();
        let gone = dir.path().join("gone");
        let found = look(&[full, empty, gone]);
        let levels: Vec<Level> = found.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warn, Level::Warn]);
        assert!(found[1].finding.contains("is empty"), "{found:?}");
        assert!(found[2].finding.contains("No such file"), "{found:?}");
        assert!(look(&[]).is_empty());
    }
}
