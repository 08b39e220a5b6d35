//! Images from every form people have them in.

use std::fs;
use std::path::PathBuf;

use image_archive::{ArchiveError, architecture};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use super::*;

fn name() -> ImageName {
    "tool:1".parse().unwrap()
}

fn sha(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

/// A root directory with a file, a link, and a second name.
fn root(dir: &TempDir) -> PathBuf {
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::write(root.join("bin/sh"), "#!").unwrap();
    fs::hard_link(root.join("bin/sh"), root.join("bin/ash")).unwrap();
    std::os::unix::fs::symlink("sh", root.join("bin/dash")).unwrap();
    fs::write(root.join(format!("{}.txt", "long".repeat(40))), "x").unwrap();
    root
}

fn packed(image: &ImageSource) -> Vec<u8> {
    let mut bytes = Vec::new();
    image.write(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_root_directory_becomes_an_image_with_one_layer() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageSource::open(&root(&dir), Some(&name()), architecture()).unwrap();
    let archive = packed(&image);
    assert_eq!(archive, packed(&image), "twice is the same");

    let file = dir.path().join("image.tar");
    fs::write(&file, &archive).unwrap();
    let again = ImageSource::open(&file, Some(&name()), architecture()).unwrap();
    assert_eq!(again.id, image.id);
    assert_eq!(packed(&again), archive, "an archive of ours stays as it is");

    let files = Files::archive(&file).unwrap();
    let chosen = select::choose(&files, Some(&name()), architecture()).unwrap();
    let (layer, _) = files.open(&chosen.layers[0].name).unwrap();
    let mut kinds: Vec<(String, tar::EntryType)> = tar::Archive::new(layer)
        .entries()
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, entry.header().entry_type())
        })
        .collect();
    kinds.truncate(4);
    assert_eq!(
        kinds,
        [
            ("bin/".into(), tar::EntryType::Directory),
            ("bin/ash".into(), tar::EntryType::Regular),
            ("bin/dash".into(), tar::EntryType::Symlink),
            ("bin/sh".into(), tar::EntryType::Link),
        ]
    );
}

#[test]
fn compressed_archives_are_unpacked() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageSource::open(&root(&dir), Some(&name()), architecture()).unwrap();
    let archive = packed(&image);
    let gzip = dir.path().join("image.tar.gz");
    let mut writer =
        flate2::write::GzEncoder::new(fs::File::create(&gzip).unwrap(), Default::default());
    writer.write_all(&archive).unwrap();
    writer.finish().unwrap();
    let zstd = dir.path().join("image.tar.zst");
    fs::write(&zstd, zstd::encode_all(archive.as_slice(), 1).unwrap()).unwrap();
    for file in [gzip, zstd] {
        let again = ImageSource::open(&file, Some(&name()), architecture()).unwrap();
        assert_eq!(packed(&again), archive, "{}", file.display());
    }
}

/// An OCI layout with one image per architecture in `archs`.
fn layout(dir: &TempDir, archs: &[&str], ref_names: &[&str]) -> PathBuf {
    let path = dir.path().join("layout");
    let blobs = path.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let put = |bytes: &[u8]| {
        fs::write(blobs.join(sha(bytes)), bytes).unwrap();
        format!("sha256:{}", sha(bytes))
    };
    let mut manifests = Vec::new();
    for (number, arch) in archs.iter().enumerate() {
        let layer = format!("layer {number} is no tar, and nobody unpacks it here");
        let compressed = zstd::encode_all(layer.as_bytes(), 1).unwrap();
        let config = serde_json::json!({"architecture": arch, "os": "linux",
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha(layer.as_bytes()))]}});
        let config = config.to_string();
        let manifest = serde_json::json!({"schemaVersion": 2,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": put(config.as_bytes()), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+zstd", "digest": put(&compressed), "size": compressed.len()}]});
        let manifest = manifest.to_string();
        manifests.push(serde_json::json!({"mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": put(manifest.as_bytes()), "size": manifest.len(),
            "platform": {"architecture": arch, "os": "linux"},
            "annotations": {"org.opencontainers.image.ref.name": ref_names.get(number).unwrap_or(&"")}}));
    }
    let index = serde_json::json!({"schemaVersion": 2, "manifests": manifests});
    fs::write(path.join("index.json"), index.to_string()).unwrap();
    fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    path
}

#[test]
fn of_several_platforms_this_machines_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let path = layout(&dir, &["s390x", architecture(), "riscv64"], &[]);
    let image = ImageSource::open(&path, Some(&name()), architecture()).unwrap();
    let file = dir.path().join("stored.tar");
    fs::write(&file, packed(&image)).unwrap();
    let stored = ImageSource::open(&file, Some(&name()), architecture()).unwrap();
    assert_eq!(stored.id, image.id);

    let other = tempfile::tempdir().unwrap();
    let path = layout(&other, &["s390x"], &[]);
    let refused = ImageSource::open(&path, Some(&name()), architecture()).unwrap_err();
    assert!(
        matches!(&refused, ImageError::Archive(ArchiveError::OtherPlatform { present, .. }) if present == "linux/s390x"),
        "{refused}"
    );
}

#[test]
fn of_several_images_the_one_of_that_name_is_taken() {
    let dir = tempfile::tempdir().unwrap();
    let here = architecture();
    let path = layout(&dir, &[here, here], &["tool:1", "tool:2"]);
    let one = ImageSource::open(&path, Some(&name()), architecture()).unwrap();
    let two = ImageSource::open(&path, Some(&"tool:2".parse().unwrap()), architecture()).unwrap();
    assert_ne!(one.id, two.id);
    let refused =
        ImageSource::open(&path, Some(&"tool:3".parse().unwrap()), architecture()).unwrap_err();
    assert!(
        matches!(&refused, ImageError::Several { present, .. } if present == "tool:1, tool:2"),
        "{refused}"
    );
}

#[test]
fn a_damaged_layer_is_not_stored() {
    let dir = tempfile::tempdir().unwrap();
    let path = layout(&dir, &[architecture()], &[]);
    let image = ImageSource::open(&path, Some(&name()), architecture()).unwrap();
    let Origin::Files(_, chosen) = &image.origin else {
        panic!("a layout is files");
    };
    fs::write(path.join(&chosen.layers[0].name), "something else").unwrap();
    let image = ImageSource::open(&path, Some(&name()), architecture()).unwrap();
    let refused = image.write(&mut Vec::new()).unwrap_err();
    assert!(
        matches!(refused, ImageError::Archive(ArchiveError::Damaged { .. })),
        "{refused}"
    );
}

#[test]
fn a_layer_that_no_node_unpacks_is_refused_by_layer_and_file() {
    let dir = tempfile::tempdir().unwrap();
    let root = root(&dir);
    let image = ImageSource::open(&root, Some(&name()), architecture()).unwrap();
    let file = dir.path().join("image.tar");
    fs::write(&file, packed(&image)).unwrap();
    let good = ImageSource::open(&file, Some(&name()), architecture()).unwrap();
    good.check_layers(&ProgressBar::hidden()).unwrap();

    let (bad, diff_id) = layer_that_leads_out();
    fs::write(&file, bad).unwrap();
    let image = ImageSource::open(&file, Some(&name()), architecture()).unwrap();
    let refused = image.check_layers(&ProgressBar::hidden()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains(&format!("layer sha256:{diff_id}")), "{text}");
    assert!(
        text.contains("entry \"../out\" leads out of the image"),
        "{text}"
    );
}

/// A docker-archive with a layer whose only file leads out, and the digest of the layer.
fn layer_that_leads_out() -> (Vec<u8>, String) {
    let mut header = tar::Header::new_gnu();
    header.as_gnu_mut().unwrap().name[..6].copy_from_slice(b"../out");
    header.set_size(0);
    header.set_cksum();
    let mut layer = tar::Builder::new(Vec::new());
    layer.append(&header, &[][..]).unwrap();
    let layer = layer.into_inner().unwrap();
    let config = pack::root_config(&sha(&layer)).1;
    (docker_archive(&layer, config, &["tool:1"]), sha(&layer))
}

fn docker_archive(layer: &[u8], config: Vec<u8>, tags: &[&str]) -> Vec<u8> {
    let id = sha(&config);
    let manifest = serde_json::json!([
        {"Config": format!("{id}.json"), "RepoTags": tags, "Layers": ["layer.tar"]}
    ]);
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in [
        (
            "manifest.json".to_owned(),
            manifest.to_string().into_bytes(),
        ),
        (format!("{id}.json"), config),
        ("layer.tar".to_owned(), layer.to_owned()),
    ] {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        archive
            .append_data(&mut header, name, content.as_slice())
            .unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn an_archive_names_its_image() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image.tar");
    let tags = [
        "tool:7",
        "docker.io/library/tool:7",
        "host:5000/a/tool:latest",
    ];
    let config = pack::root_config(&sha(b"layer")).1;
    fs::write(&file, docker_archive(b"layer", config, &tags)).unwrap();
    let image = ImageSource::open(&file, None, architecture()).unwrap();
    let names: Vec<String> = image.names().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["host:5000/a/tool:latest", "tool:7"]);
    // The name of an OCI layout may be a tag alone.
    let other = tempfile::tempdir().unwrap();
    let path = layout(&other, &[architecture()], &["7"]);
    let image = ImageSource::open(&path, None, architecture()).unwrap();
    assert_eq!(image.names(), []);
}

#[test]
fn an_image_of_another_architecture_is_refused_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("image.tar");
    let config = serde_json::json!({"architecture": "s390x", "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", sha(b"layer"))]}});
    let config = config.to_string().into_bytes();
    fs::write(&file, docker_archive(b"layer", config, &["tool:1"])).unwrap();
    let refused = ImageSource::open(&file, None, architecture()).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("for linux/s390x only"), "{text}");
    assert!(text.contains("--architecture"), "{text}");
    ImageSource::open(&file, None, "s390x").unwrap();
    // The same of an index, which is asked for the architecture, too.
    let other = tempfile::tempdir().unwrap();
    let path = layout(&other, &["s390x", "riscv64"], &[]);
    ImageSource::open(&path, None, architecture()).unwrap_err();
    ImageSource::open(&path, None, "riscv64").unwrap();
}

#[test]
fn what_is_no_image_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let open = |name: &str| {
        ImageSource::open(&at(name), Some(&super::tests::name()), architecture()).unwrap_err()
    };
    assert!(matches!(open("none"), ImageError::NoFile(_)));
    fs::create_dir(at("empty")).unwrap();
    assert!(matches!(open("empty"), ImageError::EmptyRoot(_)));
    fs::write(at("text"), "hello").unwrap();
    assert!(matches!(
        open("text"),
        ImageError::Archive(ArchiveError::NotAnImage { .. })
    ));
    fs::write(at("binary"), [0x9f; 4000]).unwrap();
    fs::write(at("secret"), "sesame ".repeat(600)).unwrap();
    for name in ["binary", "secret"] {
        let text = open(name).to_string();
        assert!(text.contains("it is not a tar archive"), "{text}");
        assert!(text.is_ascii() && !text.contains("sesame"), "{text}");
    }
    fs::write(at("xz"), b"\xfd7zXZ\0").unwrap();
    assert!(open("xz").to_string().contains("uncompress it first"));
    let mut tar = tar::Builder::new(fs::File::create(at("tar")).unwrap());
    tar.append_path_with_name(at("text"), "hello").unwrap();
    tar.into_inner().unwrap();
    assert!(open("tar").to_string().contains("manifest.json"));
}
