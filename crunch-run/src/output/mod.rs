//! The container's output: what it sees at its output path, as a collection.
//!
//! First the view is walked and every path decided ([`scan`]), then files of this node are uploaded
//! and files of mounted collections taken over by reference ([`upload`]). Links are followed as the
//! container would follow them, never as this machine would: a container chooses what its links say.

mod error;
mod glob;
mod host;
mod remote;
mod scan;
mod upload;
mod walk;

use arvados_client::keep::BlockStore;
use arvados_client::manifest::Manifest;
use arvados_client::records::Container;

pub use error::OutputError;

use crate::mounts::{Progress, Staged};

/// Stores the output of a container that has ended. Nothing may change it meanwhile.
pub async fn capture<S: BlockStore + Clone + 'static>(
    staged: &Staged,
    container: &Container,
    keep: &S,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<Manifest, OutputError> {
    let (view, output) = (staged.view.clone(), staged.output.clone());
    let globs = glob::Globs::new(&container.output_glob);
    let scan = tokio::task::spawn_blocking(move || scan::scan(&view, &output, &globs));
    let found = scan.await.map_err(|_| OutputError::Interrupted)??;
    let manifest = upload::upload(found, keep.clone(), progress).await?;
    remote::fetch_remote(manifest, keep).await
}
