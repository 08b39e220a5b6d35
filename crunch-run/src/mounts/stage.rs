//! Putting the planned mounts in place: directories, files and collections in the scratch directory.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::Client;
use arvados_client::keep::KeepClient;

use super::Progress;
use super::collections;
use super::error::MountError;
use super::layout::Layout;
use super::path::ContainerPath;
use super::plan::{Content, Plan};
use super::view::{Source, View};
use crate::cache::BlockCache;
use crate::engine::Bind;

/// Servers sign locators for two weeks, but may be told to do so for less.
const SIGNATURES_LAST: Duration = Duration::from_secs(3600);

/// Where the contents come from and go to.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// With the container's token: it decides which collections may be read.
    pub client: &'a Client,
    /// With the same token, which signed the locators.
    pub blocks: &'a BlockCache<KeepClient>,
    /// An empty directory that only this attempt uses.
    pub scratch: &'a Path,
    /// The tree that read-only collections are bound from, by portable data hash; without it they are fetched.
    pub tree: Option<&'a Path>,
    pub progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// The mounts, in place.
#[derive(Debug)]
pub struct Staged {
    /// Outer mounts before those inside them.
    pub binds: Vec<Bind>,
    /// The file to be given as stdin; without one it is empty.
    pub stdin: Option<PathBuf>,
    /// A file in the output directory, to be emptied; without one the stream goes to the log only.
    pub stdout: Option<PathBuf>,
    /// May be the same file as `stdout`, so both are to be opened for appending.
    pub stderr: Option<PathBuf>,
    /// What the container sees at its output path.
    pub output_dir: PathBuf,
    pub(crate) output: ContainerPath,
    pub(crate) view: Arc<View>,
    /// To have the locators signed again.
    pub(crate) client: Client,
    /// When the view's collections were asked for; `None` if what they hold is not known.
    pub(super) known_since: Option<Instant>,
}

/// How much the view tells of its collections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contents {
    /// Everything, with locators that are still signed for a good while.
    Fresh,
    /// Everything, and the signatures may be too old.
    Aged,
    /// Only which they are.
    Unknown,
}

impl Staged {
    pub(crate) fn contents(&self) -> Contents {
        match self.known_since {
            None => Contents::Unknown,
            Some(since) if since.elapsed() < SIGNATURES_LAST => Contents::Fresh,
            Some(_) => Contents::Aged,
        }
    }

    /// Removes the secrets from this node; nothing that runs needs them any more, and no output has them.
    pub fn forget_secrets(&self) -> io::Result<()> {
        for bind in &self.binds {
            let target = ContainerPath::parse(&bind.target.to_string_lossy());
            let seen = target.ok().and_then(|target| self.view.at(&target));
            if seen.is_some_and(|seen| matches!(seen.source, Source::Secret)) {
                match std::fs::remove_file(&bind.host) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Puts everything in place, downloads included.
pub async fn stage(plan: Plan, sources: Sources<'_>) -> Result<Staged, MountError> {
    let trees = collections::fetch(sources.client, wanted(&plan)).await?;
    let scratch = sources.scratch.to_owned();
    let client = sources.client.clone();
    let tree = sources.tree.map(Path::to_owned);
    let layout =
        tokio::task::spawn_blocking(move || Layout::of(plan, trees, &scratch, tree, client));
    let (staged, downloads) = layout.await.map_err(|_| MountError::Interrupted)??;
    let shared = sources.blocks.shares_disk_with(sources.scratch);
    let progress = |progress: Progress| {
        if shared {
            sources
                .blocks
                .leave(progress.total.saturating_sub(progress.done));
        }
        (sources.progress)(progress);
    };
    let done = downloads.run(sources.blocks, &progress).await;
    sources.blocks.leave(0);
    done.map(|()| staged)
}

/// The collections needed, each with one of the mounts that need it.
fn wanted(plan: &Plan) -> BTreeMap<String, String> {
    let mounts = plan.items.iter().map(|i| (i.target.as_str(), &i.content));
    let stdin = plan.stdin.iter().map(|content| ("stdin", content));
    let mut wanted = BTreeMap::new();
    for (target, content) in mounts.chain(stdin) {
        if let Content::Collection(part) = content {
            let entry = wanted.entry(part.collection.clone());
            entry.or_insert_with(|| target.to_owned());
        }
    }
    wanted
}
