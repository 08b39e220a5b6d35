//! Finds the images of an archive or layout by its manifests: docker-archive's `manifest.json` and
//! OCI's `index.json`, in any nesting.

use std::collections::BTreeSet;

use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;

use crate::files::{ImageFiles, JsonReader, digest};
use crate::{ArchiveError, digest_hex};

/// Maximum depth of indexes that point to indexes.
const MAX_NESTING: usize = 5;
/// Maximum number of layers that overlayfs can stack.
const MAX_LAYERS: usize = 500;
/// Maximum number of images that a message lists.
const MAX_DISPLAYED: usize = 10;

/// One image of the archive.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// `sha256:…` of the configuration, and of the manifest where there is one.
    pub ids: Vec<String>,
    pub names: Vec<String>,
    /// The configuration, byte for byte.
    pub config: Vec<u8>,
    /// Names of the layers' files, lowest first.
    files: Vec<String>,
    /// The file names contain the hashes of the files, as in every OCI layout.
    named_by_hash: bool,
}

/// A layer of an image, and how it can be verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LayerFile {
    /// Name of the file in the archive.
    pub name: String,
    /// `sha256:…` of the uncompressed layer.
    pub diff_id: String,
    /// SHA-256 of the file itself, in hexadecimal, if the file's name contains it.
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

/// What the configuration says of the platform.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Platform {
    os: String,
    architecture: String,
}

impl Candidate {
    /// `OS/ARCHITECTURE`, if the configuration says that it is not Linux on this architecture.
    pub fn other_platform(&self, wanted: &str) -> Option<String> {
        let Platform { os, architecture } = serde_json::from_slice(&self.config).ok()?;
        let is_other = |found: &str, wanted: &str| !found.is_empty() && found != wanted;
        (is_other(&os, "linux") || is_other(&architecture, wanted))
            .then(|| format!("{os}/{architecture}"))
    }

    /// The parsed configuration and the layers, lowest first.
    pub fn open(
        &self,
        files: &impl ImageFiles,
    ) -> Result<(ImageConfiguration, Vec<LayerFile>), ArchiveError> {
        let id = &self.ids[0];
        let config: ImageConfiguration = serde_json::from_slice(&self.config).map_err(|error| {
            files.damaged(format!(
                "the configuration of image {id} cannot be read: {error}"
            ))
        })?;
        let diff_ids = config.rootfs().diff_ids();
        if diff_ids.len() != self.files.len() {
            return Err(files.damaged(format!(
                "image {id} lists {} layers and {} digests of layers",
                self.files.len(),
                diff_ids.len()
            )));
        }
        if diff_ids.len() > MAX_LAYERS {
            return Err(files.damaged(format!(
                "image {id} has {} layers, and no more than {MAX_LAYERS} can be stacked",
                diff_ids.len()
            )));
        }
        let layers = self
            .files
            .iter()
            .zip(diff_ids)
            .map(|(name, diff_id)| {
                digest_hex(diff_id)?;
                let hash = name.rsplit('/').next().map(str::to_owned);
                Ok(LayerFile {
                    name: name.clone(),
                    diff_id: diff_id.clone(),
                    blob: hash.filter(|_| self.named_by_hash),
                })
            })
            .collect::<Result<_, ArchiveError>>()?;
        Ok((config, layers))
    }
}

/// All images that an index does not give to another architecture. Never empty: an archive without
/// one is an error.
pub fn candidates(
    files: &impl ImageFiles,
    architecture: &str,
) -> Result<Vec<Candidate>, ArchiveError> {
    let mut search = Search {
        reader: JsonReader::new(files),
        architecture,
        seen: BTreeSet::new(),
        found: Vec::new(),
        other_platforms: BTreeSet::new(),
    };
    if files.contains("index.json") {
        search.walk_index("index.json", 0)?;
    }
    if files.contains("manifest.json") {
        search.read_docker_manifest()?;
    }
    if !search.found.is_empty() {
        return Ok(search.found);
    }
    let label = files.label().to_owned();
    match search.other_platforms.is_empty() {
        true => Err(ArchiveError::NotAnImage {
            label,
            reason: "it has no manifest.json and no index.json with an image in it".to_owned(),
        }),
        false => Err(ArchiveError::OtherPlatform {
            label,
            present: Vec::from_iter(search.other_platforms).join(", "),
            wanted: format!("linux/{architecture}"),
        }),
    }
}

struct Search<'a, F> {
    reader: JsonReader<'a, F>,
    architecture: &'a str,
    /// Names of the indexes that were read.
    seen: BTreeSet<String>,
    found: Vec<Candidate>,
    other_platforms: BTreeSet<String>,
}

impl<F: ImageFiles> Search<'_, F> {
    fn read_docker_manifest(&mut self) -> Result<(), ArchiveError> {
        let images: Vec<DockerImage> = self.reader.json("manifest.json")?;
        for image in images {
            let config = self.reader.bytes(&image.config)?;
            let id = digest(&config);
            let names = image.repo_tags.unwrap_or_default();
            // Newer archives have both manifests. OCI's list of layers can be verified.
            if let Some(known) = self.found.iter_mut().find(|c| c.ids.contains(&id)) {
                known.names.extend(names);
                continue;
            }
            self.found.push(Candidate {
                ids: vec![id],
                names,
                config,
                files: image.layers.unwrap_or_default(),
                named_by_hash: false,
            });
        }
        Ok(())
    }

    fn walk_index(&mut self, name: &str, depth: usize) -> Result<(), ArchiveError> {
        if depth > MAX_NESTING || !self.seen.insert(name.to_owned()) {
            return Ok(());
        }
        let index: ImageIndex = self.reader.json(name)?;
        for descriptor in index.manifests() {
            let digest = descriptor.digest().to_string();
            let Ok(hex) = digest_hex(&digest) else {
                continue;
            };
            let blob = format!("blobs/sha256/{hex}");
            // An index may name platforms whose blobs were left out.
            if is_attestation(descriptor) || !self.reader.files.contains(&blob) {
                continue;
            }
            if let Some(platform) = other_platform(descriptor, self.architecture) {
                self.other_platforms.insert(platform);
                continue;
            }
            let media_type = descriptor.media_type().to_string();
            if media_type.ends_with("image.index.v1+json")
                || media_type.ends_with("manifest.list.v2+json")
            {
                self.walk_index(&blob, depth + 1)?;
            } else {
                let candidate = self.read_manifest(descriptor, &blob, hex)?;
                self.found.push(candidate);
            }
        }
        Ok(())
    }

    fn read_manifest(
        &self,
        descriptor: &Descriptor,
        blob: &str,
        hex: &str,
    ) -> Result<Candidate, ArchiveError> {
        let files = self.reader.files;
        let bytes = self.reader.verified(blob, hex)?;
        let Ok(manifest) = serde_json::from_slice::<ImageManifest>(&bytes) else {
            return Err(files.damaged(format!("{blob} is not an image manifest")));
        };
        let config_digest = manifest.config().digest().to_string();
        let config_hex = digest_hex(&config_digest)?;
        let config = self
            .reader
            .verified(&format!("blobs/sha256/{config_hex}"), config_hex)?;
        let layers = manifest
            .layers()
            .iter()
            .map(|layer| {
                let media_type = layer.media_type().to_string();
                if media_type.contains("encrypted") {
                    return Err(ArchiveError::UnsupportedLayer {
                        label: files.label().to_owned(),
                        media_type,
                    });
                }
                Ok(format!(
                    "blobs/sha256/{}",
                    digest_hex(layer.digest().as_ref())?
                ))
            })
            .collect::<Result<_, _>>()?;
        let names = descriptor
            .annotations()
            .iter()
            .flatten()
            .filter(|(key, _)| {
                matches!(
                    key.as_str(),
                    "io.containerd.image.name" | "org.opencontainers.image.ref.name"
                )
            })
            .map(|(_, value)| value.clone())
            .collect();
        Ok(Candidate {
            ids: vec![config_digest, format!("sha256:{hex}")],
            names,
            config,
            files: layers,
            named_by_hash: true,
        })
    }
}

/// The images of an archive, for a message.
pub fn list(candidates: &[Candidate]) -> String {
    let mut listed: Vec<String> = candidates
        .iter()
        .take(MAX_DISPLAYED)
        .map(|c| match c.names.first() {
            Some(name) => format!("{} ({name})", c.ids[0]),
            None => c.ids[0].clone(),
        })
        .collect();
    if candidates.len() > MAX_DISPLAYED {
        listed.push(format!("and {} more", candidates.len() - MAX_DISPLAYED));
    }
    listed.join(", ")
}

fn is_attestation(descriptor: &Descriptor) -> bool {
    let mut annotations = descriptor.annotations().iter().flatten();
    annotations.any(|(key, _)| key == "vnd.docker.reference.type")
}

/// `OS/ARCHITECTURE`, unless it is Linux on this architecture.
fn other_platform(descriptor: &Descriptor, wanted: &str) -> Option<String> {
    let platform = descriptor.platform().as_ref()?;
    let (os, architecture) = (
        platform.os().to_string(),
        platform.architecture().to_string(),
    );
    (os != "linux" || architecture != wanted).then(|| format!("{os}/{architecture}"))
}

/// This machine's architecture as images name it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
