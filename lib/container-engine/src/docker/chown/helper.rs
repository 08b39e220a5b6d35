//! Runs inside the helper container as root: makes the owner of a directory the owner of every file
//! below, able to read and remove it.

use std::fs::{self, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};

/// The helper's first argument; the directory follows.
pub const CHOWN_ARGUMENT: &str = "__give-files";

/// Continues after an error and returns the first one. Nothing else uses the directory, since its
/// container has ended.
pub fn change_owner(dir: &Path) -> io::Result<()> {
    let owner = fs::symlink_metadata(dir)?;
    let mut outcome = Ok(());
    let mut to_do = vec![dir.to_owned()];
    while let Some(dir) = to_do.pop() {
        if let Err(error) = change_owner_of_entries(&dir, &owner, &mut to_do) {
            outcome = outcome.and(Err(error));
        }
    }
    outcome
}

fn change_owner_of_entries(
    dir: &Path,
    owner: &Metadata,
    to_do: &mut Vec<PathBuf>,
) -> io::Result<()> {
    let mut outcome = Ok(());
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if let Err(error) = change_owner_of(&path, owner, to_do) {
            outcome = outcome.and(Err(error));
        }
    }
    outcome
}

fn change_owner_of(path: &Path, owner: &Metadata, to_do: &mut Vec<PathBuf>) -> io::Result<()> {
    let facts = fs::symlink_metadata(path)?;
    // Other file systems were not bound for this container.
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
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            eprintln!("SKIPPED: this test needs root, to give files to another user");
            return;
        }
        chown(dir.join("own"), Some(user), Some(0)).unwrap();
        change_owner(&dir).unwrap();
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
