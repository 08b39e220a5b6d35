//! Owner, mode, times and extended attributes of an entry, as they are applied.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::ffi::OsStringExt;

use rustix::fs::{Gid, Timespec, Timestamps, Uid};
use tar::{Entry, EntryType};

use super::error::EntryError;

/// Extended attributes, without overlayfs's own: these would change the meaning of the layer.
pub fn xattrs<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<(OsString, Vec<u8>)>, EntryError> {
    let mut found = Vec::new();
    if let Some(extensions) = entry.pax_extensions().map_err(EntryError::Read)? {
        for extension in extensions {
            let extension = extension.map_err(EntryError::Read)?;
            if let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.")
                && !name.starts_with(b"trusted.overlay.")
                && !name.starts_with(b"user.overlay.")
            {
                let name = OsString::from_vec(name.to_vec());
                found.push((name, extension.value_bytes().to_vec()));
            }
        }
    }
    Ok(found)
}

/// Only root can give files to other users.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn owner<R: Read>(entry: &Entry<'_, R>) -> (Uid, Gid) {
    if !is_root() {
        return (rustix::process::geteuid(), rustix::process::getegid());
    }
    // chown takes the highest number as "unchanged".
    let id = |n: io::Result<u64>| {
        let id = n.ok().and_then(|n| u32::try_from(n).ok());
        id.filter(|id| *id != u32::MAX).unwrap_or(0)
    };
    (
        Uid::from_raw(id(entry.header().uid())),
        Gid::from_raw(id(entry.header().gid())),
    )
}

pub fn mode<R: Read>(entry: &Entry<'_, R>) -> u32 {
    let mode = entry.header().mode().unwrap_or(0o644) & 0o7777;
    match entry.header().entry_type() {
        _ if is_root() => mode,
        // Otherwise its owner could neither fill nor remove it.
        EntryType::Directory => mode | 0o700,
        _ => mode | 0o400,
    }
}

pub fn times<R: Read>(entry: &Entry<'_, R>) -> Timestamps {
    let seconds = entry.header().mtime().unwrap_or(0);
    let time = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or(0),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
