//! The mounts of a container that has ended, as a note on the disk: what its output is captured from, without what the
//! collections hold, which is asked for again.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arvados_client::Client;
use arvados_client::ids::Pdh;
use serde::{Deserialize, Serialize};

use super::path::{ContainerPath, PathProblem};
use super::stage::Staged;
use super::view::{Seen, Source, View};

/// Paths of this node are relative to the note's own directory where they are below it: that may be moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotedMounts {
    output_path: String,
    output_dir: PathBuf,
    mounts: Vec<NotedMount>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NotedMount {
    target: String,
    #[serde(flatten)]
    source: NotedSource,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    exclude_from_output: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum NotedSource {
    Host {
        path: PathBuf,
    },
    Collection {
        portable_data_hash: Pdh,
        path: String,
    },
    Secret,
}

impl NotedMounts {
    /// For a note that lies in `dir`.
    pub fn of(staged: &Staged, dir: &Path) -> Self {
        let noted = |path: &Path| path.strip_prefix(dir).unwrap_or(path).to_owned();
        let mounts = staged.view.mounts.iter().map(|(target, seen)| NotedMount {
            target: target.to_string(),
            source: match &seen.source {
                Source::Host(path) => NotedSource::Host { path: noted(path) },
                Source::Keep {
                    collection, path, ..
                } => NotedSource::Collection {
                    portable_data_hash: collection.clone(),
                    path: path.clone(),
                },
                Source::Secret => NotedSource::Secret,
            },
            exclude_from_output: seen.excluded,
        });
        Self {
            output_path: staged.output.to_string(),
            output_dir: noted(&staged.output_dir),
            mounts: mounts.collect(),
        }
    }

    /// What can be captured again, with a client that may read the collections.
    pub fn restore(&self, dir: &Path, client: Client) -> Result<Staged, PathProblem> {
        let mut view = View::default();
        for mount in &self.mounts {
            let source = match &mount.source {
                NotedSource::Host { path } => Source::Host(dir.join(path)),
                NotedSource::Collection {
                    portable_data_hash,
                    path,
                } => Source::Keep {
                    collection: portable_data_hash.clone(),
                    tree: Arc::default(),
                    path: path.clone(),
                },
                NotedSource::Secret => Source::Secret,
            };
            let seen = Seen {
                source,
                excluded: mount.exclude_from_output,
            };
            view.mounts
                .insert(ContainerPath::parse_target(&mount.target)?, seen);
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
            known_since: None,
        })
    }
}
