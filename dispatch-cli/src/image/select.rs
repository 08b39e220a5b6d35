//! Which image of a docker-archive or an OCI layout is meant, and which of its files make it up.

use std::collections::BTreeSet;

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::files::Files;
use super::{ImageError, ImageName};

/// An index may point to indexes, but not for ever.
const MOST_NESTING: usize = 5;

/// One image.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// 64 hexadecimal digits of the configuration's hash.
    pub id: String,
    /// The configuration, byte for byte.
    pub config: Vec<u8>,
    /// Lowest first.
    pub layers: Vec<Layer>,
    names: Vec<String>,
}

/// A layer and how it can be checked while it is read.
#[derive(Debug, Clone)]
pub struct Layer {
    /// File it is in.
    pub file: String,
    /// What its uncompressed bytes hash to, `sha256:…`.
    pub diff_id: String,
    /// What the file's bytes hash to, where the file's name says so.
    pub blob: Option<String>,
}

/// One element of a docker-archive's manifest.json.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    #[serde(default)]
    layers: Option<Vec<String>>,
}

/// The only image, or the one that is called `name` in it.
pub fn choose(files: &Files, name: &ImageName) -> Result<Chosen, ImageError> {
    let mut found = Vec::new();
    let mut platforms = BTreeSet::new();
    if files.has("manifest.json") {
        docker(files, &mut found)?;
    }
    if found.is_empty() && files.has("index.json") {
        let index: ImageIndex = files.json("index.json")?;
        oci(files, &index, 0, &mut found, &mut platforms)?;
    }
    let mut seen = BTreeSet::new();
    found.retain(|image| seen.insert(image.id.clone()));
    match found.len() {
        1 => found.pop().ok_or(ImageError::Stopped),
        0 if !platforms.is_empty() => Err(ImageError::OtherPlatform {
            path: files.path().to_owned(),
            present: platforms.into_iter().collect::<Vec<_>>().join(", "),
            wanted: format!("linux/{}", architecture()),
        }),
        0 => Err(ImageError::NotAnImage {
            path: files.path().to_owned(),
            why: "it has no manifest.json and no index.json with an image in it".to_owned(),
        }),
        _ => {
            let present: Vec<String> = found
                .iter()
                .map(|image| match image.names.first() {
                    Some(name) => name.clone(),
                    None => image.id[..12].to_owned(),
                })
                .collect();
            found
                .into_iter()
                .find(|image| image.names.iter().any(|known| same(known, name)))
                .ok_or(ImageError::Several {
                    path: files.path().to_owned(),
                    present: present.join(", "),
                })
        }
    }
}

/// Archives say `busybox:1`, `docker.io/library/busybox:1` or only `1`.
fn same(known: &str, name: &ImageName) -> bool {
    let whole = name.to_string();
    known == whole || known == name.tag || known.ends_with(&format!("/{whole}"))
}

fn docker(files: &Files, found: &mut Vec<Chosen>) -> Result<(), ImageError> {
    let images: Vec<DockerImage> = files.json("manifest.json")?;
    for image in images {
        let config = files.read(&image.config)?;
        let layers = image.layers.unwrap_or_default();
        let names = image.repo_tags.unwrap_or_default();
        found.push(assemble(files, config, layers, names, false)?);
    }
    Ok(())
}

fn oci(
    files: &Files,
    index: &ImageIndex,
    depth: usize,
    found: &mut Vec<Chosen>,
    platforms: &mut BTreeSet<String>,
) -> Result<(), ImageError> {
    if depth > MOST_NESTING {
        return Err(files.damaged("its indexes point to each other without end".to_owned()));
    }
    for descriptor in index.manifests() {
        let blob = blob(files, descriptor)?;
        // An index may name platforms whose blobs were left out, and attestations that are no images.
        if is_attestation(descriptor) || !files.has(&blob) {
            continue;
        }
        if let Some(other) = other_platform(descriptor) {
            platforms.insert(other);
            continue;
        }
        let bytes = checked(files, &blob)?;
        let media_type = descriptor.media_type().to_string();
        if media_type.ends_with("index.v1+json") || media_type.ends_with("manifest.list.v2+json") {
            let index = serde_json::from_slice(&bytes)
                .map_err(|e| files.damaged(format!("{blob} cannot be read: {e}")))?;
            oci(files, &index, depth + 1, found, platforms)?;
            continue;
        }
        let manifest: ImageManifest = serde_json::from_slice(&bytes)
            .map_err(|e| files.damaged(format!("{blob} is no image manifest: {e}")))?;
        let config = checked(files, &self::blob(files, manifest.config())?)?;
        let layers = manifest
            .layers()
            .iter()
            .map(|layer| self::blob(files, layer))
            .collect::<Result<_, _>>()?;
        let names = descriptor.annotations().iter().flatten();
        let names = names
            .filter(|(key, _)| key.ends_with("image.name") || key.ends_with("image.ref.name"))
            .map(|(_, value)| value.clone())
            .collect();
        found.push(assemble(files, config, layers, names, true)?);
    }
    Ok(())
}

fn assemble(
    files: &Files,
    config: Vec<u8>,
    layers: Vec<String>,
    names: Vec<String>,
    named_by_hash: bool,
) -> Result<Chosen, ImageError> {
    let id = data_encoding::HEXLOWER.encode(&Sha256::digest(&config));
    let parsed: ImageConfiguration = serde_json::from_slice(&config)
        .map_err(|e| files.damaged(format!("the configuration {id} cannot be read: {e}")))?;
    let diff_ids = parsed.rootfs().diff_ids();
    if diff_ids.len() != layers.len() {
        return Err(files.damaged(format!(
            "it lists {} layers and {} hashes of layers",
            layers.len(),
            diff_ids.len()
        )));
    }
    let layers = layers.into_iter().zip(diff_ids).map(|(file, diff_id)| {
        let blob = named_by_hash.then(|| file.rsplit('/').next().unwrap_or("").to_owned());
        Layer {
            file,
            diff_id: diff_id.clone(),
            blob,
        }
    });
    Ok(Chosen {
        id,
        config,
        layers: layers.collect(),
        names,
    })
}

/// The file a descriptor points to.
fn blob(files: &Files, descriptor: &Descriptor) -> Result<String, ImageError> {
    let digest = descriptor.digest().to_string();
    let hex = digest
        .strip_prefix("sha256:")
        .filter(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
    match hex {
        Some(hex) => Ok(format!("blobs/sha256/{hex}")),
        None => Err(files.damaged(format!("{digest} is no sha256 digest"))),
    }
}

fn checked(files: &Files, name: &str) -> Result<Vec<u8>, ImageError> {
    let bytes = files.read(name)?;
    let hex = data_encoding::HEXLOWER.encode(&Sha256::digest(&bytes));
    match name.ends_with(&hex) {
        true => Ok(bytes),
        false => Err(files.damaged(format!("{name} has other content than its name says"))),
    }
}

fn is_attestation(descriptor: &Descriptor) -> bool {
    let mut annotations = descriptor.annotations().iter().flatten();
    annotations.any(|(key, _)| key == "vnd.docker.reference.type")
}

fn other_platform(descriptor: &Descriptor) -> Option<String> {
    let platform = descriptor.platform().as_ref()?;
    let (os, arch) = (
        platform.os().to_string(),
        platform.architecture().to_string(),
    );
    (os != "linux" || arch != architecture()).then(|| format!("{os}/{arch}"))
}

/// This machine's architecture as images name it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
