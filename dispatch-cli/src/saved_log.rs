//! Reads the saved log of a job: a collection of the container, or of the request.

use arvados_client::Client;
use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Entry, EntryKind, FileTree};

use crate::collection;
use crate::error::CliError;
use crate::job::Job;

/// Maximum size of a file that is read whole.
const MAX_SMALL_FILE: usize = 1 << 20;
/// Beginning of the names of directories in the log of a request: one for each container that it
/// had, if there were several.
pub const OF_CONTAINER: &str = "log for container ";

/// Location of the saved log: the last one of the container, else the collection of the request.
pub fn location(job: &Job) -> Option<String> {
    let saved = job.container.as_ref().and_then(|c| c.log.as_ref());
    let own = job.request.log_uuid.as_ref().map(ToString::to_string);
    // The hash changes with the content while the job runs.
    saved.map(ToString::to_string).or(own)
}

/// Opens the files at `location`, or, if this token cannot read it, in the collection of the
/// request. `None` if neither can be read.
pub async fn open(
    client: &Client,
    job: &Job,
    location: &str,
) -> Result<Option<FileTree>, CliError> {
    let own = job.request.log_uuid.as_ref().map(|uuid| uuid.as_str());
    if own != Some(location) {
        match collection::open(client, location).await {
            // Servers let users read the log only by its uuid.
            Err(CliError::NoCollection(_)) => {}
            opened => return opened.map(|stored| Some(stored.tree)),
        }
    }
    let Some(own) = own else {
        return Ok(None);
    };
    match collection::open(client, own).await {
        Err(CliError::NoCollection(_)) => Ok(None),
        opened => Ok(of_container(job, opened?.tree)),
    }
}

/// The part of the log of a request that belongs to its container. After a retry it also holds
/// earlier containers.
fn of_container(job: &Job, tree: FileTree) -> Option<FileTree> {
    let earlier = tree
        .list("")
        .unwrap_or_default()
        .keys()
        .any(|name| name.starts_with(OF_CONTAINER));
    match &job.request.container_uuid {
        Some(container) if earlier => tree.subtree(&format!("{OF_CONTAINER}{container}")).ok(),
        _ => Some(tree),
    }
}

/// Names of the saved files.
pub async fn names(client: &Client, job: &Job) -> Result<Vec<String>, CliError> {
    let Some(location) = location(job) else {
        return Ok(Vec::new());
    };
    let Some(tree) = open(client, job, &location).await? else {
        return Ok(Vec::new());
    };
    let entries = tree.list("").unwrap_or_default();
    let is_file = |kind: &EntryKind| matches!(kind, EntryKind::File { .. });
    let files = entries.iter().filter(|(_, kind)| is_file(kind));
    Ok(files.map(|(name, _)| (*name).to_owned()).collect())
}

/// Reads a small file of the log. `None` if it does not exist or is too large.
pub async fn read_small_file(
    client: &Client,
    keep: &KeepClient,
    job: &Job,
    name: &str,
) -> Option<Vec<u8>> {
    let tree = open(client, job, &location(job)?).await.ok()??;
    read_file(keep, &tree, name, MAX_SMALL_FILE).await
}

/// Reads a file of at most `max` bytes.
pub async fn read_file(
    keep: &KeepClient,
    tree: &FileTree,
    path: &str,
    max: usize,
) -> Option<Vec<u8>> {
    let Some(Entry::File(extents)) = tree.lookup(path) else {
        return None;
    };
    let file = FileReader::new(keep.clone(), extents);
    file.read_all(max).await.ok()
}
