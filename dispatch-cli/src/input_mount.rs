//! Mounts of a job's inputs: uploads local files, and makes the `mounts` entry of a collection.

use std::io::IsTerminal;

use arvados_client::Client;
use arvados_client::manifest::Entry;
use serde_json::{Value, json};

use crate::error::CliError;
use crate::input_spec::{CollectionSpec, Source};
use crate::printer::eprint_note;
use crate::{collection, upload};

/// The mount of an input. A local file or directory is uploaded first.
pub async fn from_source(client: &Client, source: &Source, title: &str) -> Result<Value, CliError> {
    match source {
        Source::Collection(CollectionSpec { collection, path }) => {
            let stored = collection::open(client, collection).await?;
            stored.subtree(path)?;
            Ok(collection_mount(&stored.pdh, path))
        }
        Source::Local(local) => {
            let items = upload::list_items_async(vec![local.clone()]).await?;
            let manifest = upload::store(client, &items, "uploading input").await?;
            let (_, pdh) = upload::save(client, &manifest, title).await?;
            let path = match items.as_slice() {
                [upload::Item::File { path, .. }] if !local.is_dir() => path.as_str(),
                _ => "",
            };
            Ok(collection_mount(pdh.as_str(), path))
        }
    }
}

/// Checks that standard input is a file.
pub async fn check_one_file(client: &Client, source: &Source, given: &str) -> Result<(), CliError> {
    let is_file = match source {
        // A missing file fails later, when it is opened.
        Source::Local(path) => !path.is_dir(),
        Source::Collection(CollectionSpec { collection, path }) => {
            let stored = collection::open(client, collection).await?;
            !matches!(stored.tree.lookup(path), Some(Entry::Directory))
        }
    };
    match is_file {
        true => Ok(()),
        false => Err(CliError::NotOneFile(given.to_owned())),
    }
}

/// The mount of a file with the standard input of this command, which is uploaded first.
pub async fn from_stdin(client: &Client, title: &str) -> Result<Value, CliError> {
    let input = tokio::io::stdin();
    if std::io::stdin().is_terminal() {
        eprint_note(
            "dispatch: type the input of the job, and Ctrl-D to end it; then the job is submitted",
        );
    }
    let manifest = upload::store_stream(client, "stdin", input).await?;
    let (_, pdh) = upload::save(client, &manifest, title).await?;
    Ok(collection_mount(pdh.as_str(), "stdin"))
}

fn collection_mount(pdh: &str, path: &str) -> Value {
    match path {
        "" => json!({"kind": "collection", "portable_data_hash": pdh}),
        path => json!({"kind": "collection", "portable_data_hash": pdh, "path": path}),
    }
}
