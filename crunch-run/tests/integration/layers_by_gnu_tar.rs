//! Layers as GNU tar writes them, in all its formats: unpacked, each file is what it was.

use std::fs;
use std::io::{Cursor, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::image_lab::{archive_of, check, hex};
use node_cache::image::ImageStore;
use rustix::fs::{Timespec, Timestamps, XattrFlags};

/// Attribute with bytes that end a record for who looks for newlines.
const ODD_VALUE: &[u8] = b"\n12 path=evil\n\0\x0a";

/// A tree with what images have, and what is rare.
fn tree(root: &Path) {
    fs::create_dir_all(root.join("var/log")).unwrap();
    let mut log = fs::File::create(root.join("var/log/lastlog")).unwrap();
    log.write_all(b"head").unwrap();
    log.write_all_at(b"middle", 200_000).unwrap();
    log.set_len(1 << 20).unwrap();
    // More parts than a header has room for.
    let many = fs::File::create(root.join("many")).unwrap();
    for part in 0..60u64 {
        many.write_all_at(&[part as u8; 4096], part * 65_536)
            .unwrap();
    }
    fs::File::create(root.join("holes"))
        .unwrap()
        .set_len(100_000)
        .unwrap();
    fs::write(root.join("plain"), vec![7; 100_000]).unwrap();
    fs::write(root.join(format!("{}.txt", "long-name".repeat(20))), "long").unwrap();
    fs::hard_link(root.join("plain"), root.join("also-plain")).unwrap();
    symlink("../run/resolve/stub.conf", root.join("dangling")).unwrap();
    fs::write(root.join("old"), "from 1969").unwrap();
}

fn set_mtime(path: &Path, seconds: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: 500_000_000,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::empty()).unwrap();
}

/// The same names, contents and times, and with holes no more of the disk than before.
fn is_same(root: &Path, unpacked: &Path, has_holes: bool) {
    let mut names = 0;
    let mut dirs = vec![root.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let twin = unpacked.join(path.strip_prefix(root).unwrap());
            let (is, was) = (
                fs::symlink_metadata(&twin).unwrap(),
                fs::symlink_metadata(&path).unwrap(),
            );
            names += 1;
            assert_eq!(is.mode(), was.mode(), "{}", path.display());
            if was.is_dir() {
                dirs.push(path);
                continue;
            }
            assert_eq!(is.mtime(), was.mtime(), "{}", path.display());
            if was.is_symlink() {
                assert_eq!(fs::read_link(&twin).unwrap(), fs::read_link(&path).unwrap());
                continue;
            }
            assert!(
                fs::read(&twin).unwrap() == fs::read(&path).unwrap(),
                "{}",
                path.display()
            );
            assert_eq!(is.nlink(), was.nlink(), "{}", path.display());
            let is_small = is.blocks() <= was.blocks() + 16;
            assert!(is_small || !has_holes, "{}", path.display());
        }
    }
    assert_eq!(names, 10);
}

/// Writes `root` by GNU tar and loads the result as an image of one layer.
fn load(root: &Path, flags: &[&str]) -> tempfile::TempDir {
    let mut tar = Command::new("tar");
    tar.arg("-cf-").args(flags).arg("-C").arg(root).arg(".");
    let output = tar.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags:?}: {errors}");
    let layer = output.stdout;
    check(&layer, &hex(&layer)).unwrap_or_else(|error| panic!("{flags:?}: {error}"));
    let cache = tempfile::tempdir().unwrap();
    let store = ImageStore::open(cache.path()).unwrap();
    let (bytes, id) = archive_of(&[layer]);
    let image = store.load(&mut Cursor::new(bytes), "image.tar", Some(&id));
    let image = image.unwrap_or_else(|error| panic!("{flags:?}: {error}"));
    is_same(root, &image.layers[0], flags.contains(&"-S"));
    cache
}

#[test]
fn sparse_files_of_every_format_are_what_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    tree(&root);
    for flags in [
        &["--format=gnu", "-S"][..],
        &["--format=oldgnu", "-S"],
        &["--format=posix", "-S", "--sparse-version=0.0"],
        &["--format=posix", "-S", "--sparse-version=0.1"],
        &["--format=posix", "-S", "--sparse-version=1.0"],
        &["--format=gnu", "--label=a label"],
    ] {
        load(&root, flags);
    }
}

#[test]
fn attributes_with_any_byte_and_times_before_1970_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    tree(&root);
    for flags in [&["--format=posix", "--xattrs"][..], &["--format=gnu"]] {
        set_mtime(&root.join("old"), -86_400);
        let is_posix = flags[0] == "--format=posix";
        if is_posix {
            let path = root.join("plain");
            rustix::fs::setxattr(&path, "user.odd", ODD_VALUE, XattrFlags::empty()).unwrap();
        }
        let cache = load(&root, flags);
        let layers = fs::read_dir(cache.path().join("layers")).unwrap();
        let layer = layers
            .map(|entry| entry.unwrap().path())
            .find(|path| path.is_dir());
        let mut value = [0u8; 64];
        let found = rustix::fs::getxattr(layer.unwrap().join("plain"), "user.odd", &mut value);
        match is_posix {
            true => assert_eq!(&value[..found.unwrap()], ODD_VALUE),
            false => assert!(found.is_err()),
        }
    }
}
