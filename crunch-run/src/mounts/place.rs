//! Making directories and files in the scratch directory, for the container to see.
//!
//! Nothing here runs while the container does, and nothing that exists here came from it, so there
//! are no links to be careful about; names from manifests never contain `..`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What the container may do with a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// As any user, and what it makes in a directory keeps the directory's group.
    Writable,
}

impl Access {
    fn directory_mode(self) -> u32 {
        match self {
            Self::ReadOnly => 0o755,
            Self::Writable => 0o2777,
        }
    }

    /// Files of collections can be executed, as they can where Keep is mounted with arv-mount.
    pub fn file_mode(self) -> u32 {
        match self {
            Self::ReadOnly => 0o555,
            Self::Writable => 0o777,
        }
    }
}

/// A directory; one that is there already stays as it is.
pub fn directory(path: &Path, access: Access) -> io::Result<()> {
    match fs::create_dir(path) {
        // Only chmod is independent of the umask.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(access.directory_mode())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The directories of `relative` below `base`, which exists.
pub fn directories(base: &Path, relative: &Path, access: Access) -> io::Result<()> {
    let mut path = base.to_owned();
    for part in relative.components() {
        path.push(part);
        directory(&path, access)?;
    }
    Ok(())
}

/// A new, empty file that we can write to until [`set_mode`].
pub fn file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Opens a file made before, to fill a piece of it.
pub fn reopen(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// A name that no file system here can store, as opposed to a node that fails.
pub fn is_bad_name(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o7777
    }

    #[test]
    fn modes_do_not_depend_on_the_umask() {
        let scratch = tempfile::tempdir().unwrap();
        directories(scratch.path(), Path::new("a/b"), Access::Writable).unwrap();
        assert_eq!(mode(&scratch.path().join("a")), 0o2777);
        assert_eq!(mode(&scratch.path().join("a/b")), 0o2777);
        directories(scratch.path(), Path::new("a/c"), Access::ReadOnly).unwrap();
        assert_eq!(mode(&scratch.path().join("a")), 0o2777, "it was there");
        assert_eq!(mode(&scratch.path().join("a/c")), 0o755);
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        file(&scratch.path().join("f")).unwrap();
        assert!(file(&scratch.path().join("f")).is_err());
        assert!(directory(&scratch.path().join("f"), Access::Writable).is_err());
        let long = "x".repeat(300);
        assert!(is_bad_name(&file(&scratch.path().join(long)).unwrap_err()));
        assert!(is_bad_name(
            &file(&scratch.path().join("a\0b")).unwrap_err()
        ));
    }
}
