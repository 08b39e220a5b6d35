//! The mounts of an ended container as part of undelivered.json: what is needed to capture its
//! output. Contents of collections are fetched again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arvados_client::Client;
use arvados_client::ids::Pdh;
use serde::{Deserialize, Serialize};

use super::mount_table::{MountEntry, MountSource, MountTable};
use super::path::{ContainerPath, PathProblem};
use super::staged::Staged;

/// Paths below the job directory are relative to it, because the directory may be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedMounts {
    output_path: String,
    output_dir: PathBuf,
    mounts: Vec<PersistedMount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct PersistedMount {
    target: String,
    #[serde(flatten)]
    source: PersistedSource,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    exclude_from_output: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum PersistedSource {
    Host {
        path: PathBuf,
    },
    Collection {
        portable_data_hash: Pdh,
        path: String,
    },
    Secret,
}

impl PersistedMounts {
    /// The form to be stored in `dir`.
    pub fn of(staged: &Staged, dir: &Path) -> Self {
        let relative = |path: &Path| path.strip_prefix(dir).unwrap_or(path).to_owned();
        let mounts = staged
            .view
            .mounts
            .iter()
            .map(|(target, entry)| PersistedMount {
                target: target.to_string(),
                source: match &entry.source {
                    MountSource::Host(path) => PersistedSource::Host {
                        path: relative(path),
                    },
                    MountSource::Keep {
                        collection, path, ..
                    } => PersistedSource::Collection {
                        portable_data_hash: collection.clone(),
                        path: path.clone(),
                    },
                    MountSource::Secret => PersistedSource::Secret,
                },
                exclude_from_output: entry.excluded,
            });
        Self {
            output_path: staged.output.to_string(),
            output_dir: relative(&staged.output_dir),
            mounts: mounts.collect(),
        }
    }

    /// Restores the mounts. `client` must be able to read the collections.
    pub fn restore(&self, dir: &Path, client: Client) -> Result<Staged, PathProblem> {
        let mut view = MountTable::default();
        for mount in &self.mounts {
            let source = match &mount.source {
                PersistedSource::Host { path } => MountSource::Host(dir.join(path)),
                PersistedSource::Collection {
                    portable_data_hash,
                    path,
                } => MountSource::Keep {
                    collection: portable_data_hash.clone(),
                    tree: Arc::default(),
                    path: path.clone(),
                },
                PersistedSource::Secret => MountSource::Secret,
            };
            let entry = MountEntry {
                source,
                excluded: mount.exclude_from_output,
            };
            view.mounts
                .insert(ContainerPath::parse_target(&mount.target)?, entry);
        }
        Ok(Staged {
            binds: Vec::new(),
            stdin: None,
            stdout: None,
            stderr: None,
            output_dir: dir.join(&self.output_dir),
            output: ContainerPath::parse_target(&self.output_path)?,
            view: Arc::new(view),
            client,
            fetched_at: None,
        })
    }
}
