//! The node's image store: unpacked layers by the digest of their content, images by their id.
//!
//! `layers/HEX/` is complete or absent: it is filled as `HEX.partial` and renamed. `HEX.lock` is
//! held exclusively while a layer is filled, shared while it is used. `images/HEX.json` lists the
//! layers of an image, so that a cached image is used without its archive.

use std::fs;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use host_state::file::{Durability, create_private_dir, if_present, remove_tree, replace_by};
use host_state::{private_dir, trash};
use serde::{Deserialize, Serialize};

use image_archive::{Archive, ImageConfig, Index, LayerRange, digest_hex};

use super::refused::RefusedImage;
use super::{Image, ImageError, ImageSource, layer, lock};

#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: PathBuf,
}

/// Content of `images/HEX.json`.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    config: ImageConfig,
    /// Lowest first.
    diff_ids: Vec<String>,
}

impl ImageStore {
    /// Creates `dir` if it is missing. It is refused if others may write to it: what is unpacked
    /// in it is not verified again.
    pub fn open(dir: &Path) -> Result<Self, ImageError> {
        private_dir::create(dir).map_err(failed_at(dir))?;
        for name in ["layers", "images"] {
            let path = dir.join(name);
            create_private_dir(&path).map_err(failed_at(&path))?;
        }
        let dir = dir.canonicalize().map_err(failed_at(dir))?;
        Ok(Self { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The image, if all of it is in the cache. Reads one small file.
    pub fn lookup(&self, id: &str) -> Result<Option<Image>, ImageError> {
        let hex = digest_hex(id)?;
        let path = self.image_file(hex, "json");
        let Some(text) = if_present(fs::read(&path)).map_err(failed_at(&path))? else {
            return Ok(None);
        };
        // An unreadable entry counts as missing: the archive has the same information.
        match serde_json::from_slice::<Entry>(&text) {
            Ok(entry) if entry.diff_ids.iter().all(|id| digest_hex(id).is_ok()) => {
                self.lease(hex, entry)
            }
            _ => Ok(None),
        }
    }

    /// The image from the cache, or else from its archive, unless that was refused recently.
    pub fn prepare(&self, source: ImageSource) -> Result<Image, ImageError> {
        let Some(content) = &source.content else {
            return self.prepare_unchecked(source);
        };
        let refused =
            RefusedImage::of(&self.dir, content, &source.label).map_err(failed_at(&self.dir))?;
        if let Some(id) = &source.id
            && let Some(image) = self.lookup(id)?
        {
            return Ok(image);
        }
        refused.check()?;
        self.prepare_unchecked(source)
            .inspect_err(|error| refused.remember(error))
    }

    fn prepare_unchecked(&self, source: ImageSource) -> Result<Image, ImageError> {
        let Some(id) = &source.id else {
            let (mut archive, label) = source.open()?;
            return self.load(&mut archive, &label, None);
        };
        if let Some(image) = self.lookup(id)? {
            return Ok(image);
        }
        // Another process may have unpacked the image during the wait.
        let hex = digest_hex(id)?.to_owned();
        let lock_file = self.image_file(&hex, "lock");
        let _filling = lock::exclusive(&lock_file).map_err(failed_at(&lock_file))?;
        if let Some(image) = self.lookup(&hex)? {
            return Ok(image);
        }
        let (mut archive, label) = source.open()?;
        self.load(&mut archive, &label, Some(&hex))
    }

    /// Unpacks the missing layers of the image `want` (or of the only one) of an archive.
    pub fn load<A: Archive>(
        &self,
        archive: &mut A,
        label: &str,
        want: Option<&str>,
    ) -> Result<Image, ImageError> {
        let index = Index::read(&mut *archive, label)?;
        let selected = index.select(&mut *archive, want)?;
        for layer in &selected.layers {
            self.fill(&mut *archive, &index, layer)?;
        }
        let entry = Entry {
            config: selected.config,
            diff_ids: selected.layers.into_iter().map(|l| l.diff_id).collect(),
        };
        self.record(&selected.aliases, &entry)?;
        let hex = digest_hex(&selected.id)?;
        self.lease(hex, entry)?.ok_or_else(|| ImageError::Cache {
            path: self.dir.clone(),
            source: io::Error::other("a layer was removed before it could be locked"),
        })
    }

    fn fill<A: Archive>(
        &self,
        archive: &mut A,
        index: &Index,
        layer: &LayerRange,
    ) -> Result<(), ImageError> {
        let hex = digest_hex(&layer.diff_id)?;
        let done = self.layer_dir(hex);
        if done.is_dir() {
            return Ok(());
        }
        let lock_file = self.layer_file(hex, "lock");
        let _filling = lock::exclusive(&lock_file).map_err(failed_at(&lock_file))?;
        if done.is_dir() {
            return Ok(());
        }
        let partial = self.layer_file(hex, "partial");
        // Left by a process that died.
        trash::discard(&partial).map_err(failed_at(&partial))?;
        let filled = layer::unpack(archive, index.label(), layer, &partial).and_then(|()| {
            fail_points::fail_point("run.image-unpacked");
            sync(&partial).map_err(failed_at(&partial))?;
            fs::rename(&partial, &done).map_err(failed_at(&done))
        });
        if filled.is_err() {
            // The first error matters; the next process removes what stays.
            let _ = remove_tree(&partial);
        }
        filled
    }

    fn record(&self, ids: &[String], entry: &Entry) -> Result<(), ImageError> {
        let text = serde_json::to_vec(entry).unwrap_or_default();
        for id in ids {
            let hex = digest_hex(id)?;
            let path = self.image_file(hex, "json");
            let partial = self.image_file(hex, &format!("partial-{}", std::process::id()));
            replace_by(&partial, &path, &text, Durability::Power).map_err(failed_at(&path))?;
        }
        Ok(())
    }

    /// Locks every layer, so that none is evicted.
    fn lease(&self, hex: &str, entry: Entry) -> Result<Option<Image>, ImageError> {
        let mut leases = Vec::with_capacity(entry.diff_ids.len());
        let mut layers = Vec::with_capacity(entry.diff_ids.len());
        for diff_id in &entry.diff_ids {
            let layer_hex = digest_hex(diff_id)?;
            let dir = self.layer_dir(layer_hex);
            // Without this check a missing layer would leave a useless lock file.
            if !dir.is_dir() {
                return Ok(None);
            }
            let lock_file = self.layer_file(layer_hex, "lock");
            let lease = lock::shared(&lock_file).map_err(failed_at(&lock_file))?;
            // The time of last use, for eviction.
            let _ = lease.set_modified(std::time::SystemTime::now());
            leases.push(lease);
            if !dir.is_dir() {
                return Ok(None);
            }
            layers.push(dir);
        }
        Ok(Some(Image {
            id: format!("sha256:{hex}"),
            config: entry.config,
            layers,
            leases: Arc::new(leases),
        }))
    }

    fn layer_dir(&self, hex: &str) -> PathBuf {
        self.dir.join("layers").join(hex)
    }

    fn layer_file(&self, hex: &str, ending: &str) -> PathBuf {
        self.dir.join("layers").join(format!("{hex}.{ending}"))
    }

    fn image_file(&self, hex: &str, ending: &str) -> PathBuf {
        self.dir.join("images").join(format!("{hex}.{ending}"))
    }
}

fn failed_at(path: &Path) -> impl FnOnce(io::Error) -> ImageError + use<> {
    let path = path.to_owned();
    move |source| ImageError::Cache { path, source }
}

/// A power cut after the rename must not leave a complete-looking entry with empty files.
fn sync(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}
