//! Inside the helper container: root gives every file below a directory to the owner of that directory, who may
//! then read it and remove it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

/// The helper's first argument; the directory follows.
pub const ARGUMENT: &str = "__give-files";

/// An error is the first one; what follows it is tried all the same. Nothing else works in the directory: its
/// container has ended.
pub fn give(dir: &Path) -> io::Result<()> {
    let owner = fs::symlink_metadata(dir)?;
    let mut outcome = Ok(());
    let mut to_do = vec![dir.to_owned()];
    while let Some(dir) = to_do.pop() {
        if let Err(error) = give_entries(&dir, &owner, &mut to_do) {
            outcome = outcome.and(Err(error));
        }
    }
    outcome
}

fn give_entries(dir: &Path, owner: &Metadata, to_do: &mut Vec<PathBuf>) -> io::Result<()> {
    let mut outcome = Ok(());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if let Err(error) = give_one(&path, owner, to_do) {
            outcome = outcome.and(Err(error));
        }
    }
    outcome
}

fn give_one(path: &Path, owner: &Metadata, to_do: &mut Vec<PathBuf>) -> io::Result<()> {
    let facts = fs::symlink_metadata(path)?;
    // Another file system is none that this container was given.
    if facts.dev() != owner.dev() {
        return Ok(());
    }
    if facts.is_dir() {
        to_do.push(path.to_owned());
    }
    if facts.uid() == owner.uid() {
        return Ok(());
    }
    lchown(path, Some(owner.uid()), Some(owner.gid()))?;
    // Root needed no permission to read it; its new owner does.
    let needed = match (facts.is_dir(), facts.is_file()) {
        (true, _) => 0o700,
        (_, true) => 0o600,
        _ => return Ok(()),
    };
    fs::set_permissions(
        path,
        Permissions::from_mode((facts.mode() & 0o777) | needed),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    #[test]
    fn everything_below_belongs_to_the_owner_and_links_lead_nowhere() {
        let top = tempfile::tempdir().unwrap();
        let (dir, outside) = (top.path().join("dir"), top.path().join("outside"));
        fs::create_dir_all(dir.join("closed")).unwrap();
        fs::write(&outside, "x").unwrap();
        fs::write(dir.join("closed/file"), "x").unwrap();
        fs::write(dir.join("own"), "x").unwrap();
        symlink(&outside, dir.join("link")).unwrap();
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        mode(&dir.join("own"), 0o400).unwrap();
        mode(&dir.join("closed/file"), 0o4040).unwrap();
        mode(&dir.join("closed"), 0o050).unwrap();
        let (user, group) = (4321, 4322);
        if chown(&dir, Some(user), Some(group)).is_err() {
            println!("skipped: only root gives files away");
            return;
        }
        chown(dir.join("own"), Some(user), Some(0)).unwrap();
        give(&dir).unwrap();
        for (name, group, mode) in [
            ("own", 0, 0o400),
            ("closed", group, 0o750),
            ("closed/file", group, 0o640),
        ] {
            let facts = fs::symlink_metadata(dir.join(name)).unwrap();
            let found = (facts.uid(), facts.gid(), facts.mode() & 0o7777);
            assert_eq!(found, (user, group, mode), "{name}");
        }
        assert_eq!(fs::symlink_metadata(dir.join("link")).unwrap().uid(), user);
        assert_eq!(fs::metadata(&outside).unwrap().uid(), 0);
    }
}
