//! Captures the container's output as a collection.
//!
//! [`scan`] walks the mounts and decides on every path. [`upload`] then stores files of this node
//! and adds files of mounted collections by reference. Links are followed as the container would
//! follow them, never as this node would.

mod collections;
mod error;
mod glob;
mod host_fs;
mod left_out_report;
mod pattern;
mod remote;
mod resolve;
mod scan;
mod sparse;
mod upload;

use arvados_client::keep::BlockStore;
use arvados_client::manifest::Manifest;
use arvados_client::records::{Container, MountKind};

pub use error::OutputError;
pub use glob::Globs;
pub use left_out_report::{BadEntries, LeftOutReport};

use self::collections::MountedCollections;
use crate::inputs::{ContainerPath, Progress, Staged};

/// An output whose blocks are stored.
#[derive(Debug)]
pub struct Captured {
    pub manifest: Manifest,
    /// Entries that are not in it.
    pub left_out: LeftOutReport,
    /// Remarks about mounts and patterns, for the log.
    pub remarks: Vec<String>,
}

/// Stores the output of a container that ended. Nothing may change the output meanwhile.
pub async fn capture<S: BlockStore + Clone + 'static>(
    staged: &Staged,
    container: &Container,
    keep: &S,
    bad_entries: BadEntries,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Captured, OutputError> {
    let (view, output) = (staged.view.clone(), staged.output.clone());
    let (globs, mut remarks) = glob::Globs::new(&container.output_glob);
    let trees = MountedCollections::for_output(staged, &globs).await;
    let scratch = scratch_mounts(container, &output);
    let scan = tokio::task::spawn_blocking(move || {
        let fs = resolve::ContainerFs { view, trees };
        let mut plan = scan::scan(&fs, &output, &globs, &scratch, bad_entries)?;
        sparse::check(&mut plan, bad_entries)?;
        Ok::<_, OutputError>(plan)
    });
    let mut plan = scan.await.map_err(|_| OutputError::Interrupted)??;
    remarks.append(&mut plan.remarks);
    let mut left_out = std::mem::take(&mut plan.left_out);
    let (manifest, unreadable) = upload::upload(plan, keep.clone(), bad_entries, progress).await?;
    left_out.extend(unreadable);
    Ok(Captured {
        manifest: remote::copy_remote_blocks(manifest, keep).await?,
        left_out,
        remarks,
    })
}

/// The `tmp` mounts that are no part of the output.
fn scratch_mounts(container: &Container, output: &ContainerPath) -> Vec<ContainerPath> {
    let is_scratch = |kind: &MountKind| *kind == MountKind::Tmp;
    let mounts = container
        .mounts
        .iter()
        .filter(|(_, mount)| is_scratch(&mount.kind));
    let targets = mounts.filter_map(|(target, _)| ContainerPath::parse_target(target).ok());
    targets
        .filter(|target| target != output && !target.is_below(output))
        .collect()
}
