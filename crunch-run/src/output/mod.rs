//! The container's output: what it sees at its output path, as a collection.
//!
//! First the view is walked and every path decided ([`scan`]), then files of this node are uploaded
//! and files of mounted collections taken over by reference ([`upload`]). Links are followed as the
//! container would follow them, never as this machine would: a container chooses what its links say.

mod error;
mod glob;
mod host;
mod pattern;
mod remarks;
mod remote;
mod scan;
mod trees;
mod upload;
mod walk;

use arvados_client::keep::BlockStore;
use arvados_client::manifest::Manifest;
use arvados_client::records::Container;

pub use error::OutputError;
pub use glob::Globs;

use self::trees::Trees;
use crate::mounts::{Progress, Staged};

/// Stores the output of a container that has ended. Nothing may change it meanwhile.
pub async fn capture<S: BlockStore + Clone + 'static>(
    staged: &Staged,
    container: &Container,
    keep: &S,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Manifest, OutputError> {
    let say = |remark: &str| tracing::info!(container = %container.uuid, "{remark}");
    capture_saying(staged, container, keep, progress, &say).await
}

/// The same, with a place for what the user should know: what was left out and why, in sentences.
pub async fn capture_saying<S: BlockStore + Clone + 'static>(
    staged: &Staged,
    container: &Container,
    keep: &S,
    progress: &(dyn Fn(Progress) + Send + Sync),
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Manifest, OutputError> {
    let (view, output) = (staged.view.clone(), staged.output.clone());
    let (globs, misunderstood) = glob::Globs::new(&container.output_glob);
    let trees = Trees::of(staged, &globs).await;
    let scan = tokio::task::spawn_blocking(move || {
        let sight = walk::Sight { view, trees };
        scan::scan(&sight, &output, &globs)
    });
    let found = scan.await.map_err(|_| OutputError::Interrupted)??;
    for remark in misunderstood.iter().chain(found.remarks.iter()) {
        say(remark);
    }
    let manifest = upload::upload(found, keep.clone(), progress).await?;
    remote::fetch_remote(manifest, keep).await
}
