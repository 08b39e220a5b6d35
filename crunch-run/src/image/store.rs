//! The node's image cache: unpacked layers by the digest of their content, images by their id.
//!
//! `layers/HEX/` is complete or absent: it is filled as `HEX.partial` and renamed. Whoever fills an entry holds
//! `HEX.lock` exclusively; whoever uses it holds it shared. `images/HEX.json` says which layers an
//! image has, so that a known image needs no look at its archive.

use std::fs;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::archive::{Index, Selected};
use super::{Archive, Image, ImageConfig, ImageError, ImageSource, digest_hex, layer, lock};

#[derive(Debug, Clone)]
pub struct ImageStore {
    dir: PathBuf,
}

/// What `images/HEX.json` holds.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    config: ImageConfig,
    /// Lowest first.
    diff_ids: Vec<String>,
}

impl ImageStore {
    /// `dir` is made if it is missing.
    pub fn open(dir: &Path) -> Result<Self, ImageError> {
        for name in ["layers", "images"] {
            let path = dir.join(name);
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&path)
                .map_err(failed_at(&path))?;
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
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed_at(&path)(error)),
        };
        // An unreadable entry is as good as none: the archive says it again.
        match serde_json::from_slice::<Entry>(&text) {
            Ok(entry) if entry.diff_ids.iter().all(|id| digest_hex(id).is_ok()) => {
                self.lease(hex, entry)
            }
            _ => Ok(None),
        }
    }

    /// The image from the cache, or else from its archive.
    pub fn prepare(&self, source: ImageSource) -> Result<Image, ImageError> {
        let Some(id) = &source.id else {
            let mut archive = open(source)?;
            return self.load(&mut archive.0, &archive.1, None);
        };
        if let Some(image) = self.lookup(id)? {
            return Ok(image);
        }
        // Whoever comes second finds the image done.
        let hex = digest_hex(id)?.to_owned();
        let lock_file = self.image_file(&hex, "lock");
        let _filling = lock::exclusive(&lock_file).map_err(failed_at(&lock_file))?;
        if let Some(image) = self.lookup(&hex)? {
            return Ok(image);
        }
        let mut archive = open(source)?;
        self.load(&mut archive.0, &archive.1, Some(&hex))
    }

    /// Unpacks what is missing of the image `want` (or the only one) of an archive.
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
        self.record(&selected)?;
        let entry = Entry {
            config: selected.config,
            diff_ids: selected.layers.into_iter().map(|l| l.diff_id).collect(),
        };
        let hex = digest_hex(&selected.id)?;
        self.lease(hex, entry)?.ok_or_else(|| ImageError::Cache {
            path: self.dir.clone(),
            source: io::Error::other("a layer vanished while it was being taken into use"),
        })
    }

    fn fill<A: Archive>(
        &self,
        archive: &mut A,
        index: &Index,
        layer: &super::archive::LayerFile,
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
        // Left by a holder that died.
        remove_all(&partial).map_err(failed_at(&partial))?;
        let filled = layer::unpack(archive, index.label(), layer, &partial).and_then(|()| {
            fail_points::fail_point("run.image-unpacked");
            sync(&partial).map_err(failed_at(&partial))?;
            fs::rename(&partial, &done).map_err(failed_at(&done))
        });
        if filled.is_err() {
            // The reason matters more than a failure to tidy up, which the next holder repeats.
            let _ = remove_all(&partial);
        }
        filled
    }

    fn record(&self, selected: &Selected) -> Result<(), ImageError> {
        let entry = Entry {
            config: selected.config.clone(),
            diff_ids: selected.layers.iter().map(|l| l.diff_id.clone()).collect(),
        };
        let text = serde_json::to_vec(&entry).unwrap_or_default();
        // Under every id that people may know the image by.
        for id in &selected.aliases {
            let hex = digest_hex(id)?;
            let path = self.image_file(hex, "json");
            let partial = self.image_file(hex, &format!("partial-{}", std::process::id()));
            let write = || -> io::Result<()> {
                let mut file = fs::OpenOptions::new()
                    .create(true)
                    .truncate(true)
                    .write(true)
                    .mode(0o600)
                    .open(&partial)?;
                file.write_all(&text)?;
                file.sync_all()?;
                fs::rename(&partial, &path)
            };
            if let Err(error) = write() {
                let _ = fs::remove_file(&partial);
                return Err(failed_at(&path)(error));
            }
        }
        Ok(())
    }

    /// Takes every layer into use, so that nothing evicts it.
    fn lease(&self, hex: &str, entry: Entry) -> Result<Option<Image>, ImageError> {
        let mut leases = Vec::with_capacity(entry.diff_ids.len());
        let mut layers = Vec::with_capacity(entry.diff_ids.len());
        for diff_id in &entry.diff_ids {
            let layer_hex = digest_hex(diff_id)?;
            let dir = self.layer_dir(layer_hex);
            // Without this look a missing layer would leave a useless lock file.
            if !dir.is_dir() {
                return Ok(None);
            }
            let lock_file = self.layer_file(layer_hex, "lock");
            let lease = lock::shared(&lock_file).map_err(failed_at(&lock_file))?;
            // What was used last is evicted last.
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

fn open(source: ImageSource) -> Result<(Box<dyn Archive>, String), ImageError> {
    let label = source.label;
    let archive = (source.open)().map_err(|source| ImageError::Read {
        label: label.clone(),
        source,
    })?;
    Ok((archive, label))
}

fn failed_at(path: &Path) -> impl FnOnce(io::Error) -> ImageError + use<> {
    let path = path.to_owned();
    move |source| ImageError::Cache { path, source }
}

fn remove_all(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// A power cut after the rename must not leave a complete-looking entry with empty files.
fn sync(dir: &Path) -> io::Result<()> {
    Ok(rustix::fs::syncfs(File::open(dir)?)?)
}
