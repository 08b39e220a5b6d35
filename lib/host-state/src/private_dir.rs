//! Directories and files of this user, in places where others may write, too, such as /tmp.
//!
//! Nothing there is believed because of its name: another user may have made it first. A directory
//! counts if it belongs to this user and nobody else may write to it, a file as well. Links are not
//! followed. An error names who owns what is in the way.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::file::{create_private_dir, if_present};

/// Number of names that are tried where others have taken the first.
const MAX_NAMES: usize = 10;

/// Creates a directory and those above it, if they are missing, and checks it.
pub fn create(path: &Path) -> io::Result<()> {
    // What is in the way is told by the check.
    let created = create_private_dir(path);
    match check(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => created,
        checked => checked,
    }
}

/// Checks that this is a directory of this user that nobody else may write to.
pub fn check(path: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(path)?;
    match found.is_dir() {
        true => check_owner(path, &found),
        false => Err(refused(path, "is no directory".into())),
    }
}

/// Creates the directory, or one beside it if another user has taken its name: `base-1` and so on.
pub fn create_beside(base: &Path) -> io::Result<PathBuf> {
    let mut first_error = None;
    for path in names(base) {
        match create(&path) {
            Ok(()) => return Ok(path),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
}

/// The directories that [`create_beside`] has made, those of other processes included.
pub fn existing(base: &Path) -> impl Iterator<Item = PathBuf> {
    names(base).filter(|path| check(path).is_ok())
}

/// Opens a file of this user for reading. `None` if it is missing.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(flags.bits() as i32);
    let Some(file) = if_present(options.open(path))? else {
        return Ok(None);
    };
    check_file(path, &file)?;
    Ok(Some(file))
}

/// Checks that this open file is one of this user that nobody else may write to.
pub fn check_file(path: &Path, file: &File) -> io::Result<()> {
    let found = file.metadata()?;
    match found.is_file() {
        true => check_owner(path, &found),
        false => Err(refused(path, "is no file".into())),
    }
}

/// Reads a file of this user. `None` if it is missing.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let Some(mut file) = open(path)? else {
        return Ok(None);
    };
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(Some(content))
}

/// Writes a file of this user that all may read.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(false).mode(0o644);
    let mut file = options.custom_flags(flags.bits() as i32).open(path)?;
    check_file(path, &file)?;
    file.set_len(0)?;
    file.write_all(content)
}

fn names(base: &Path) -> impl Iterator<Item = PathBuf> {
    let beside = |n: usize| {
        let mut name = base.as_os_str().to_owned();
        name.push(format!("-{n}"));
        name.into()
    };
    std::iter::once(base.to_owned()).chain((1..MAX_NAMES).map(beside))
}

fn check_owner(path: &Path, found: &fs::Metadata) -> io::Result<()> {
    let (owner, mode) = (found.uid(), found.mode() & 0o7777);
    if owner != rustix::process::geteuid().as_raw() {
        return Err(refused(path, format!("belongs to user {owner}")));
    }
    match mode & 0o022 {
        0 => Ok(()),
        _ => Err(refused(
            path,
            format!(
                "can be written to by others (mode {mode:o}), so what is there may be theirs: move it away; or chmod go-w, if only you could write there so far"
            ),
        )),
    }
}

fn refused(path: &Path, why: String) -> io::Error {
    let text = format!("{} is not used: it {why}", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    /// Takes a name, as another user of the node could.
    fn squat(path: &Path, how: &str) {
        let elsewhere = path.with_extension("elsewhere");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        match how {
            "absent" => return,
            "own" | "foreign" | "0777" => fs::create_dir(path).unwrap(),
            "link" => {
                fs::create_dir(&elsewhere).unwrap();
                symlink(&elsewhere, path).unwrap();
            }
            "dangling link" => symlink(&elsewhere, path).unwrap(),
            "fifo" => rustix::fs::mkfifoat(rustix::fs::CWD, path, 0o666.into()).unwrap(),
            "file" => fs::write(path, "x").unwrap(),
            "0666" => {
                fs::write(path, "x").unwrap();
                mode(path, 0o666);
            }
            _ => unreachable!(),
        }
        match how {
            "own" => mode(path, 0o711),
            "0777" => mode(path, 0o777),
            "foreign" if rustix::process::geteuid().is_root() => {
                chown(path, Some(4711), None).unwrap();
            }
            _ => {}
        }
    }

    #[test]
    fn a_directory_of_another_is_not_used_and_one_beside_it_is() {
        let is_root = rustix::process::geteuid().is_root();
        #[rustfmt::skip]
        let rows = [
            ("absent", None), ("own", None), ("0777", Some("mode 777")), ("link", Some("no directory")),
            ("dangling link", Some("no directory")), ("fifo", Some("no directory")), ("file", Some("no directory")),
            ("foreign", is_root.then_some("belongs to user 4711")),
        ];
        for (how, expected) in rows {
            let dir = tempfile::tempdir().unwrap();
            let base = dir.path().join("x");
            squat(&base, how);
            let error = create(&base).err().map(|error| error.to_string());
            match expected {
                Some(words) => assert!(error.unwrap().contains(words), "{how}"),
                None => assert_eq!(error, None, "{how}"),
            }
            let used = create_beside(&base).unwrap();
            let name = if expected.is_none() { "x" } else { "x-1" };
            assert_eq!(used, dir.path().join(name), "{how}");
            assert_eq!(existing(&base).collect::<Vec<_>>(), [used], "{how}");
        }
    }

    #[test]
    fn a_file_of_another_is_neither_read_nor_written() {
        let dir = tempfile::tempdir().unwrap();
        for how in [
            "absent",
            "link",
            "dangling link",
            "fifo",
            "file",
            "0666",
            "own",
        ] {
            let path = dir.path().join(how.replace(' ', "-"));
            squat(&path, how);
            let content = read(&path);
            match how {
                "absent" => assert_eq!(content.unwrap(), None),
                "file" => assert_eq!(content.unwrap(), Some(b"x".to_vec())),
                _ => assert!(content.is_err(), "{how}"),
            }
            let written = write(&path, b"new");
            assert_eq!(written.is_ok(), ["absent", "file"].contains(&how), "{how}");
            if written.is_ok() {
                assert_eq!(read(&path).unwrap(), Some(b"new".to_vec()), "{how}");
            }
        }
    }
}
