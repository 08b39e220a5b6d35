//! Layers and image archives made by hand, also invalid ones.

use image_archive::ArchiveError;
use image_archive::layer::LayerStream;
use sha2::{Digest, Sha256};

pub type Tar = tar::Builder<Vec<u8>>;

pub fn hex(bytes: &[u8]) -> String {
    data_encoding::HEXLOWER.encode(&Sha256::digest(bytes))
}

pub fn file(tar: &mut Tar, path: &str, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    // Set by hand to allow names that the builder refuses.
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
    header.set_cksum();
    tar.append(&header, content).unwrap();
}

pub fn link(tar: &mut Tar, path: &str, target: &str) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    header.set_mode(0o777);
    tar.append_link(&mut header, path, target).unwrap();
}

pub fn layer(build: impl FnOnce(&mut Tar)) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    build(&mut tar);
    tar.into_inner().unwrap()
}

/// A docker-archive of one image, and that image's id.
pub fn docker_archive(layers: &[Vec<u8>], digests: &[String]) -> (Vec<u8>, String) {
    let config = serde_json::to_vec(&serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["A=1"], "Entrypoint": ["/bin/run"], "Cmd": ["x"], "WorkingDir": "/w", "User": ""},
        "rootfs": {"type": "layers", "diff_ids": digests.iter().map(|d| format!("sha256:{d}")).collect::<Vec<_>>()},
    }))
    .unwrap();
    let id = hex(&config);
    let names: Vec<String> = (0..layers.len())
        .map(|n| format!("{n}/layer.tar"))
        .collect();
    let manifest = serde_json::to_vec(&serde_json::json!([
        {"Config": format!("{id}.json"), "RepoTags": ["t:1"], "Layers": names}
    ]))
    .unwrap();
    let bytes = layer(|tar| {
        file(tar, &format!("{id}.json"), &config);
        for (name, content) in names.iter().zip(layers) {
            file(tar, name, content);
        }
        file(tar, "manifest.json", &manifest);
    });
    (bytes, format!("sha256:{id}"))
}

pub fn archive_of(layers: &[Vec<u8>]) -> (Vec<u8>, String) {
    let digests: Vec<String> = layers.iter().map(|l| hex(l)).collect();
    docker_archive(layers, &digests)
}

/// An entry with this raw name in its header; `set` changes the rest of the header.
pub fn entry(tar: &mut Tar, path: &str, kind: tar::EntryType, set: impl FnOnce(&mut tar::Header)) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(0);
    header.set_mode(0o755);
    header.as_gnu_mut().unwrap().name[..path.len()].copy_from_slice(path.as_bytes());
    set(&mut header);
    header.set_cksum();
    tar.append(&header, &[][..]).unwrap();
}

pub fn dir(tar: &mut Tar, path: &str) {
    entry(tar, path, tar::EntryType::Directory, |_| {});
}

/// The target is in the header as it is.
pub fn hard_link(tar: &mut Tar, path: &str, target: &str) {
    entry(tar, path, tar::EntryType::Link, |header| {
        header.as_gnu_mut().unwrap().linkname[..target.len()].copy_from_slice(target.as_bytes());
    });
}

/// Attributes that go before an entry and are stronger than its header.
pub fn pax(tar: &mut Tar, attributes: &[(&str, &[u8])]) {
    tar.append_pax_extensions(attributes.iter().copied())
        .unwrap();
}

/// A name or target of any length, as GNU tar writes it.
pub fn long_name(tar: &mut Tar, name: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_path("././@LongLink").unwrap();
    header.set_size(name.len() as u64);
    header.set_cksum();
    tar.append(&header, name).unwrap();
}

/// What `dispatch image add` finds in a layer of this digest.
pub fn check(layer: &[u8], digest: &str) -> Result<(), ArchiveError> {
    let diff_id = format!("sha256:{digest}");
    image_archive::layer::check(LayerStream::open(layer, "image.tar", &diff_id)?)
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}
