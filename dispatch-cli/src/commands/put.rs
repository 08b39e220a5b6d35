//! `dispatch put`: uploads files and directories as a new collection.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::collection_name;
use crate::error::CliError;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::text::plural;
use crate::upload;
use units::format_size;

/// Store files or directories as a collection; prints its uuid and portable data hash
///
/// The content of a single directory becomes the root of the collection. Several files or
/// directories keep their names.
#[derive(Debug, Args)]
pub struct Put {
    /// Files and directories to store
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Name of the collection [default: the name of the first path]
    #[arg(long, value_name = "TEXT", value_parser = collection_name::parse)]
    pub name: Option<String>,
}

pub async fn run(args: Put, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let name = args.name.clone().unwrap_or_else(|| {
        let last = args.paths[0]
            .file_name()
            .map(|n| n.to_string_lossy().into_owned());
        collection_name::from_text(last.as_deref().unwrap_or("files"))
    });
    let items = upload::list_items_async(args.paths).await;
    let items = items.map_err(|error| match error {
        CliError::NoFile(path) => CliError::NothingToStore(path),
        error => error,
    })?;
    let manifest = upload::store(client, &items, "uploading").await?;
    let (saved, pdh) = upload::save(client, &manifest, &name).await?;
    if out.json {
        return out.json(&json!({
            "uuid": saved.uuid, "portable_data_hash": pdh, "name": saved.name,
            "files": manifest.file_count(), "bytes": manifest.total_size(),
        }));
    }
    eprint_note(&format!(
        "{}, {}, as {:?}",
        plural(manifest.file_count(), "file"),
        format_size(manifest.total_size()),
        saved.name
    ));
    out.line(&format!("{} {pdh}", saved.uuid))
}
