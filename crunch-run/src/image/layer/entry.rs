//! Making, hiding and replacing one name in an open directory.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::attributes::is_root;
use super::problem::Problem;

pub const WHITEOUT: &[u8] = b".wh.";
pub const OPAQUE: &[u8] = b".wh..wh..opq";
/// Only root may set the first.
const OVERLAY_OPAQUE: &str = "trusted.overlay.opaque";
const OVERLAY_OPAQUE_OF_USERS: &str = "user.overlay.opaque";
const COPY_BUFFER: usize = 128 << 10;

pub const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

pub fn set_opaque(dir: &OwnedFd) -> Result<(), Problem> {
    let name = match is_root() {
        true => OVERLAY_OPAQUE,
        false => OVERLAY_OPAQUE_OF_USERS,
    };
    rustix::fs::fsetxattr(dir, name, b"y", XattrFlags::empty()).map_err(|error| {
        Problem::Write(io::Error::other(format!(
            "the file system of the image cache cannot hold {name} ({error})"
        )))
    })
}

/// Hides what lower layers have under `name`. An entry of this same layer stays.
pub fn whiteout(parent: &OwnedFd, name: &OsStr) -> Result<(), Problem> {
    if matches!(name.as_bytes(), b"" | b"." | b"..") {
        return Err(Problem::Refused("hides no file name".into()));
    }
    // Housekeeping of aufs, which once made layers.
    if name.as_bytes().starts_with(WHITEOUT) {
        return Ok(());
    }
    match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(dir) => set_opaque(&dir),
        Err(Errno::NOENT) => node(parent, name, FileType::CharacterDevice, 0),
        Err(_) => Ok(()),
    }
}

pub fn node(parent: &OwnedFd, name: &OsStr, kind: FileType, device: Dev) -> Result<(), Problem> {
    Ok(rustix::fs::mknodat(
        parent,
        name,
        kind,
        Mode::from_raw_mode(0o600),
        device,
    )?)
}

/// Makes `name` a directory; true if it takes the place of something that hid lower layers.
pub fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, Problem> {
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

/// A later entry of the same name takes the place of an earlier one.
pub fn clear(parent: &OwnedFd, name: &OsStr) -> Result<(), Problem> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => Err(Problem::Refused(
                "takes the place of a directory that is not empty".into(),
            )),
            done => Ok(done?),
        },
        Err(error) => Err(error.into()),
    }
}

pub fn copy(mut from: impl Read, mut to: &File) -> Result<(), Problem> {
    let mut buffer = vec![0u8; COPY_BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(&buffer[..n]).map_err(Problem::Write)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Problem::Read(error)),
        }
    }
}
