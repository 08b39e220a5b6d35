//! Images from archives into the node cache: what is accepted, shared, and refused.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::image_lab::{archive_of, docker_archive, file, hex, layer, link};
use node_cache::image::{Archive, ArchiveError, ImageError, ImageSource, ImageStore};

fn source(id: Option<&str>, bytes: Vec<u8>, opened: &Arc<AtomicUsize>) -> ImageSource {
    let opened = Arc::clone(opened);
    ImageSource {
        id: id.map(str::to_owned),
        content: hex(&bytes),
        label: "image.tar".into(),
        open: Box::new(move || {
            opened.fetch_add(1, Ordering::SeqCst);
            Ok(Box::new(Cursor::new(bytes)) as Box<dyn Archive>)
        }),
    }
}

fn refused(dir: &Path, layers: &[Vec<u8>]) -> ImageError {
    let store = ImageStore::open(dir).unwrap();
    let (bytes, id) = archive_of(layers);
    let error = store
        .load(&mut Cursor::new(bytes), "image.tar", Some(&id))
        .unwrap_err();
    let left: Vec<_> = fs::read_dir(dir.join("layers"))
        .unwrap()
        .flatten()
        .filter(|e| e.path().is_dir())
        .collect();
    assert!(left.is_empty(), "{left:?}");
    error
}

#[test]
fn an_image_that_was_refused_is_not_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    let bad = layer(|tar| link(tar, "etc", "/nowhere"));
    let (bytes, id) = docker_archive(&[bad], &[hex(b"of another layer")]);
    let opened = Arc::new(AtomicUsize::new(0));
    let mut errors = Vec::new();
    for _ in 0..3 {
        let source = source(Some(&id), bytes.clone(), &opened);
        let error = store.prepare(source).unwrap_err();
        assert!(error.is_image_fault(), "{error}");
        errors.push(error.to_string());
    }
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    errors.dedup();
    assert_eq!(errors.len(), 1, "{errors:?}");
}

#[test]
fn an_image_is_unpacked_once_and_then_found_without_its_archive() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    let base = layer(|tar| file(tar, "etc/name", b"base"));
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let top = layer(|tar| file(tar, "etc/other", b"top"));
    gzip.write_all(&top).unwrap();
    // The digest is that of the content, however it is compressed.
    let digests = [hex(&base), hex(&top)];
    let (bytes, id) = docker_archive(&[base, gzip.finish().unwrap()], &digests);

    let opened = Arc::new(AtomicUsize::new(0));
    let image = store
        .prepare(source(Some(&id), bytes.clone(), &opened))
        .unwrap();
    assert_eq!(image.id, id);
    assert_eq!(image.config.env, ["A=1"]);
    assert_eq!(image.config.entrypoint, ["/bin/run"]);
    assert_eq!(image.config.working_dir.as_deref(), Some("/w"));
    assert_eq!(image.config.user, None);
    assert_eq!(fs::read(image.layers[0].join("etc/name")).unwrap(), b"base");
    assert_eq!(fs::read(image.layers[1].join("etc/other")).unwrap(), b"top");

    let again = store.prepare(source(Some(&id), bytes, &opened)).unwrap();
    assert_eq!(again.config, image.config);
    assert_eq!(again.layers, image.layers);
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

/// Who knows the digests of a private image gets nothing of it from the cache.
#[test]
fn an_image_in_the_cache_is_for_those_who_have_its_content() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    let private = layer(|tar| file(tar, "secret", b"of another"));
    let (bytes, id) = archive_of(std::slice::from_ref(&private));
    let opened = Arc::new(AtomicUsize::new(0));
    let first = store
        .prepare(source(Some(&id), bytes.clone(), &opened))
        .unwrap();

    // A text file that has the image's name; the image's configuration with other content.
    let (of_digest, digest_id) = docker_archive(&[b"garbage".to_vec()], &[hex(&private)]);
    let own = layer(|tar| file(tar, "own", b"x"));
    let digests = [hex(&own), hex(&private)];
    let (beside_own, beside_id) = docker_archive(&[own, b"garbage".to_vec()], &digests);
    assert_eq!(digest_id, id);
    for (id, bytes) in [
        (&id, b"nothing but a name".to_vec()),
        (&id, of_digest),
        (&beside_id, beside_own),
    ] {
        for _ in 0..2 {
            let error = store
                .prepare(source(Some(id), bytes.clone(), &opened))
                .unwrap_err();
            assert!(error.is_image_fault(), "{error}");
        }
    }

    // Another collection with the same image is read once, and nothing is unpacked again.
    let mark = first.layers[0].join("mark");
    fs::write(&mark, "").unwrap();
    let read = opened.load(Ordering::SeqCst);
    for _ in 0..2 {
        let mut source = source(Some(&id), bytes.clone(), &opened);
        source.content = "another collection".to_owned();
        assert_eq!(store.prepare(source).unwrap().layers, first.layers);
    }
    assert_eq!(opened.load(Ordering::SeqCst), read + 1);
    assert!(mark.exists());
}

#[test]
fn many_at_once_end_with_one_image() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    let (bytes, id) = archive_of(&[layer(|tar| file(tar, "a", &[7; 100_000]))]);
    let opened = Arc::new(AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let image = store
                    .prepare(source(Some(&id), bytes.clone(), &opened))
                    .unwrap();
                assert_eq!(
                    fs::metadata(image.layers[0].join("a")).unwrap().len(),
                    100_000
                );
            });
        }
    });
    assert_eq!(opened.load(Ordering::SeqCst), 1);
}

#[test]
fn a_layer_that_reaches_outside_is_refused_and_leaves_nothing() {
    let outside = tempfile::tempdir().unwrap();
    let target = outside.path().to_str().unwrap().to_owned();
    let cases: Vec<Vec<u8>> = vec![
        layer(|tar| file(tar, "../evil", b"x")),
        layer(|tar| file(tar, "a/../../evil", b"x")),
        layer(|tar| {
            link(tar, "way", &target);
            file(tar, "way/evil", b"x");
        }),
    ];
    for case in cases {
        let dir = tempfile::tempdir().unwrap();
        let error = refused(dir.path(), &[case]);
        let ImageError::Archive(reason) = &error else {
            panic!("{error}");
        };
        assert!(
            matches!(reason, ArchiveError::RefusedEntry { .. }),
            "{error}"
        );
        assert!(error.is_image_fault());
    }
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 0);
}

#[test]
fn other_content_than_the_digest_says_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    let (bytes, id) = docker_archive(&[layer(|tar| file(tar, "a", b"x"))], &["1".repeat(64)]);
    let error = store
        .load(&mut Cursor::new(bytes), "image.tar", Some(&id))
        .unwrap_err();
    let ImageError::Archive(reason) = &error else {
        panic!("{error}");
    };
    assert!(
        matches!(reason, ArchiveError::DigestMismatch { .. }),
        "{error}"
    );
}

#[test]
fn what_is_not_the_image_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let store = ImageStore::open(dir.path()).unwrap();
    let (bytes, _) = archive_of(&[layer(|tar| file(tar, "a", b"x"))]);
    let other = "2".repeat(64);
    let load =
        |bytes: &[u8], id: Option<&str>| store.load(&mut Cursor::new(bytes), "image.tar", id);

    assert!(matches!(
        load(&bytes, Some(&other)),
        Err(ImageError::Archive(ArchiveError::NotInArchive { .. }))
    ));
    assert!(matches!(
        load(b"", None),
        Err(ImageError::Archive(ArchiveError::NotAnImage { .. }))
    ));
    assert!(matches!(
        load(b"\x1f\x8b\x08rest", None),
        Err(ImageError::Archive(ArchiveError::NotAnImage { .. }))
    ));
    assert!(matches!(
        load(&bytes, Some("latest")),
        Err(ImageError::Archive(ArchiveError::BadId { .. }))
    ));
    // Cut off in the middle of the layer.
    assert!(load(&bytes[..1800], None).unwrap_err().is_image_fault());
    assert!(load(&bytes, None).is_ok());
}
