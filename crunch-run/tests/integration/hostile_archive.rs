//! Image archives with false manifests and configurations, and archives that cannot be read to
//! their end: the error says clearly whose fault it is, and the cache stays clean.

use std::fs;
use std::io::{self, Cursor, Read, Seek, SeekFrom};

use crate::image_lab::{Tar, archive_of, docker_archive, entry, file, hex, layer, link, long_name};
use node_cache::image::{ArchiveError, ImageError, ImageStore};
use serde_json::{Value, json};
use tar::EntryType;

fn load(bytes: &[u8], id: Option<&str>) -> Result<(), ImageError> {
    let dir = tempfile::tempdir().unwrap();
    let cache = dir.path().join("cache");
    let store = ImageStore::open(&cache).unwrap();
    let loaded = store.load(&mut Cursor::new(bytes), "image.tar", id);
    let mut left = fs::read_dir(cache.join("layers")).unwrap();
    let left = left.any(|e| e.unwrap().path().extension().is_none_or(|e| e != "lock"));
    assert_eq!(left, loaded.is_ok());
    loaded.map(drop)
}

fn config(diff_ids: &[&str]) -> Vec<u8> {
    let text = json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    });
    text.to_string().into_bytes()
}

/// An archive with this manifest.json, this configuration as `c.json`, and an empty layer as
/// `l.tar`.
fn with_manifest(manifest: &Value, config: &[u8]) -> Vec<u8> {
    layer(|tar| {
        file(tar, "c.json", config);
        file(tar, "l.tar", &layer(|_| {}));
        file(tar, "manifest.json", manifest.to_string().as_bytes());
    })
}

fn manifest(config: &str, layers: &[&str]) -> Value {
    json!([{"Config": config, "RepoTags": [], "Layers": layers}])
}

#[test]
fn a_manifest_that_lies_is_refused_in_clear_words() {
    let empty = format!("sha256:{}", hex(&layer(|_| {})));
    let good = config(&[&empty]);
    load(&with_manifest(&manifest("c.json", &["l.tar"]), &good), None).unwrap();
    let too_many = vec![empty.as_str(); 600];
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        (
            "a configuration that is missing",
            with_manifest(&manifest("x.json", &["l.tar"]), &good),
            "x.json is missing from it",
        ),
        (
            "a configuration of this node",
            with_manifest(&manifest("/etc/hostname", &["l.tar"]), &good),
            "/etc/hostname is missing from it",
        ),
        (
            "a configuration outside",
            with_manifest(&manifest("../../../etc/hostname", &["l.tar"]), &good),
            "../../../etc/hostname is missing from it",
        ),
        (
            "a layer of this node",
            with_manifest(&manifest("c.json", &["/etc/hostname"]), &good),
            "/etc/hostname is missing from it",
        ),
        (
            "fewer layers than digests",
            with_manifest(&manifest("c.json", &[]), &good),
            "lists 0 layers and 1 digests",
        ),
        (
            "a digest that is none",
            with_manifest(
                &manifest("c.json", &["l.tar"]),
                &config(&["sha256:../../x"]),
            ),
            "\"sha256:../../x\" is not an image id",
        ),
        (
            "a layer of other content",
            with_manifest(
                &manifest("c.json", &["l.tar"]),
                &config(&[&format!("sha256:{}", "1".repeat(64))]),
            ),
            "does not match its digest",
        ),
        (
            "a configuration that is no JSON",
            with_manifest(&manifest("c.json", &["l.tar"]), b"{\"rootfs\": "),
            "the configuration of image sha256:",
        ),
        (
            "more layers than can be stacked",
            with_manifest(&manifest("c.json", &vec!["l.tar"; 600]), &config(&too_many)),
            "has 600 layers, and no more than 500 can be stacked",
        ),
        (
            "a manifest of another kind",
            with_manifest(&json!({"Config": 1}), &good),
            "manifest.json cannot be read",
        ),
        (
            "no image in the manifest",
            with_manifest(&json!([]), &good),
            "neither a docker-archive nor an OCI archive",
        ),
        (
            "a manifest nested beyond measure",
            layer(|tar| file(tar, "manifest.json", &[b'['; 100_000])),
            "manifest.json cannot be read",
        ),
        (
            "links in a circle",
            layer(|tar| {
                link(tar, "manifest.json", "a");
                link(tar, "a", "manifest.json");
            }),
            "neither a docker-archive nor an OCI archive",
        ),
        (
            "a manifest that is a link out",
            layer(|tar| link(tar, "manifest.json", "../../../etc/hostname")),
            "neither a docker-archive nor an OCI archive",
        ),
        (
            "a manifest that fills the memory",
            layer(|tar| {
                entry(tar, "manifest.json", EntryType::Regular, |header| {
                    header.set_size(1 << 40);
                });
            }),
            "manifest.json is too large",
        ),
        (
            "configurations that fill the memory",
            layer(|tar| {
                let images: Vec<Value> = (0..2000)
                    .map(|_| json!({"Config": "c.json", "RepoTags": [], "Layers": ["l.tar"]}))
                    .collect();
                file(tar, "c.json", &vec![b' '; 100_000]);
                file(tar, "manifest.json", json!(images).to_string().as_bytes());
            }),
            "its manifests and configurations take more than",
        ),
        (
            "a name that fills the memory",
            layer(|tar| long_name(tar, &vec![b'x'; 3 << 20])),
            "take more than 1 MiB",
        ),
        (
            "names that fill the memory",
            layer(|tar| {
                for number in 0..=100_000 {
                    file(tar, &number.to_string(), b"");
                }
            }),
            "has more than 100000 files",
        ),
    ];
    for (what, bytes, words) in cases {
        let error = load(&bytes, None).expect_err(what);
        let text = error.to_string();
        assert!(text.contains(words), "{what}: {text}");
        assert!(error.is_image_fault(), "{what}: {text}");
        assert!(text.len() < 1000, "{what}: {} bytes of words", text.len());
    }
}

/// Adds a blob under its digest, and returns the digest.
fn blob(tar: &mut Tar, content: &[u8]) -> String {
    let digest = hex(content);
    file(tar, &format!("blobs/sha256/{digest}"), content);
    format!("sha256:{digest}")
}

fn descriptor(kind: &str, digest: &str) -> Value {
    json!({"mediaType": format!("application/vnd.oci.image.{kind}"), "digest": digest, "size": 1})
}

fn index(manifests: &[Value]) -> Vec<u8> {
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    index.to_string().into_bytes()
}

/// An OCI archive of one image; `tamper` changes the content of the blob that its name starts.
fn oci(tamper: &str) -> Vec<u8> {
    layer(|tar| {
        let content = layer(|tar| file(tar, "etc/name", b"x"));
        let config = config(&[&format!("sha256:{}", hex(&content))]);
        let digests = [&content, &config].map(|blob| format!("sha256:{}", hex(blob)));
        let manifest = json!({
            "schemaVersion": 2,
            "config": descriptor("config.v1+json", &digests[1]),
            "layers": [descriptor("layer.v1.tar", &digests[0])],
        });
        let manifest = manifest.to_string().into_bytes();
        let top = descriptor("manifest.v1+json", &format!("sha256:{}", hex(&manifest)));
        for (name, blob) in [
            ("layer", content),
            ("config", config),
            ("manifest", manifest),
        ] {
            let path = format!("blobs/sha256/{}", hex(&blob));
            let space = if name == tamper { &b" "[..] } else { b"" };
            file(tar, &path, &[space, &blob].concat());
        }
        file(tar, "index.json", &index(&[top]));
    })
}

#[test]
fn a_blob_with_other_content_than_its_name_is_refused() {
    load(&oci("nothing"), None).unwrap();
    for (tampered, words) in [
        ("manifest", "has other content than its name says"),
        ("config", "has other content than its name says"),
        ("layer", "layer sha256:"),
    ] {
        let error = load(&oci(tampered), None).expect_err(tampered);
        assert!(error.to_string().contains(words), "{tampered}: {error}");
        assert!(error.is_image_fault());
    }
}

#[test]
fn an_index_of_indexes_comes_to_an_end() {
    let bytes = layer(|tar| {
        let mut inner = blob(tar, &index(&[]));
        for _ in 0..50 {
            // Each index names the next one twice, so following all of them takes exponential time.
            let next = descriptor("index.v1+json", &inner);
            inner = blob(tar, &index(&[next.clone(), next]));
        }
        let top = descriptor("index.v1+json", &inner);
        file(tar, "index.json", &index(&[top.clone(), top]));
    });
    let error = load(&bytes, None).unwrap_err();
    assert!(
        matches!(error, ImageError::Archive(ArchiveError::NotAnImage { .. })),
        "{error}"
    );
}

#[test]
fn a_configuration_under_a_wrong_name_is_not_the_image() {
    let wanted = "2".repeat(64);
    let bytes = layer(|tar| {
        let content = config(&[]);
        file(tar, &format!("{wanted}.json"), &content);
        let manifest = manifest(&format!("{wanted}.json"), &[]);
        file(tar, "manifest.json", manifest.to_string().as_bytes());
    });
    let error = load(&bytes, Some(&wanted)).unwrap_err();
    assert!(
        matches!(
            error,
            ImageError::Archive(ArchiveError::NotInArchive { .. })
        ),
        "{error}"
    );
}

#[test]
fn an_archive_that_is_cut_anywhere_is_refused() {
    let content = layer(|tar| file(tar, "a", &[7; 3000]));
    let (bytes, id) = archive_of(&[content]);
    let end = bytes
        .windows(13)
        .rposition(|w| w == b"\"RepoTags\":[\"")
        .unwrap();
    for cut in (0..=end).step_by(256).chain([end]) {
        let error = load(&bytes[..cut], Some(&id)).expect_err("it is cut");
        assert!(error.is_image_fault(), "{cut}: {error}");
    }
}

/// A file that cannot be read beyond an offset, as when the network fails.
struct Failing {
    inner: Cursor<Vec<u8>>,
    at: u64,
    kind: io::ErrorKind,
}

impl Read for Failing {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.at.saturating_sub(self.inner.position());
        if left == 0 {
            return Err(io::Error::new(self.kind, "the cable is cut"));
        }
        let most = buffer.len().min(left as usize);
        self.inner.read(&mut buffer[..most])
    }
}

impl Seek for Failing {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.inner.seek(to)
    }
}

#[test]
fn a_network_that_fails_is_not_the_images_fault() {
    let content = layer(|tar| file(tar, "a", &[7; 3000]));
    let digest = hex(&content);
    for content in [content.clone(), crate::image_lab::gzip(&content)] {
        let (bytes, id) = docker_archive(&[content], std::slice::from_ref(&digest));
        // The content between the entries is not read.
        let last = bytes
            .windows(13)
            .rposition(|w| w == b"\"RepoTags\":[\"")
            .unwrap() as u64;
        for at in (0..last).step_by(512).chain([last]) {
            for kind in [io::ErrorKind::Other, io::ErrorKind::UnexpectedEof] {
                let dir = tempfile::tempdir().unwrap();
                let store = ImageStore::open(dir.path()).unwrap();
                let mut archive = Failing {
                    inner: Cursor::new(bytes.clone()),
                    at,
                    kind,
                };
                let error = store
                    .load(&mut archive, "image.tar", Some(&id))
                    .unwrap_err();
                assert!(!error.is_image_fault(), "at {at}: {error}");
                assert!(
                    error.to_string().contains("the cable is cut"),
                    "at {at}: {error}"
                );
            }
        }
    }
}
