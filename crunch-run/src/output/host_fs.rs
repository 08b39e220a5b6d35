//! Reads the files that the container left on this node, one name at a time and never through a
//! link.
//!
//! Every directory is opened relative to its parent with `O_NOFOLLOW`, so no link can lead to a
//! file outside the mount.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// A directory entry.
#[derive(Debug)]
pub enum Entry {
    Directory(OwnedFd),
    File(FileStat),
    Link(Vec<u8>),
    /// A pipe, socket or device, with its mode.
    Special(u32),
}

/// Size and identity (device and inode) of a regular file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStat {
    pub size: u64,
    pub id: (u64, u64),
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The entry at a mount's path on this node. crunch-run chose that path; the container only writes
/// inside it.
pub fn root(path: &Path) -> io::Result<Option<Entry>> {
    entry_at(CWD, path)
}

/// The entry `name` in `dir`, if it exists.
pub fn entry(dir: &OwnedFd, name: &str) -> io::Result<Option<Entry>> {
    entry_at(dir, Path::new(name))
}

fn entry_at(dir: impl std::os::fd::AsFd + Copy, name: &Path) -> io::Result<Option<Entry>> {
    let stat = match rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    Ok(Some(match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            Entry::Directory(rustix::fs::openat(dir, name, DIRECTORY, Mode::empty())?)
        }
        FileType::Symlink => {
            Entry::Link(rustix::fs::readlinkat(dir, name, Vec::new())?.into_bytes())
        }
        FileType::RegularFile => Entry::File(file_stat(&stat)),
        _ => Entry::Special(stat.st_mode),
    }))
}

/// The kind of an entry that is not a directory, file or link.
pub fn special_word(mode: u32) -> &'static str {
    match FileType::from_raw_mode(mode) {
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "not a regular file",
    }
}

fn file_stat(stat: &Stat) -> FileStat {
    FileStat {
        size: stat.st_size.try_into().unwrap_or(0),
        id: (stat.st_dev, stat.st_ino),
    }
}

/// The entry at a path inside a mount. Only its last part may be a link; a link before it counts as
/// missing.
pub fn entry_below(root: &Path, relative: &str) -> io::Result<Option<Entry>> {
    let mut plan = self::root(root)?;
    for name in relative.split('/').filter(|name| !name.is_empty()) {
        plan = match plan {
            Some(Entry::Directory(dir)) => entry(&dir, name)?,
            _ => return Ok(None),
        };
    }
    Ok(plan)
}

/// Opens the regular file at a path inside a mount for reading.
pub fn open_below(root: &Path, relative: &str) -> io::Result<File> {
    let (dirs, name) = relative.rsplit_once('/').unwrap_or(("", relative));
    // Non-blocking in case the file was replaced by a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = if relative.is_empty() {
        rustix::fs::openat(CWD, root, flags, Mode::empty())?
    } else {
        let mut dir = rustix::fs::openat(CWD, root, DIRECTORY, Mode::empty())?;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            dir = rustix::fs::openat(&dir, part, DIRECTORY, Mode::empty())?;
        }
        rustix::fs::openat(&dir, name, flags, Mode::empty())?
    };
    let stat = rustix::fs::fstat(&file)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(File::from(file)),
        _ => Err(io::Error::other("it is not a regular file any more")),
    }
}

/// The names in a directory.
#[derive(Debug, Default)]
pub struct Names {
    /// Sorted.
    pub good: Vec<String>,
    /// Names that are not UTF-8, as far as they can be shown.
    pub odd: Vec<String>,
}

/// The names in a directory; at most `limit` and one of them are read.
pub fn names(dir: &OwnedFd, limit: usize) -> io::Result<Names> {
    let mut names = Names::default();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) => names.good.push(name.to_owned()),
            Err(_) => names
                .odd
                .push(entry.file_name().to_string_lossy().into_owned()),
        }
        if names.good.len() + names.odd.len() > limit {
            break;
        }
    }
    names.good.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_link_is_ever_followed() {
        let secret = tempfile::tempdir().unwrap();
        std::fs::write(secret.path().join("f"), "host").unwrap();
        let mount = tempfile::tempdir().unwrap();
        std::fs::create_dir(mount.path().join("d")).unwrap();
        std::fs::write(mount.path().join("d/f"), "own").unwrap();
        symlink(secret.path(), mount.path().join("dir")).unwrap();
        symlink(secret.path().join("f"), mount.path().join("file")).unwrap();

        let mut text = String::new();
        open_below(mount.path(), "d/f")
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "own");
        for path in ["dir/f", "file", "dir"] {
            assert!(open_below(mount.path(), path).is_err(), "{path}");
        }
        assert!(entry_below(mount.path(), "dir/f").unwrap().is_none());
        let link = entry_below(mount.path(), "file").unwrap();
        assert!(matches!(link, Some(Entry::Link(_))), "{link:?}");
        assert!(entry_below(mount.path(), "d/f/g").unwrap().is_none());
    }

    #[test]
    fn a_pipe_is_told_and_not_opened() {
        let mount = tempfile::tempdir().unwrap();
        let path = mount.path().join("pipe");
        rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o644), 0).unwrap();
        let plan = entry_below(mount.path(), "pipe").unwrap();
        assert!(matches!(plan, Some(Entry::Special(_))), "{plan:?}");
        assert!(open_below(mount.path(), "pipe").is_err());
    }
}
