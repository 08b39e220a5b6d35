//! Owner, mode and times of an entry, as they are applied.

use image_archive::layer::{EntryKind, LayerEntry};
use rustix::fs::{Gid, Timespec, Timestamps, Uid};

/// Only root can give files to other users.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub fn owner(entry: &LayerEntry) -> (Uid, Gid) {
    if !is_root() {
        return (rustix::process::geteuid(), rustix::process::getegid());
    }
    // chown takes the highest number as "unchanged".
    let id = |n: u64| {
        let id = u32::try_from(n).ok();
        id.filter(|id| *id != u32::MAX).unwrap_or(0)
    };
    (Uid::from_raw(id(entry.uid)), Gid::from_raw(id(entry.gid)))
}

pub fn mode(entry: &LayerEntry) -> u32 {
    match entry.kind {
        _ if is_root() => entry.mode,
        // Otherwise its owner could neither fill nor remove it.
        EntryKind::Directory => entry.mode | 0o700,
        _ => entry.mode | 0o400,
    }
}

pub fn times(entry: &LayerEntry) -> Timestamps {
    let time = Timespec {
        tv_sec: entry.mtime,
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
