//! The node's image store: unpacked layers by the digest of their content, images by the archive
//! that they are from.
//!
//! `layers/HEX/` is complete or absent: it is filled as `HEX.partial` and renamed. `HEX.lock` is
//! held exclusively while a layer is filled, shared while it is used. `images/KEY.json` lists the
//! layers of an archive's image, so that a cached image is used without reading the archive again.
//! It is written after the archive was compared with the digests of all layers: who may read one
//! archive gets nothing of another.

use std::fs;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use host_state::file::remove_tree;
use host_state::{private_dir, trash};
use serde::{Deserialize, Serialize};

use image_archive::{Archive, ImageConfig, Index, LayerRange, digest_hex};

use super::refused::RefusedImage;
use super::{Image, ImageError, ImageSource, layer, lock, records};

#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: PathBuf,
}

/// Content of `images/KEY.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    id: String,
    config: ImageConfig,
    /// Names of their directories, lowest first.
    layers: Vec<String>,
}

/// The directories of the cache, those of other modules included.
const PARTS: [&str; 6] = ["blocks", "images", "layers", "refused", "servers", "work"];

impl ImageStore {
    /// Creates the cache `dir` if it is missing. It is refused if others may write to it or to what
    /// is in it: what is unpacked there is not verified again.
    pub fn open(dir: &Path) -> Result<Self, ImageError> {
        private_dir::create(dir).map_err(failed_at(dir))?;
        for name in PARTS {
            let path = dir.join(name);
            private_dir::create(&path).map_err(failed_at(&path))?;
        }
        let dir = dir.canonicalize().map_err(failed_at(dir))?;
        Ok(Self { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The image from the cache, or else from its archive, unless that was refused recently. The
    /// cache's own are given out for archives from which they were verified.
    pub fn prepare(&self, source: ImageSource) -> Result<Image, ImageError> {
        let key = source.key();
        let record = self.image_file(&key, "json");
        if let Some(image) = self.lookup(&record)? {
            return Ok(image);
        }
        // Images share a limited number of locks.
        let lock_file = self.image_file(&key[..3], "lock");
        let _filling = lock::exclusive(&lock_file).map_err(failed_at(&lock_file))?;
        // Another process may have unpacked the image during the wait.
        if let Some(image) = self.lookup(&record)? {
            return Ok(image);
        }
        let refused =
            RefusedImage::of(&self.dir, &key, &source.label).map_err(failed_at(&self.dir))?;
        refused.check()?;
        let want = source.id.clone();
        let (mut archive, label) = source.open()?;
        let image = self
            .load(&mut archive, &label, want.as_deref())
            .inspect_err(|error| refused.remember(error))?;
        let entry = Entry {
            id: image.id.clone(),
            config: image.config.clone(),
            layers: image.layers.iter().filter_map(|dir| name_of(dir)).collect(),
        };
        records::write(&record, &entry, Duration::MAX).map_err(failed_at(&record))?;
        Ok(image)
    }

    /// The image of a record, if all of it is in the cache.
    fn lookup(&self, record: &Path) -> Result<Option<Image>, ImageError> {
        // A record of another user counts as missing, too.
        let text = private_dir::read(record).unwrap_or_default();
        // An unreadable record counts as missing: the archive has the same information.
        let Some(entry) = text.and_then(|text| serde_json::from_slice::<Entry>(&text).ok()) else {
            return Ok(None);
        };
        let mut layers = Vec::with_capacity(entry.layers.len());
        for hex in &entry.layers {
            if let Ok(hex) = digest_hex(hex) {
                layers.extend(self.lease(hex)?);
            }
        }
        let has_all = layers.len() == entry.layers.len();
        Ok(has_all.then(|| Image::of_layers(entry.id, entry.config, layers)))
    }

    /// Verifies the image `want` (or the only one) of an archive, and unpacks the layers that the
    /// cache does not have.
    pub fn load<A: Archive>(
        &self,
        archive: &mut A,
        label: &str,
        want: Option<&str>,
    ) -> Result<Image, ImageError> {
        let index = Index::read(&mut *archive, label)?;
        let selected = index.select(&mut *archive, want)?;
        let mut layers = Vec::with_capacity(selected.layers.len());
        for layer in &selected.layers {
            layers.push(self.fill(&mut *archive, label, layer)?);
        }
        Ok(Image::of_layers(selected.id, selected.config, layers))
    }

    /// The layer, unpacked from the archive or compared with it: that somebody knows a digest does
    /// not mean that he may read the layer.
    fn fill<A: Archive>(
        &self,
        archive: &mut A,
        label: &str,
        layer: &LayerRange,
    ) -> Result<(PathBuf, File), ImageError> {
        let hex = digest_hex(&layer.diff_id)?;
        let is_new = !self.layer_dir(hex).is_dir() && self.unpack(archive, label, layer, hex)?;
        let leased = self.lease(hex)?.ok_or_else(|| ImageError::Cache {
            path: self.dir.clone(),
            source: io::Error::other("a layer was removed before it could be locked"),
        })?;
        if !is_new {
            layer.open(archive, label)?.finish()?;
        }
        Ok(leased)
    }

    /// Unpacks the layer; false if another process has done that meanwhile.
    fn unpack<A: Archive>(
        &self,
        archive: &mut A,
        label: &str,
        layer: &LayerRange,
        hex: &str,
    ) -> Result<bool, ImageError> {
        let done = self.layer_dir(hex);
        let lock_file = self.layer_file(hex, "lock");
        let _filling = lock::exclusive(&lock_file).map_err(failed_at(&lock_file))?;
        if done.is_dir() {
            return Ok(false);
        }
        let partial = self.layer_file(hex, "partial");
        // Left by a process that died.
        trash::discard(&partial).map_err(failed_at(&partial))?;
        let filled = layer::unpack(archive, label, layer, &partial).and_then(|()| {
            fail_points::fail_point("run.image-unpacked");
            sync(&partial).map_err(failed_at(&partial))?;
            fs::rename(&partial, &done).map_err(failed_at(&done))
        });
        if filled.is_err() {
            // The first error matters; the next process removes what stays.
            let _ = remove_tree(&partial);
        }
        filled.map(|()| true)
    }

    /// Locks a layer, so that it is not evicted. `None` if it is missing.
    fn lease(&self, hex: &str) -> Result<Option<(PathBuf, File)>, ImageError> {
        let dir = self.layer_dir(hex);
        // Without this check a missing layer would leave a useless lock file.
        if !dir.is_dir() {
            return Ok(None);
        }
        let lock_file = self.layer_file(hex, "lock");
        let lease = lock::shared(&lock_file).map_err(failed_at(&lock_file))?;
        // The time of last use, for eviction.
        let _ = lease.set_modified(std::time::SystemTime::now());
        Ok(dir.is_dir().then_some((dir, lease)))
    }

    fn layer_dir(&self, hex: &str) -> PathBuf {
        self.dir.join("layers").join(hex)
    }

    fn layer_file(&self, hex: &str, ending: &str) -> PathBuf {
        self.dir.join("layers").join(format!("{hex}.{ending}"))
    }

    fn image_file(&self, key: &str, ending: &str) -> PathBuf {
        self.dir.join("images").join(format!("{key}.{ending}"))
    }
}

fn name_of(dir: &Path) -> Option<String> {
    Some(dir.file_name()?.to_str()?.to_owned())
}

fn failed_at(path: &Path) -> impl FnOnce(io::Error) -> ImageError + use<> {
    let path = path.to_owned();
    move |source| ImageError::Cache { path, source }
}

/// A power cut after the rename must not leave a complete-looking entry with empty files.
fn sync(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// As in a cache that others could once write to.
    #[test]
    fn a_part_of_the_cache_that_is_not_private_is_refused() {
        for part in PARTS {
            for how in ["0777", "link", "file"] {
                let dir = tempfile::tempdir().unwrap();
                let (cache, precious) = (dir.path().join("cache"), dir.path().join("precious"));
                ImageStore::open(&cache).unwrap();
                ImageStore::open(&cache).unwrap();
                let path = cache.join(part);
                fs::remove_dir(&path).unwrap();
                fs::create_dir(&precious).unwrap();
                match how {
                    "0777" => {
                        fs::create_dir(&path).unwrap();
                        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
                    }
                    "link" => symlink(&precious, &path).unwrap(),
                    _ => fs::write(&path, "").unwrap(),
                }
                let error = ImageStore::open(&cache).unwrap_err().to_string();
                let words = format!("{} is not used", path.display());
                assert!(error.contains(&words), "{part} {how}: {error}");
            }
        }
    }
}
