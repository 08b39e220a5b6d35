//! Stages the planned mounts on this node: directories, files and collections in the scratch
//! directory.

use std::collections::BTreeMap;
use std::path::Path;

use arvados_client::Client;
use arvados_client::keep::KeepClient;

use super::Progress;
use super::collections;
use super::error::MountError;
use super::layout::Layout;
use super::plan::{Content, Plan};
use super::staged::Staged;
use node_cache::BlockCache;

/// Sources of mount contents, and their destination.
#[derive(Clone, Copy)]
pub struct Sources<'a> {
    /// API client with the container's token, which decides which collections are readable.
    pub client: &'a Client,
    /// Blocks, with the same token that signed the locators.
    pub blocks: &'a BlockCache<KeepClient>,
    /// Empty directory of this attempt.
    pub scratch: &'a Path,
    /// Tree from which read-only collections are bound by portable data hash. Without it they are
    /// downloaded.
    pub tree: Option<&'a Path>,
    pub progress: &'a (dyn Fn(Progress) + Send + Sync),
}

/// Stages all mounts, downloads included.
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
                .reserve(progress.total.saturating_sub(progress.done));
        }
        (sources.progress)(progress);
    };
    let done = downloads.run(sources.blocks, &progress).await;
    sources.blocks.reserve(0);
    done.map(|()| staged)
}

/// The required collections, each with one of its mounts.
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
