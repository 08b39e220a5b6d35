//! Captures the container's output as a collection.
//!
//! [`scan`] walks the mounts and decides on every path. [`upload`] then stores files of this node
//! and adds files of mounted collections by reference. Links are followed as the container would
//! follow them, never as this node would.

mod collections;
mod error;
mod glob;
mod host_fs;
mod pattern;
mod remote;
mod resolve;
mod scan;
mod sparse;
mod upload;
mod warnings;

use arvados_client::keep::BlockStore;
use arvados_client::manifest::Manifest;
use arvados_client::records::Container;

pub use error::OutputError;
pub use glob::Globs;

use self::collections::MountedCollections;
use crate::inputs::{Progress, Staged};

/// Stores the output of a container that ended. Nothing may change the output meanwhile.
pub async fn capture<S: BlockStore + Clone + 'static>(
    staged: &Staged,
    container: &Container,
    keep: &S,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Manifest, OutputError> {
    let say = |warning: &str| tracing::info!(container = %container.uuid, "{warning}");
    capture_with_warnings(staged, container, keep, progress, &say).await
}

/// Like [`capture`]; `say` gets one sentence for each thing that was left out.
pub async fn capture_with_warnings<S: BlockStore + Clone + 'static>(
    staged: &Staged,
    container: &Container,
    keep: &S,
    progress: &(dyn Fn(Progress) + Send + Sync),
    say: &(dyn Fn(&str) + Send + Sync),
) -> Result<Manifest, OutputError> {
    let (view, output) = (staged.view.clone(), staged.output.clone());
    let (globs, misunderstood) = glob::Globs::new(&container.output_glob);
    let trees = MountedCollections::for_output(staged, &globs).await;
    let scan = tokio::task::spawn_blocking(move || {
        let fs = resolve::ContainerFs { view, trees };
        let plan = scan::scan(&fs, &output, &globs)?;
        sparse::check(&plan.files)?;
        Ok::<_, OutputError>(plan)
    });
    let plan = scan.await.map_err(|_| OutputError::Interrupted)??;
    for warning in misunderstood.iter().chain(plan.warnings.iter()) {
        say(warning);
    }
    let manifest = upload::upload(plan, keep.clone(), progress).await?;
    remote::copy_remote_blocks(manifest, keep).await
}
