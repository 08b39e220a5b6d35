//! Checks directories of Keep blocks that a run may read without a server.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use preflight::{Finding, Subject};

const KEEP_BLOCKS: Subject = Subject("Keep blocks");

/// No finding if no directory is given.
pub fn run(dirs: &[PathBuf]) -> Vec<Finding> {
    dirs.iter()
        .map(|dir| evaluate(dir, first_of(dir)))
        .collect()
}

/// Whether the directory has an entry.
fn first_of(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir)?.next() {
        Some(entry) => entry.map(|_| true),
        None => Ok(false),
    }
}

/// A missing directory is only a warning: blocks then come from Keep servers.
fn evaluate(dir: &Path, seen: io::Result<bool>) -> Finding {
    let path = dir.display();
    match seen {
        Ok(true) => KEEP_BLOCKS.ok(format!("{path} can be read")),
        Ok(false) => KEEP_BLOCKS.warn(
            format!("{path} is empty: all blocks come from Keep servers"),
            "mount what belongs there, or leave --block-dir out on this node",
        ),
        Err(error) => KEEP_BLOCKS.warn(
            format!("{path} cannot be read, so that all blocks come from Keep servers: {error}"),
            "let this user read it, or leave --block-dir out on this node",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use preflight::Level;

    #[test]
    fn a_directory_of_blocks_is_read_or_it_says_why_not() {
        let dir = tempfile::tempdir().unwrap();
        let (full, empty) = (dir.path().join("full"), dir.path().join("empty"));
        fs::create_dir_all(full.join("acb")).unwrap();
        fs::create_dir(&empty).unwrap();
        let gone = dir.path().join("gone");
        let found = run(&[full, empty, gone]);
        let levels: Vec<Level> = found.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Ok, Level::Warn, Level::Warn]);
        assert!(found[1].finding.contains("is empty"), "{found:?}");
        assert!(found[2].finding.contains("No such file"), "{found:?}");
        assert!(run(&[]).is_empty());
    }
}
