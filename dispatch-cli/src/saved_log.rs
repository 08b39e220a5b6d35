//! The log of a job as far as it is saved: a collection of the job's container, or of its request.

use arvados_client::Client;
use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Entry, EntryKind, FileTree};

use crate::collection;
use crate::failure::Failure;
use crate::job::Job;

/// Maximum size of a file that is read as a whole.
const MAX_SMALL_FILE: usize = 1 << 20;

/// Where the log of a job is saved now: what its container saved last, else the request's own collection.
pub fn location(job: &Job) -> Option<String> {
    let saved = job.container.as_ref().and_then(|c| c.log.as_ref());
    let own = job.request.log_uuid.as_ref().map(ToString::to_string);
    // While it runs, the content changes: its hash tells when.
    saved.map(ToString::to_string).or(own)
}

/// The files at a location: by the content's hash, or, where that may not be read, in the request's collection. None
/// if neither can be read.
pub async fn open(client: &Client, job: &Job, location: &str) -> Result<Option<FileTree>, Failure> {
    let own = job.request.log_uuid.as_ref().map(|uuid| uuid.as_str());
    if own != Some(location) {
        match collection::open(client, location).await {
            // Servers let users read the log by its uuid only.
            Err(Failure::NoCollection(_)) => {}
            opened => return opened.map(|stored| Some(stored.tree)),
        }
    }
    let Some(own) = own else {
        return Ok(None);
    };
    match collection::open(client, own).await {
        Err(Failure::NoCollection(_)) => Ok(None),
        opened => Ok(of_container(job, opened?.tree)),
    }
}

/// The part of a request's log that is its container's: after a retry the rest is of earlier containers.
fn of_container(job: &Job, tree: FileTree) -> Option<FileTree> {
    let earlier = tree
        .list("")
        .unwrap_or_default()
        .iter()
        .any(|entry| entry.name.starts_with("log for container "));
    match &job.request.container_uuid {
        Some(container) if earlier => tree.subtree(&format!("log for container {container}")).ok(),
        _ => Some(tree),
    }
}

/// The names of the saved files.
pub async fn names(client: &Client, job: &Job) -> Result<Vec<String>, Failure> {
    let Some(location) = location(job) else {
        return Ok(Vec::new());
    };
    let Some(tree) = open(client, job, &location).await? else {
        return Ok(Vec::new());
    };
    let entries = tree.list("").unwrap_or_default();
    Ok(entries
        .iter()
        .filter(|entry| matches!(entry.kind, EntryKind::File { .. }))
        .map(|entry| entry.name.to_owned())
        .collect())
}

/// A small file of a job's log, whole; none if it is not there (any more) or too large.
pub async fn small(client: &Client, keep: &KeepClient, job: &Job, name: &str) -> Option<Vec<u8>> {
    let tree = open(client, job, &location(job)?).await.ok()??;
    let Some(Entry::File(extents)) = tree.lookup(name) else {
        return None;
    };
    FileReader::new(keep.clone(), extents)
        .read_all(MAX_SMALL_FILE)
        .await
        .ok()
}
