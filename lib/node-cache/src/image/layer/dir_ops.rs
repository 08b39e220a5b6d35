//! Creates, hides and replaces one name in an open directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use image_archive::layer::Run;
use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::attributes::is_root;
use super::error::EntryError;

/// Attribute of opaque directories as root; users have one of their own.
const OVERLAY_OPAQUE: &str = "trusted.overlay.opaque";
const OVERLAY_OPAQUE_OF_USERS: &str = "user.overlay.opaque";
const COPY_BUFFER: usize = 128 << 10;

pub const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub fn set_opaque(dir: &OwnedFd) -> Result<(), EntryError> {
    let name = match is_root() {
        true => OVERLAY_OPAQUE,
        false => OVERLAY_OPAQUE_OF_USERS,
    };
    rustix::fs::fsetxattr(dir, name, b"y", XattrFlags::empty()).map_err(|error| {
        EntryError::Write(io::Error::other(format!(
            "the file system of the image cache cannot hold {name} ({error})"
        )))
    })
}

/// Hides entries of lower layers under `name`. An entry of this layer stays.
pub fn whiteout(parent: &OwnedFd, name: &OsStr) -> Result<(), EntryError> {
    match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(dir) => set_opaque(&dir),
        Err(Errno::NOENT) => node(parent, name, FileType::CharacterDevice, 0),
        Err(_) => Ok(()),
    }
}

pub fn node(parent: &OwnedFd, name: &OsStr, kind: FileType, device: Dev) -> Result<(), EntryError> {
    Ok(rustix::fs::mknodat(
        parent,
        name,
        kind,
        Mode::from_raw_mode(0o600),
        device,
    )?)
}

/// Makes `name` a directory; true if it replaces an entry that hid lower layers.
pub fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, EntryError> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(false),
        Err(Errno::EXIST) => {
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                return Ok(false);
            }
            rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            Ok(true)
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes an earlier entry of the same name.
pub fn clear(parent: &OwnedFd, name: &OsStr) -> Result<(), EntryError> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => Err(EntryError::Refused(
                "takes the place of a directory that is not empty".into(),
            )),
            done => Ok(done?),
        },
        Err(error) => Err(error.into()),
    }
}

/// Writes the parts of a file that the archive has, one after the other. The rest is holes.
pub fn copy_runs(
    mut content: impl Read,
    file: &File,
    size: u64,
    runs: &[Run],
) -> Result<(), EntryError> {
    let mut buffer = vec![0u8; COPY_BUFFER];
    for run in runs {
        let end = run.offset + run.length;
        let mut at = run.offset;
        while at < end {
            let wanted = usize::try_from(end - at).map_or(COPY_BUFFER, |n| n.min(COPY_BUFFER));
            match content.read(&mut buffer[..wanted]) {
                Ok(0) => return Err(EntryError::Read(io::ErrorKind::UnexpectedEof.into())),
                Ok(n) => {
                    file.write_all_at(&buffer[..n], at)
                        .map_err(EntryError::Write)?;
                    at += n as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(EntryError::Read(error)),
            }
        }
    }
    // A hole at the end was not written.
    file.set_len(size).map_err(EntryError::Write)
}
