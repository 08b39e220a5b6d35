//! The mounts of a container that are in place on this node: what is bound where, and which
//! collections they show.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::Client;
use host_state::file::ignore_missing;

use super::mount_table::{MountSource, MountTable};
use super::path::ContainerPath;
use container_engine::Bind;

/// Age up to which block signatures count as valid. Servers sign for two weeks by default, but can
/// be configured for less.
const MAX_SIGNATURE_AGE: Duration = Duration::from_secs(3600);

/// The staged mounts.
#[derive(Debug)]
pub struct Staged {
    /// Outer mounts before those inside them.
    pub binds: Vec<Bind>,
    /// File that becomes stdin; without one stdin is empty.
    pub stdin: Option<PathBuf>,
    /// File in the output directory for stdout; without one stdout goes to the log.
    pub stdout: Option<PathBuf>,
    /// The same for stderr. It may be the same file, so both are opened for appending.
    pub stderr: Option<PathBuf>,
    /// Directory that the container sees at its output path.
    pub output_dir: PathBuf,
    pub(crate) output: ContainerPath,
    pub(crate) view: Arc<MountTable>,
    /// API client, to renew block signatures.
    pub(crate) client: Client,
    /// Time at which the collections were fetched; `None` if their contents are unknown.
    pub(super) fetched_at: Option<Instant>,
}

/// How current the file trees of mounted collections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentAge {
    /// Complete, with signatures that are still valid.
    Fresh,
    /// Complete, but signatures may have expired.
    Stale,
    /// Only the hashes are known.
    Unknown,
}

impl Staged {
    pub(crate) fn contents(&self) -> ContentAge {
        match self.fetched_at {
            None => ContentAge::Unknown,
            Some(since) if since.elapsed() < MAX_SIGNATURE_AGE => ContentAge::Fresh,
            Some(_) => ContentAge::Stale,
        }
    }

    /// Removes secret files from this node. The command has ended and no output includes them.
    pub fn remove_secrets(&self) -> io::Result<()> {
        for bind in &self.binds {
            let target = ContainerPath::parse(&bind.target.to_string_lossy());
            let entry = target.ok().and_then(|target| self.view.at(&target));
            if entry.is_some_and(|entry| matches!(entry.source, MountSource::Secret)) {
                ignore_missing(std::fs::remove_file(&bind.host))?;
            }
        }
        Ok(())
    }
}
