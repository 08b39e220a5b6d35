//! Creates directories and files in the scratch directory.
//!
//! Nothing here runs while the container does, so links need no care. Names from manifests never
//! contain `..`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Access of the container to a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    ReadOnly,
    /// Writable for any user. New files in a directory inherit its group.
    Writable,
}

impl Access {
    fn directory_mode(self) -> u32 {
        match self {
            Self::ReadOnly => 0o755,
            Self::Writable => 0o2777,
        }
    }

    /// Files of collections are executable, as with arv-mount.
    pub fn file_mode(self) -> u32 {
        match self {
            Self::ReadOnly => 0o555,
            Self::Writable => 0o777,
        }
    }
}

/// Creates a directory. An existing one stays as it is.
pub fn create_dir(path: &Path, access: Access) -> io::Result<()> {
    match fs::create_dir(path) {
        // Only chmod is independent of the umask.
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(access.directory_mode())),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates the directories of `relative` below `base`, which exists.
pub fn create_dirs(base: &Path, relative: &Path, access: Access) -> io::Result<()> {
    let mut path = base.to_owned();
    for part in relative.components() {
        path.push(part);
        create_dir(&path, access)?;
    }
    Ok(())
}

/// Creates an empty file that is writable until [`set_mode`].
pub fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

/// Opens an existing file to write a range of it.
pub fn open_for_writing(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(path)
}

pub fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Whether the name cannot be stored, as opposed to a failure of the node.
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
        create_dirs(scratch.path(), Path::new("a/b"), Access::Writable).unwrap();
        assert_eq!(mode(&scratch.path().join("a")), 0o2777);
        assert_eq!(mode(&scratch.path().join("a/b")), 0o2777);
        create_dirs(scratch.path(), Path::new("a/c"), Access::ReadOnly).unwrap();
        assert_eq!(mode(&scratch.path().join("a")), 0o2777, "it was there");
        assert_eq!(mode(&scratch.path().join("a/c")), 0o755);
    }

    #[test]
    fn a_file_in_the_way_is_an_error() {
        let scratch = tempfile::tempdir().unwrap();
        create_file(&scratch.path().join("f")).unwrap();
        assert!(create_file(&scratch.path().join("f")).is_err());
        assert!(create_dir(&scratch.path().join("f"), Access::Writable).is_err());
        let long = "x".repeat(300);
        assert!(is_bad_name(
            &create_file(&scratch.path().join(long)).unwrap_err()
        ));
        assert!(is_bad_name(
            &create_file(&scratch.path().join("a\0b")).unwrap_err()
        ));
    }
}
