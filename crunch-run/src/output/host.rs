//! Looking at what the container left on this node, one name at a time and never through a link.
//!
//! Every directory is opened relative to the one above it with `O_NOFOLLOW`, so that whatever a
//! link says, no file outside the mount is ever opened.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

/// Something with a name in a directory.
#[derive(Debug)]
pub enum Entry {
    Directory(OwnedFd),
    File(FileFacts),
    Link(Vec<u8>),
    /// A pipe, socket or device, with its mode.
    Special(u32),
}

/// A regular file, with what tells it apart from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileFacts {
    pub size: u64,
    pub id: (u64, u64),
}

const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The place a mount has on this node. Its path is ours; only what is in it is the container's.
pub fn root(path: &Path) -> io::Result<Option<Entry>> {
    entry_at(CWD, path)
}

/// What `name` is in `dir`; `None` if there is nothing of that name.
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
        FileType::RegularFile => Entry::File(facts(&stat)),
        _ => Entry::Special(stat.st_mode),
    }))
}

/// What is neither directory, file nor link, in words.
pub fn special_word(mode: u32) -> &'static str {
    match FileType::from_raw_mode(mode) {
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        FileType::BlockDevice | FileType::CharacterDevice => "a device",
        _ => "no regular file",
    }
}

fn facts(stat: &Stat) -> FileFacts {
    FileFacts {
        size: stat.st_size.try_into().unwrap_or(0),
        id: (stat.st_dev, stat.st_ino),
    }
}

/// What a path inside a mount is. Only its last part may be a link; one before it is as good as
/// nothing there.
pub fn entry_below(root: &Path, relative: &str) -> io::Result<Option<Entry>> {
    let mut found = self::root(root)?;
    for name in relative.split('/').filter(|name| !name.is_empty()) {
        found = match found {
            Some(Entry::Directory(dir)) => entry(&dir, name)?,
            _ => return Ok(None),
        };
    }
    Ok(found)
}

/// Opens the regular file at a path inside a mount for reading.
pub fn open_below(root: &Path, relative: &str) -> io::Result<File> {
    let (dirs, name) = relative.rsplit_once('/').unwrap_or(("", relative));
    // Not blocking, should it have become a pipe.
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
        _ => Err(io::Error::other("it is no regular file any more")),
    }
}

/// The names in a directory, sorted; at most `limit` of them are read. A name that is not UTF-8 is
/// an error that shows it.
pub fn names(dir: &OwnedFd, limit: usize) -> io::Result<Result<Vec<String>, String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok("." | "..") => {}
            Ok(name) => names.push(name.to_owned()),
            Err(_) => return Ok(Err(entry.file_name().to_string_lossy().into_owned())),
        }
        if names.len() > limit {
            break;
        }
    }
    names.sort_unstable();
    Ok(Ok(names))
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
        let found = entry_below(mount.path(), "pipe").unwrap();
        assert!(matches!(found, Some(Entry::Special(_))), "{found:?}");
        assert!(open_below(mount.path(), "pipe").is_err());
    }
}
