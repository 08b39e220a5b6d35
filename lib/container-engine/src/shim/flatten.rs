//! Merges layers into one directory with the content of their overlay, for nodes where no overlay
//! can be mounted.

use std::fs::{self, DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags, getxattr, lgetxattr,
    llistxattr, lsetxattr,
};

/// Copies the layers, lowest first, over each other into `target`, which exists and is empty.
pub fn flatten(layers: &[impl AsRef<Path>], target: &Path) -> io::Result<()> {
    for layer in layers {
        copy_directory(layer.as_ref(), target)?;
    }
    Ok(())
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    if is_opaque(from) {
        empty(to)?;
    }
    for entry in fs::read_dir(from)? {
        copy_entry(&entry?, to)?;
    }
    let like = fs::symlink_metadata(from)?;
    take_over(from, to, &like)
}

fn copy_entry(entry: &DirEntry, into: &Path) -> io::Result<()> {
    let (from, to) = (entry.path(), into.join(entry.file_name()));
    let like = fs::symlink_metadata(&from)?;
    let kind = like.file_type();
    let there = fs::symlink_metadata(&to).ok();
    let stays = kind.is_dir() && there.as_ref().is_some_and(Metadata::is_dir);
    if let Some(there) = &there
        && !stays
    {
        if there.is_dir() {
            fs::remove_dir_all(&to)?;
        } else {
            fs::remove_file(&to)?;
        }
    }
    if kind.is_dir() {
        if !stays {
            fs::create_dir(&to)?;
        }
        return copy_directory(&from, &to);
    }
    if kind.is_char_device() && like.rdev() == 0 {
        // A whiteout has removed the entry.
        return Ok(());
    }
    if kind.is_symlink() {
        symlink(fs::read_link(&from)?, &to)?;
    } else if kind.is_file() {
        io::copy(&mut File::open(&from)?, &mut File::create_new(&to)?)?;
    } else {
        let file_type = rustix::fs::FileType::from_raw_mode(like.mode());
        rustix::fs::mknodat(CWD, &to, file_type, Mode::from_raw_mode(0o600), like.rdev())?;
    }
    take_over(&from, &to, &like)
}

/// Owner, mode, extended attributes and times.
fn take_over(from: &Path, to: &Path, like: &Metadata) -> io::Result<()> {
    rustix::fs::chownat(
        CWD,
        to,
        Some(Uid::from_raw(like.uid())),
        Some(Gid::from_raw(like.gid())),
        AtFlags::SYMLINK_NOFOLLOW,
    )?;
    if !like.is_symlink() {
        fs::set_permissions(to, fs::Permissions::from_mode(like.mode() & 0o7777))?;
    }
    copy_xattrs(from, to);
    let time = |sec, nsec| Timespec {
        tv_sec: sec,
        tv_nsec: nsec,
    };
    let times = Timestamps {
        last_access: time(like.atime(), like.atime_nsec()),
        last_modification: time(like.mtime(), like.mtime_nsec()),
    };
    rustix::fs::utimensat(CWD, to, &times, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(())
}

/// Copies the xattrs that the target supports, except overlayfs's own, which are used up.
fn copy_xattrs(from: &Path, to: &Path) {
    let mut names = vec![0u8; 64 << 10];
    let Ok(length) = llistxattr(from, &mut names[..]) else {
        return;
    };
    let mut value = vec![0u8; 64 << 10];
    for name in names[..length].split(|b| *b == 0) {
        if name.is_empty()
            || name.starts_with(b"trusted.overlay.")
            || name.starts_with(b"user.overlay.")
        {
            continue;
        }
        if let Ok(length) = lgetxattr(from, name, &mut value[..]) {
            let _ = lsetxattr(to, name, &value[..length], XattrFlags::empty());
        }
    }
}

fn is_opaque(dir: &Path) -> bool {
    ["trusted.overlay.opaque", "user.overlay.opaque"]
        .iter()
        .any(|name| {
            let mut value = [0u8; 2];
            getxattr(dir, *name, &mut value[..]).is_ok_and(|n| &value[..n] == b"y")
        })
}

fn empty(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_dir() {
            fs::remove_dir_all(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn upper_layers_replace_and_hide() {
        let dir = tempfile::tempdir().unwrap();
        let (low, high, out) = (
            dir.path().join("low"),
            dir.path().join("high"),
            dir.path().join("out"),
        );
        for path in ["low/keep", "low/shut", "high/shut", "high/keep", "out"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        fs::write(low.join("keep/a"), "low").unwrap();
        fs::write(low.join("keep/b"), "low").unwrap();
        fs::write(low.join("shut/old"), "low").unwrap();
        fs::write(low.join("gone"), "low").unwrap();
        fs::write(high.join("keep/b"), "high").unwrap();
        fs::set_permissions(high.join("keep/b"), fs::Permissions::from_mode(0o4711)).unwrap();
        fs::write(high.join("shut/new"), "high").unwrap();
        symlink("keep/b", high.join("link")).unwrap();

        // Tests may lack the privileges to create whiteouts.
        let node = rustix::fs::mknodat(
            CWD,
            high.join("gone"),
            rustix::fs::FileType::CharacterDevice,
            Mode::empty(),
            0,
        );
        let opaque = rustix::fs::setxattr(
            high.join("shut"),
            "trusted.overlay.opaque",
            b"y",
            XattrFlags::empty(),
        );
        flatten(&[&low, &high], &out).unwrap();

        let text = |path: &str| fs::read_to_string(out.join(path)).unwrap();
        assert_eq!(text("keep/a"), "low");
        assert_eq!(text("keep/b"), "high");
        assert_eq!(text("link"), "high");
        let mode = fs::metadata(out.join("keep/b")).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o4711);
        assert!(out.join("shut/new").exists());
        if node.is_ok() {
            assert!(!out.join("gone").exists());
        }
        if opaque.is_ok() {
            assert!(!out.join("shut/old").exists());
        }
    }
}
