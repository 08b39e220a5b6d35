//! Random images: archives with random damage, and layers of random entries with hostile names.
//! Nothing panics, nothing is written outside, and nothing partial is left.

use std::fs;
use std::io::Cursor;
use std::path::Path;

use crate::image_lab::{Tar, archive_of, check, file, gzip, hex, layer};
use node_cache::image::{ImageError, ImageStore};
use proptest::prelude::*;
use tar::EntryType;

/// Uses memory, because every accepted layer is flushed to the disk.
fn memory_dir() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm").unwrap(),
        false => tempfile::tempdir().unwrap(),
    }
}

/// Loads an image beside a directory that must not change; removes the layers afterwards.
fn load(bytes: &[u8]) -> Result<(), ImageError> {
    let dir = memory_dir();
    fs::create_dir(dir.path().join("outside")).unwrap();
    fs::write(dir.path().join("outside/victim"), "untouched").unwrap();
    let cache = dir.path().join("cache");
    let store = ImageStore::open(&cache).unwrap();
    let loaded = store.load(&mut Cursor::new(bytes), "image.tar", None);
    let names = |dir: &Path| {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(dir.path()), ["cache", "outside"]);
    assert_eq!(names(&dir.path().join("outside")), ["victim"]);
    let victim = fs::read_to_string(dir.path().join("outside/victim")).unwrap();
    assert_eq!(victim, "untouched");
    assert_eq!(names(&cache), ["images", "layers"]);
    for name in names(&cache.join("layers")) {
        let is_whole = name.len() == 64 || name.ends_with(".lock");
        assert!(is_whole, "{name} is left");
    }
    // Whatever was unpacked can be removed again.
    dir.close().unwrap();
    loaded.map(drop)
}

/// A header may promise more than any disk holds.
fn is_space(error: &ImageError) -> bool {
    matches!(error, ImageError::Cache { source, .. } if source.kind() == std::io::ErrorKind::StorageFull)
}

/// A random change of some bytes.
#[derive(Debug, Clone)]
enum Damage {
    Set(usize, u8),
    Cut(usize),
    Copy(usize, usize, usize),
    Insert(usize, Vec<u8>),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let at = 0usize..20_000;
    let damage = prop_oneof![
        6 => (at.clone(), any::<u8>()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => at.clone().prop_map(Damage::Cut),
        1 => (at.clone(), at.clone(), 0usize..1100).prop_map(|(a, b, n)| Damage::Copy(a, b, n)),
        1 => (at, prop::collection::vec(any::<u8>(), 0..40)).prop_map(|(a, b)| Damage::Insert(a, b)),
    ];
    prop::collection::vec(damage, 1..5)
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        let length = bytes.len().max(1);
        match damage {
            Damage::Set(at, byte) => {
                if let Some(target) = bytes.get_mut(at % length) {
                    *target = *byte;
                }
            }
            Damage::Cut(at) => bytes.truncate(at % length),
            Damage::Copy(from, to, count) => {
                let (from, to) = (from % length, to % length);
                let part: Vec<u8> = bytes.iter().skip(from).take(*count).copied().collect();
                for (target, byte) in bytes.iter_mut().skip(to).zip(part) {
                    *target = byte;
                }
            }
            Damage::Insert(at, some) => {
                let at = (at % length).min(bytes.len());
                bytes.splice(at..at, some.iter().copied());
            }
        }
    }
    bytes
}

/// Headers have checksums, and damage that stops at those is dull.
fn with_right_checksums(mut bytes: Vec<u8>) -> Vec<u8> {
    for block in bytes.as_chunks_mut::<512>().0 {
        if block[257..262] == *b"ustar" {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes().copy_from_slice(block);
            header.set_cksum();
            block.copy_from_slice(header.as_bytes());
        }
    }
    bytes
}

fn valid() -> Vec<u8> {
    let base = layer(|tar| {
        crate::image_lab::dir(tar, "etc/");
        file(tar, "etc/name", b"base");
        crate::image_lab::link(tar, "lib", "usr/lib");
        crate::image_lab::hard_link(tar, "etc/other", "etc/name");
        crate::image_lab::pax(tar, &[("SCHILY.xattr.user.a", b"b"), ("mtime", b"1.5")]);
        file(tar, "bin", &[7; 700]);
    });
    let top = layer(|tar| file(tar, "etc/.wh.name", b""));
    archive_of(&[base, top]).0
}

/// Entries as an attacker would choose them.
fn entries() -> impl Strategy<Value = Vec<(u8, String, String)>> {
    let part = prop::sample::select(vec![
        "a",
        "b",
        "a",
        "b",
        "..",
        ".",
        "",
        "outside",
        "victim",
        ".wh.a",
        ".wh..wh..opq",
        ".wh...",
        ".wh..",
        "\u{7f}",
    ]);
    let odd = prop::collection::vec(part, 1..5).prop_map(|parts| parts.join("/"));
    // Few names, so that entries meet: a link, and then a path through it.
    let plain = prop::sample::select(vec![
        "a",
        "a",
        "a/new",
        "a/victim",
        "a/.wh.victim",
        "a/.wh..wh..opq",
        "b",
        "b/a",
        "b/a/new",
    ]);
    let path = prop_oneof![3 => plain.prop_map(str::to_owned), 1 => odd];
    let target = prop_oneof![
        path.clone(),
        path.clone().prop_map(|path| format!("../../../{path}")),
        Just("../../../outside".to_owned()),
        Just("../../../outside/victim".to_owned()),
    ];
    let kind = prop::sample::select(b"0012255533467SLKxgD".to_vec());
    prop::collection::vec((kind, path, target), 1..12)
}

fn put(tar: &mut Tar, kind: u8, path: &str, target: &str) {
    crate::image_lab::entry(tar, path, EntryType::new(kind), |header| {
        let target = &target.as_bytes()[..target.len().min(100)];
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_damage_to_an_archive_does_harm(damages in damages(), mend in any::<bool>()) {
        let mut bytes = damaged(valid(), &damages);
        if mend {
            bytes = with_right_checksums(bytes);
        }
        if let Err(error) = load(&bytes) {
            prop_assert!(error.is_image_fault() || is_space(&error), "{error}");
        }
    }

    /// The digest is that of the damaged layer, which an attacker would set as well.
    #[test]
    fn no_damage_to_a_layer_does_harm(damages in damages(), mend in any::<bool>(), pack in any::<bool>()) {
        let base = layer(|tar| {
            crate::image_lab::dir(tar, "etc/");
            file(tar, "etc/name", b"base");
            crate::image_lab::link(tar, "lib", "../../../outside");
            crate::image_lab::pax(tar, &[("path", b"long/name"), ("linkpath", b"../outside/victim")]);
            crate::image_lab::hard_link(tar, "etc/other", "etc/name");
        });
        let mut bytes = damaged(base, &damages);
        if mend {
            bytes = with_right_checksums(bytes);
        }
        let digest = hex(&bytes);
        let bytes = if pack { gzip(&bytes) } else { bytes };
        let checked = check(&bytes, &digest).map_err(|error| error.to_string());
        let (archive, _) = crate::image_lab::docker_archive(&[bytes], &[digest]);
        match load(&archive) {
            Err(error) if is_space(&error) => {}
            Err(error) => {
                prop_assert!(error.is_image_fault(), "{error}");
                prop_assert_eq!(checked, Err(error.to_string()));
            }
            Ok(()) => prop_assert_eq!(checked, Ok(())),
        }
    }

    #[test]
    fn no_entries_whatever_reach_outside(entries in entries()) {
        let bytes = layer(|tar| {
            for (kind, path, target) in &entries {
                put(tar, *kind, path, target);
            }
        });
        let checked = check(&bytes, &hex(&bytes)).map_err(|error| error.to_string());
        let loaded = load(&archive_of(&[bytes]).0);
        let fault = loaded.as_ref().err().map(|error| error.is_image_fault());
        prop_assert_ne!(fault, Some(false), "{:?}", loaded);
        prop_assert_eq!(checked, loaded.map_err(|error| error.to_string()));
    }

    #[test]
    fn no_bytes_are_taken_for_an_image(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let error = load(&bytes).unwrap_err();
        prop_assert!(error.is_image_fault(), "{error}");
    }
}
