//! Finds an image in a docker-archive or an OCI archive: its configuration and its layers.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, SeekFrom};
use std::path::{Component, Path};

use oci_spec::image::{ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{Archive, ImageConfig, ImageError, digest_hex};

/// Manifests and configurations are small; a larger one is not one.
const MOST_JSON: u64 = 16 << 20;
/// An index may point to indexes, but not for ever.
const MOST_NESTING: usize = 5;

/// Where each file of the archive is.
pub struct Index {
    label: String,
    files: BTreeMap<String, Place>,
    links: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    offset: u64,
    size: u64,
}

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
    /// Reads only the headers of the archive.
    pub fn read<A: Archive>(archive: &mut A, label: &str) -> Result<Self, ImageError> {
        let read_failed = |source| ImageError::Read {
            label: label.to_owned(),
            source,
        };
        let mut magic = [0u8; 6];
        archive.seek(SeekFrom::Start(0)).map_err(read_failed)?;
        let got = read_full(&mut *archive, &mut magic).map_err(read_failed)?;
        let not_an_image = |reason: &str| ImageError::NotAnImage {
            label: label.to_owned(),
            reason: reason.to_owned(),
        };
        match &magic[..got] {
            [] => return Err(not_an_image("it is empty")),
            [0x1f, 0x8b, ..]
            | [0x28, 0xb5, 0x2f, 0xfd, ..]
            | [0xfd, b'7', b'z', ..]
            | [b'B', b'Z', b'h', ..] => {
                return Err(not_an_image(
                    "it is compressed as a whole; uncompress it first",
                ));
            }
            _ => {}
        }
        archive.seek(SeekFrom::Start(0)).map_err(read_failed)?;

        let mut index = Self {
            label: label.to_owned(),
            files: BTreeMap::new(),
            links: BTreeMap::new(),
        };
        let mut tar = tar::Archive::new(archive);
        for entry in tar
            .entries_with_seek()
            .map_err(|error| not_an_image(&error.to_string()))?
        {
            let entry = entry.map_err(|error| {
                if index.files.is_empty() {
                    not_an_image(&error.to_string())
                } else {
                    index.damaged(format!("{error}"))
                }
            })?;
            let Some(name) = normal(&entry.path_bytes()) else {
                continue;
            };
            let kind = entry.header().entry_type();
            if kind.is_symlink() || kind.is_hard_link() {
                // Old docker-archives point repeated layers at the first one.
                if let Some(target) = entry.link_name_bytes() {
                    let base = Path::new(&name).parent().unwrap_or(Path::new(""));
                    let target = String::from_utf8_lossy(&target).into_owned();
                    let target = if kind.is_symlink() {
                        resolve(base, &target)
                    } else {
                        normal(target.as_bytes())
                    };
                    if let Some(target) = target {
                        index.links.insert(name, target);
                    }
                }
            } else if kind.is_file() {
                let place = Place {
                    offset: entry.raw_file_position(),
                    size: entry.size(),
                };
                index.files.insert(name, place);
            }
        }
        Ok(index)
    }

    pub fn label(&self) -> &str {
        &self.label
    }

    pub fn select<A: Archive>(
        &self,
        archive: &mut A,
        want: Option<&str>,
    ) -> Result<Selected, ImageError> {
        let candidates = self.candidates(archive)?;
        let present = || {
            candidates
                .iter()
                .map(|c| match c.names.first() {
                    Some(name) => format!("{} ({name})", c.ids[0]),
                    None => c.ids[0].clone(),
                })
                .collect::<Vec<_>>()
                .join(", ")
        };
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

    fn has(&self, name: &str) -> bool {
        self.place(name).is_ok()
    }

    fn place(&self, name: &str) -> Result<Place, ImageError> {
        let missing = || self.damaged(format!("{name} is missing from it"));
        let mut name = normal(name.as_bytes()).ok_or_else(missing)?;
        for _ in 0..=MOST_NESTING {
            if let Some(place) = self.files.get(&name) {
                return Ok(*place);
            }
            match self.links.get(&name) {
                Some(target) => name.clone_from(target),
                None => break,
            }
        }
        Err(missing())
    }

    fn json<T: DeserializeOwned, A: Archive>(
        &self,
        archive: &mut A,
        name: &str,
    ) -> Result<T, ImageError> {
        serde_json::from_slice(&self.bytes(archive, name)?)
            .map_err(|error| self.damaged(format!("{name} cannot be read: {error}")))
    }

    fn checked<A: Archive>(
        &self,
        archive: &mut A,
        name: &str,
        hex: &str,
    ) -> Result<Vec<u8>, ImageError> {
        let bytes = self.bytes(archive, name)?;
        let found = digest(&bytes);
        if found.strip_prefix("sha256:") == Some(hex) {
            Ok(bytes)
        } else {
            Err(self.damaged(format!(
                "{name} has other content than its name says ({found})"
            )))
        }
    }

    fn bytes<A: Archive>(&self, archive: &mut A, name: &str) -> Result<Vec<u8>, ImageError> {
        let place = self.place(name)?;
        if place.size > MOST_JSON {
            return Err(self.damaged(format!("{name} is too large ({} bytes)", place.size)));
        }
        let mut bytes = Vec::with_capacity(place.size as usize);
        archive
            .seek(SeekFrom::Start(place.offset))
            .and_then(|_| archive.take(place.size).read_to_end(&mut bytes))
            .map_err(|source| ImageError::Read {
                label: self.label.clone(),
                source,
            })?;
        if (bytes.len() as u64) < place.size {
            return Err(self.damaged(format!("it ends within {name}")));
        }
        Ok(bytes)
    }

    fn damaged(&self, reason: String) -> ImageError {
        ImageError::Damaged {
            label: self.label.clone(),
            reason,
        }
    }
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

fn digest(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    format!("sha256:{}", data_encoding::HEXLOWER.encode(&hash))
}

/// `./a//b` as `a/b`; `None` for a name that leaves the archive.
fn normal(name: &[u8]) -> Option<String> {
    resolve(Path::new(""), std::str::from_utf8(name).ok()?)
}

fn resolve(base: &Path, name: &str) -> Option<String> {
    let mut parts: Vec<&str> = base.iter().filter_map(|p| p.to_str()).collect();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => {
                parts.pop()?;
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => parts.clear(),
        }
    }
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// Reads until the buffer is full or the end.
fn read_full(mut from: impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut got = 0;
    while got < buffer.len() {
        match from.read(&mut buffer[got..]) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_relative_to_the_archive() {
        let cases: &[(&str, &str, Option<&str>)] = &[
            ("", "./a//b/", Some("a/b")),
            ("x", "../y/layer.tar", Some("y/layer.tar")),
            ("", "../etc/passwd", None),
            ("a", "/b", Some("b")),
            ("", "./", None),
        ];
        for (base, name, expected) in cases {
            assert_eq!(
                resolve(Path::new(base), name).as_deref(),
                *expected,
                "{base} {name}"
            );
        }
    }
}
