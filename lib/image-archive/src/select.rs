//! Selects one image of an archive by its id, with its configuration and the positions of its
//! layers.

use std::io::{Read, SeekFrom, Take};

use crate::files::ArchiveFiles;
use crate::layer::LayerStream;
use crate::manifest::{architecture, candidates, list};
use crate::{Archive, ArchiveError, ImageConfig, Index, digest_hex};

/// The requested image.
pub struct Selected {
    /// The requested id, or that of the configuration.
    pub id: String,
    pub config: ImageConfig,
    /// The whole configuration, byte for byte.
    pub config_file: Vec<u8>,
    /// Lowest first.
    pub layers: Vec<LayerRange>,
}

/// Position of a layer in the archive.
pub struct LayerRange {
    /// `sha256:…` of the uncompressed layer.
    pub diff_id: String,
    pub offset: u64,
    pub size: u64,
}

impl LayerRange {
    /// The layer's entries. `finish` of the stream compares its digest.
    pub fn open<'a, A: Archive>(
        &'a self,
        archive: &'a mut A,
        label: &'a str,
    ) -> Result<LayerStream<'a>, ArchiveError> {
        LayerStream::open(self.bytes(archive, label)?, label, &self.diff_id)
    }

    /// The layer as it is in the archive.
    pub(crate) fn bytes<'a, A: Archive>(
        &self,
        archive: &'a mut A,
        label: &str,
    ) -> Result<Take<&'a mut A>, ArchiveError> {
        let sought = archive.seek(SeekFrom::Start(self.offset));
        sought.map_err(|source| ArchiveError::read(label, source))?;
        Ok(archive.take(self.size))
    }
}

impl Index {
    /// The image with id `want`, or the only image of the archive.
    pub fn select<A: Archive>(
        &self,
        archive: &mut A,
        want: Option<&str>,
    ) -> Result<Selected, ArchiveError> {
        let files = ArchiveFiles::new(self, archive);
        let candidates = candidates(&files, architecture())?;
        let (selected, id) = match (want, candidates.as_slice()) {
            (Some(want), all) => {
                let id = format!("sha256:{}", digest_hex(want)?);
                let selected = all.iter().find(|c| c.ids.contains(&id));
                let selected = selected.ok_or_else(|| ArchiveError::NotInArchive {
                    label: self.label().to_owned(),
                    wanted: id.clone(),
                    present: list(all),
                })?;
                (selected, id)
            }
            (None, [only]) => (only, only.ids[0].clone()),
            (None, all) => {
                return Err(ArchiveError::Ambiguous {
                    label: self.label().to_owned(),
                    present: list(all),
                });
            }
        };
        let (config, layers) = selected.open(&files)?;
        let layers = layers
            .into_iter()
            .map(|layer| {
                let range = self.find(&layer.name)?;
                Ok(LayerRange {
                    diff_id: layer.diff_id,
                    offset: range.offset,
                    size: range.size,
                })
            })
            .collect::<Result<_, ArchiveError>>()?;
        let run = config.config().clone().unwrap_or_default();
        let text = |value: &Option<String>| value.clone().filter(|v| !v.is_empty());
        Ok(Selected {
            id,
            config: ImageConfig {
                env: run.env().clone().unwrap_or_default(),
                entrypoint: run.entrypoint().clone().unwrap_or_default(),
                cmd: run.cmd().clone().unwrap_or_default(),
                working_dir: text(run.working_dir()),
                user: text(run.user()),
            },
            config_file: selected.config.clone(),
            layers,
        })
    }
}
