//! Files and directories that only this user can read: atomic replacement, creation and removal.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What the new content survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, but perhaps not a power failure.
    Process,
    /// A power failure: the content is synced before the rename.
    Power,
}

/// Replaces the file; a reader gets the old content or the new. One writer at a time.
pub fn replace(path: &Path, content: &[u8], durability: Durability) -> io::Result<()> {
    replace_by(&path.with_extension("new"), path, content, durability)
}

/// Like [`replace`], by a temporary file whose name no concurrent writer uses.
pub fn replace_by(
    temporary: &Path,
    path: &Path,
    content: &[u8],
    durability: Durability,
) -> io::Result<()> {
    let write = || -> io::Result<()> {
        let mut file = create_private(temporary)?;
        file.write_all(content)?;
        if durability == Durability::Power {
            file.sync_all()?;
        }
        fs::rename(temporary, path)
    };
    // An error of the removal says nothing new.
    write().inspect_err(|_| drop(fs::remove_file(temporary)))
}

/// Creates a directory and those above it. An existing one stays as it is.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Creates a file for this user alone, or empties the one that is there.
pub fn create_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)
}

/// Creates a file for this user alone; one that is there is an error.
pub fn create_new_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)
}

/// Opens a file for appending, and creates it for this user alone if it is missing.
pub fn append_private(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600).open(path)
}

/// Creates the file if it is missing, and takes every right to it from other users.
pub fn make_private(path: &Path) -> io::Result<()> {
    append_private(path)?.set_permissions(fs::Permissions::from_mode(0o600))
}

/// Removes a directory with all that is in it. A missing one is a success.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    ignore_missing(fs::remove_dir_all(path))
}

/// Takes the removal of a missing file or directory for a success.
pub fn ignore_missing(removed: io::Result<()>) -> io::Result<()> {
    if_present(removed).map(Option::unwrap_or_default)
}

/// `None` instead of an error where the file or directory does not exist.
pub fn if_present<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_could_read_becomes_private_and_keeps_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        make_private(&path).unwrap();
        make_private(&dir.path().join("new.db")).unwrap();
        for (name, content) in [("a.db", "content"), ("new.db", "")] {
            let path = dir.path().join(name);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode(), 0o100600);
            assert_eq!(fs::read_to_string(&path).unwrap(), content);
        }
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        for content in [&b"long"[..], b"new"] {
            replace(&path, content, Durability::Power).unwrap();
            assert_eq!(fs::read(&path).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode(), 0o100600);
        let occupied = dir.path().join("occupied");
        fs::create_dir(&occupied).unwrap();
        replace(&occupied, b"x", Durability::Process).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
