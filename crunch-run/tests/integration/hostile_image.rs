//! Images of an attacker: each is refused with a clear error or unpacked harmlessly. Nothing is
//! written outside of the cache, nothing is left in it, and the next image loads.

mod refusals;

use std::fs;
use std::io::Cursor;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::slice::from_ref;

use crate::image_lab::{
    Tar, archive_of, check, dir, docker_archive, entry, file, gzip, hard_link, hex, layer, link,
    pax,
};
use node_cache::image::{Archive, ImageError, ImageSource, ImageStore};
use tar::EntryType;
use tempfile::TempDir;

/// A cache, and beside it something that no image may touch.
struct Node {
    dir: TempDir,
    store: ImageStore,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("outside")).unwrap();
        fs::write(dir.path().join("outside/victim"), "untouched").unwrap();
        let store = ImageStore::open(&dir.path().join("cache")).unwrap();
        Self { dir, store }
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn load(&self, layers: &[Vec<u8>]) -> Result<Vec<PathBuf>, ImageError> {
        let (bytes, id) = archive_of(layers);
        self.load_archive(&bytes, Some(&id))
    }

    fn load_archive(&self, bytes: &[u8], id: Option<&str>) -> Result<Vec<PathBuf>, ImageError> {
        let loaded = self.store.load(&mut Cursor::new(bytes), "image.tar", id);
        self.is_untouched();
        loaded.map(|image| image.layers)
    }

    fn is_untouched(&self) {
        let names = names(&self.outside());
        assert_eq!(names, ["victim"], "something was written outside");
        let victim = self.outside().join("victim");
        assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
        let data = fs::metadata(&victim).unwrap();
        assert_eq!((data.nlink(), data.mode() & 0o7777), (1, 0o644));
        assert_eq!(names_but_locks(self.dir.path()), ["cache", "outside"]);
    }

    /// Checks that a refused image has left nothing, and that the next image loads.
    fn is_clean(&self) {
        let layers = self.store.dir().join("layers");
        assert_eq!(names_but_locks(&layers), [] as [&str; 0]);
        assert_eq!(
            names_but_locks(&self.store.dir().join("images")),
            [] as [&str; 0]
        );
        let good = self.load(&[layer(|tar| file(tar, "etc/name", b"good"))]);
        assert_eq!(
            fs::read(good.unwrap()[0].join("etc/name")).unwrap(),
            b"good"
        );
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn names_but_locks(dir: &Path) -> Vec<String> {
    let mut names = names(dir);
    names.retain(|name| !name.ends_with(".lock"));
    names
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn what_reaches_outside_or_makes_no_sense_is_refused_in_clear_words() {
    for (what, build, words) in refusals::all() {
        for compressed in [false, true] {
            let node = Node::new();
            let outside = node.outside();
            let tar = layer(|tar| build(tar, outside.to_str().unwrap()));
            let digest = hex(&tar);
            let tar = if compressed { gzip(&tar) } else { tar };
            let (bytes, id) = docker_archive(from_ref(&tar), from_ref(&digest));
            let error = node.load_archive(&bytes, Some(&id)).expect_err(what);
            let text = error.to_string();
            assert!(text.contains(words), "{what}: {text}");
            assert!(text.contains("image.tar"), "{what}: {text}");
            assert!(error.is_image_fault(), "{what}: {text}");
            assert!(text.len() < 1000 && !text.contains('\n'), "{what}: {text}");
            node.is_clean();
            let checked = check(&tar, &digest);
            match words == refusals::ONLY_BY_A_FILE_SYSTEM {
                true => assert!(checked.is_ok(), "{what}"),
                false => assert_eq!(checked.expect_err(what).to_string(), text, "{what}"),
            }
        }
    }
}

#[test]
fn a_layer_that_ends_early_or_is_damaged_is_refused() {
    let whole = layer(|tar| {
        file(tar, "etc/name", &[7; 5000]);
        file(tar, "etc/other", b"x");
    });
    let packed = gzip(&whole);
    let mut wrong_header = whole.clone();
    wrong_header[3] ^= 1;
    let mut wrong_gzip = packed.clone();
    *wrong_gzip.last_mut().unwrap() ^= 1;
    let followed = [&packed[..], b"and something else"].concat();
    for (what, bytes) in [
        ("within a file", &whole[..2000]),
        ("within a header", &whole[..512 + 5120 + 300]),
        ("with a wrong checksum", &wrong_header),
        ("within gzip", &packed[..packed.len() / 2]),
        ("with a wrong checksum of gzip", &wrong_gzip),
        ("with something after gzip", &followed),
        ("after the magic of gzip", &packed[..3]),
        ("after the magic of zstd", &[0x28, 0xb5, 0x2f, 0xfd, 1]),
    ] {
        // The digest is no help: it is that of the damaged layer where there is one.
        for digest in [hex(bytes), hex(&whole)] {
            let node = Node::new();
            let (archive, id) = docker_archive(&[bytes.to_vec()], &[digest]);
            let error = node.load_archive(&archive, Some(&id)).expect_err(what);
            assert!(error.is_image_fault(), "{what}: {error}");
            assert!(error.to_string().contains("image.tar"), "{what}: {error}");
            node.is_clean();
        }
    }
}

#[test]
fn what_no_disk_holds_is_refused_before_it_is_written() {
    let huge = |size: u64| {
        layer(|tar| {
            entry(tar, "huge", EntryType::Regular, |header| {
                header.set_size(size);
            });
        })
    };
    let sparse = layer(|tar| sparse_file(tar, "holes", 1 << 60, 1 << 60, b""));
    for bytes in [huge(1 << 50), gzip(&huge(1 << 50)), sparse] {
        let node = Node::new();
        let begin = std::time::Instant::now();
        let error = node.load(&[bytes]).unwrap_err();
        assert!(begin.elapsed().as_secs() < 300, "it was tried");
        let text = error.to_string();
        assert!(text.contains("is too large for this node"), "{text}");
        assert!(error.is_image_fault());
        node.is_clean();
    }
}

/// A sparse file of `size` bytes with one run of data at `offset`.
fn sparse_file(tar: &mut Tar, path: &str, size: u64, offset: u64, data: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(EntryType::GNUSparse);
    header.set_path(path).unwrap();
    header.set_mode(0o644);
    header.set_size(data.len() as u64);
    let number = |field: &mut [u8; 12], number: u64| {
        field[0] = 0x80;
        field[4..].copy_from_slice(&number.to_be_bytes());
    };
    let gnu = header.as_gnu_mut().unwrap();
    number(&mut gnu.realsize, size);
    number(&mut gnu.sparse[0].offset, offset);
    number(&mut gnu.sparse[0].numbytes, data.len() as u64);
    header.set_cksum();
    tar.append(&header, data).unwrap();
}

#[test]
fn what_is_odd_but_harmless_is_unpacked_inside() {
    let node = Node::new();
    let outside = node.outside().to_str().unwrap().to_owned();
    let tar = layer(|tar| {
        file(tar, "/etc/absolute", b"inside");
        file(tar, "./././dotted", b"inside");
        // Links to the outside stay as they are, and entries that replace them do not follow them.
        link(tar, "link-out", &outside);
        link(tar, "replaced", &format!("{outside}/victim"));
        file(tar, "replaced", b"mine");
        link(tar, "linked", &format!("{outside}/victim"));
        hard_link(tar, "linked-too", "linked");
        file(tar, "linked-too", b"mine");
        link(tar, "becomes-dir", &outside);
        dir(tar, "becomes-dir/");
        file(tar, "becomes-dir/file", b"mine");
        dir(tar, "becomes-link/");
        link(tar, "becomes-link", &outside);
        file(tar, "twice", b"first");
        file(tar, "twice", b"second");
        entry(tar, "dated/", EntryType::Directory, |h| h.set_mtime(1000));
        entry(tar, "dated/", EntryType::Directory, |h| h.set_mtime(2000));
        entry(tar, "setuid", EntryType::Regular, |h| h.set_mode(0o6755));
        entry(tar, "fifo", EntryType::Fifo, |_| {});
        entry(tar, "owner", EntryType::Regular, |h| {
            h.set_uid(u64::from(u32::MAX));
            h.set_gid(1 << 40);
        });
        // Content where none belongs is passed over.
        pax(tar, &[("size", b"1024")]);
        entry(tar, "full-link", EntryType::Symlink, |h| {
            h.set_link_name("x").unwrap();
        });
        tar.get_mut().extend([b'x'; 1024]);
        pax(
            tar,
            &[
                ("SCHILY.xattr.trusted.overlay.redirect", b"/etc"),
                ("SCHILY.xattr.user.overlay.redirect", b"/etc"),
            ],
        );
        dir(tar, "redirected/");
        sparse_file(tar, "sparse", 10_000, 9_996, b"tail");
        file(tar, ".wh..wh.plnk", b"");
        // A volume label, and a directory with a list of its names.
        entry(tar, "Label", EntryType::new(b'V'), |_| {});
        entry(tar, "listed", EntryType::new(b'D'), |h| h.set_size(6));
        tar.get_mut().extend([b'x'; 512]);
    });
    check(&tar, &hex(&tar)).unwrap();
    let root = node.load(&[tar]).unwrap().remove(0);
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap();
    assert_eq!(read("etc/absolute"), "inside");
    assert_eq!(read("dotted"), "inside");
    let target = |path: &str| fs::read_link(root.join(path)).unwrap();
    assert_eq!(target("link-out"), Path::new(&outside));
    assert_eq!(target("becomes-link"), Path::new(&outside));
    assert_eq!(target("full-link"), Path::new("x"));
    assert_eq!(read("replaced"), "mine");
    assert_eq!(read("linked-too"), "mine");
    assert_eq!(read("becomes-dir/file"), "mine");
    assert_eq!(read("twice"), "second");
    assert_eq!(fs::metadata(root.join("dated")).unwrap().mtime(), 2000);
    let sparse = fs::read(root.join("sparse")).unwrap();
    assert_eq!((sparse.len(), &sparse[9_996..]), (10_000, &b"tail"[..]));
    assert!(sparse[..9_996].iter().all(|byte| *byte == 0));
    let data = |path: &str| fs::symlink_metadata(root.join(path)).unwrap();
    assert!(!root.join("Label").exists() && data("listed").is_dir());
    assert!(data("fifo").file_type().is_fifo());
    assert_eq!(data("owner").uid(), rustix::process::geteuid().as_raw());
    for name in ["trusted.overlay.redirect", "user.overlay.redirect"] {
        let found = rustix::fs::getxattr(root.join("redirected"), name, &mut [0u8; 64]);
        assert!(found.is_err(), "{name} was taken over");
    }
    // Setuid files are in a directory that only root can enter.
    assert_eq!(data("setuid").mode() & 0o7777, 0o6755);
    for dir in ["layers", "images"] {
        let mode = fs::metadata(node.store.dir().join(dir)).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o700, "{dir}");
    }
}

#[test]
fn device_nodes_are_made_by_root_only_and_whiteouts_by_all() {
    let node = Node::new();
    let tar = layer(|tar| {
        for (name, kind) in [("disk", EntryType::Block), ("null", EntryType::Char)] {
            entry(tar, name, kind, |header| {
                header.set_device_major(1).unwrap();
                header.set_device_minor(3).unwrap();
            });
        }
        file(tar, "etc/.wh.gone", b"");
        file(tar, "kept", b"x");
        file(tar, ".wh.kept", b"");
        file(tar, "dir/file", b"x");
        file(tar, ".wh.dir", b"");
        file(tar, "opaque/.wh..wh..opq", b"");
    });
    let root = node.load(&[tar]).unwrap().remove(0);
    let device = |path: &str| {
        let data = fs::symlink_metadata(root.join(path)).ok()?;
        data.file_type().is_char_device().then(|| data.rdev())
    };
    assert_eq!(device("null"), is_root().then(|| rustix::fs::makedev(1, 3)));
    assert_eq!(root.join("disk").exists(), is_root());
    assert_eq!(device("etc/gone"), Some(0));
    assert_eq!(fs::read(root.join("kept")).unwrap(), b"x");
    assert_eq!(fs::read(root.join("dir/file")).unwrap(), b"x");
    let name = match is_root() {
        true => "trusted.overlay.opaque",
        false => "user.overlay.opaque",
    };
    for dir in ["dir", "opaque"] {
        let mut value = [0u8; 4];
        let size = rustix::fs::getxattr(root.join(dir), name, &mut value).unwrap();
        assert_eq!(&value[..size], b"y", "{dir}");
    }
}

#[test]
fn very_many_names_are_unpacked() {
    let node = Node::new();
    let tar = layer(|tar| {
        for number in 0..30_000 {
            file(tar, &format!("d{}/f{number}", number % 7), b"");
        }
    });
    let root = node.load(&[tar]).unwrap().remove(0);
    let found: usize = (0..7)
        .map(|n| names(&root.join(format!("d{n}"))).len())
        .sum();
    assert_eq!(found, 30_000);
}

#[test]
fn a_cache_whose_entries_were_changed_by_hand_names_nothing_outside() {
    let node = Node::new();
    let (bytes, id) = archive_of(&[layer(|tar| file(tar, "etc/name", b"good"))]);
    let source = || ImageSource {
        id: Some(id.clone()),
        content: "pdh/image.tar".into(),
        label: "image.tar".into(),
        open: {
            let bytes = bytes.clone();
            Box::new(move || Ok(Box::new(Cursor::new(bytes)) as Box<dyn Archive>))
        },
    };
    let image = node.store.prepare(source()).unwrap();
    let entry = node.store.dir().join("images");
    let entry = entry.join(format!("{}.json", source().key()));
    let text = fs::read_to_string(&entry).unwrap();
    let layer_hex = image.layers[0].file_name().unwrap().to_str().unwrap();
    for poison in ["../../outside", "", "sha256:../../../outside"] {
        fs::write(&entry, text.replace(layer_hex, poison)).unwrap();
        // The archive has the entry again.
        let again = node.store.prepare(source()).unwrap();
        assert_eq!(again.layers, image.layers, "{poison}");
        assert_eq!(fs::read_to_string(&entry).unwrap(), text, "{poison}");
    }
    node.is_untouched();
}

#[test]
fn a_partial_layer_left_as_a_link_is_not_followed() {
    let node = Node::new();
    let tar = layer(|tar| file(tar, "victim", b"evil"));
    let partial = node
        .store
        .dir()
        .join(format!("layers/{}.partial", hex(&tar)));
    symlink(node.outside(), &partial).unwrap();
    node.load(&[tar]).unwrap();
    assert!(fs::symlink_metadata(&partial).is_err());
}

#[test]
fn the_same_as_an_ordinary_user() {
    if !is_root() {
        suite_tests::skip("this test needs root");
        return;
    }
    crate::engine_lab::again_as_nobody(module_path!(), "the_same_as_an_ordinary_user");
}
