//! Choosing one image of an archive, and what its manifest and configuration say of it.

use std::collections::BTreeSet;

use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;

use super::super::{Archive, ImageConfig, ImageError, digest_hex};
use super::{Index, MOST_NESTING, digest};

/// What overlayfs can stack.
const MOST_LAYERS: usize = 500;

/// One image of the archive.
struct Candidate {
    /// `sha256:…` of the configuration, and of the manifest where there is one.
    ids: Vec<String>,
    names: Vec<String>,
    config: Vec<u8>,
    layers: Vec<String>,
}

/// The image that was asked for.
pub struct Selected {
    /// The id it was asked by.
    pub id: String,
    /// All ids it has.
    pub aliases: Vec<String>,
    pub config: ImageConfig,
    /// Lowest first.
    pub layers: Vec<LayerFile>,
}

pub struct LayerFile {
    /// `sha256:…` of the uncompressed layer.
    pub diff_id: String,
    pub offset: u64,
    pub size: u64,
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

impl Index {
    pub fn select<A: Archive>(
        &self,
        archive: &mut A,
        want: Option<&str>,
    ) -> Result<Selected, ImageError> {
        let candidates = self.candidates(archive)?;
        let present = || present(&candidates);
        let (chosen, id) = match want {
            Some(want) => {
                let id = format!("sha256:{}", digest_hex(want)?);
                let chosen = candidates
                    .iter()
                    .find(|c| c.ids.contains(&id))
                    .ok_or_else(|| ImageError::NotInArchive {
                        label: self.label.clone(),
                        wanted: id.clone(),
                        present: present(),
                    })?;
                (chosen, id)
            }
            None => match candidates.as_slice() {
                [only] => (only, only.ids[0].clone()),
                _ => {
                    return Err(ImageError::Ambiguous {
                        label: self.label.clone(),
                        present: present(),
                    });
                }
            },
        };
        self.open_candidate(chosen, id)
    }

    fn open_candidate(&self, chosen: &Candidate, id: String) -> Result<Selected, ImageError> {
        let config: ImageConfiguration =
            serde_json::from_slice(&chosen.config).map_err(|error| {
                self.damaged(format!(
                    "the configuration of image {id} cannot be read: {error}"
                ))
            })?;
        let diff_ids = config.rootfs().diff_ids();
        if diff_ids.len() != chosen.layers.len() {
            return Err(self.damaged(format!(
                "image {id} lists {} layers and {} digests of layers",
                chosen.layers.len(),
                diff_ids.len()
            )));
        }
        if diff_ids.len() > MOST_LAYERS {
            return Err(self.damaged(format!(
                "image {id} has {} layers, and no more than {MOST_LAYERS} can be stacked",
                diff_ids.len()
            )));
        }
        let layers = chosen
            .layers
            .iter()
            .zip(diff_ids)
            .map(|(name, diff_id)| {
                digest_hex(diff_id)?;
                let place = self.place(name)?;
                Ok(LayerFile {
                    diff_id: diff_id.clone(),
                    offset: place.offset,
                    size: place.size,
                })
            })
            .collect::<Result<_, ImageError>>()?;
        let run = config.config().clone().unwrap_or_default();
        let text = |value: &Option<String>| value.clone().filter(|v| !v.is_empty());
        Ok(Selected {
            id,
            aliases: chosen.ids.clone(),
            config: ImageConfig {
                env: run.env().clone().unwrap_or_default(),
                entrypoint: run.entrypoint().clone().unwrap_or_default(),
                cmd: run.cmd().clone().unwrap_or_default(),
                working_dir: text(run.working_dir()),
                user: text(run.user()),
            },
            layers,
        })
    }

    fn candidates<A: Archive>(&self, archive: &mut A) -> Result<Vec<Candidate>, ImageError> {
        let mut found: Vec<Candidate> = Vec::new();
        if self.has("index.json") {
            let mut seen = BTreeSet::new();
            self.walk_index(archive, "index.json", &mut seen, 0, &mut found)?;
        }
        if self.has("manifest.json") {
            let images: Vec<DockerImage> = self.json(archive, "manifest.json")?;
            for image in images {
                let config = self.bytes(archive, &image.config)?;
                let id = digest(&config);
                let names = image.repo_tags.unwrap_or_default();
                // Newer archives say everything twice; OCI's word about the layers is checked.
                if let Some(known) = found.iter_mut().find(|c| c.ids.contains(&id)) {
                    known.names.extend(names);
                    continue;
                }
                found.push(Candidate {
                    ids: vec![id],
                    names,
                    config,
                    layers: image.layers.unwrap_or_default(),
                });
            }
        }
        if found.is_empty() {
            return Err(ImageError::NotAnImage {
                label: self.label.clone(),
                reason: "it has no manifest.json and no index.json with an image in it".to_owned(),
            });
        }
        Ok(found)
    }

    fn walk_index<A: Archive>(
        &self,
        archive: &mut A,
        name: &str,
        seen: &mut BTreeSet<String>,
        depth: usize,
        found: &mut Vec<Candidate>,
    ) -> Result<(), ImageError> {
        if depth > MOST_NESTING || !seen.insert(name.to_owned()) {
            return Ok(());
        }
        let index: ImageIndex = self.json(archive, name)?;
        for descriptor in index.manifests() {
            let digest = descriptor.digest().to_string();
            let Ok(hex) = digest_hex(&digest) else {
                continue;
            };
            let blob = format!("blobs/sha256/{hex}");
            // An index may name platforms whose blobs were left out.
            if !self.has(&blob) || !runs_here(descriptor) {
                continue;
            }
            let media_type = descriptor.media_type().to_string();
            if media_type.ends_with("image.index.v1+json")
                || media_type.ends_with("manifest.list.v2+json")
            {
                self.walk_index(archive, &blob, seen, depth + 1, found)?;
                continue;
            }
            let bytes = self.checked(archive, &blob, hex)?;
            let Ok(manifest) = serde_json::from_slice::<ImageManifest>(&bytes) else {
                return Err(self.damaged(format!("{blob} is not an image manifest")));
            };
            let config_digest = manifest.config().digest().to_string();
            let config_hex = digest_hex(&config_digest)?;
            let config =
                self.checked(archive, &format!("blobs/sha256/{config_hex}"), config_hex)?;
            let layers = manifest
                .layers()
                .iter()
                .map(|layer| {
                    let media_type = layer.media_type().to_string();
                    if media_type.contains("encrypted") {
                        return Err(ImageError::UnsupportedLayer {
                            label: self.label.clone(),
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
            found.push(Candidate {
                ids: vec![config_digest, digest],
                names,
                config,
                layers,
            });
        }
        Ok(())
    }
}

/// The images an archive has, for a message.
fn present(candidates: &[Candidate]) -> String {
    const SHOWN: usize = 10;
    let mut shown: Vec<String> = candidates
        .iter()
        .take(SHOWN)
        .map(|c| match c.names.first() {
            Some(name) => format!("{} ({name})", c.ids[0]),
            None => c.ids[0].clone(),
        })
        .collect();
    if candidates.len() > SHOWN {
        shown.push(format!("and {} more", candidates.len() - SHOWN));
    }
    shown.join(", ")
}

/// Attestations and other machines' images are no candidates.
fn runs_here(descriptor: &oci_spec::image::Descriptor) -> bool {
    let attestation = descriptor
        .annotations()
        .iter()
        .flatten()
        .any(|(key, _)| key == "vnd.docker.reference.type");
    let here = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    !attestation
        && descriptor.platform().as_ref().is_none_or(|platform| {
            platform.architecture().to_string() == here && platform.os().to_string() == "linux"
        })
}
