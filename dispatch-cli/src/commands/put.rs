//! `dispatch put`: files and directories into a new collection.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::collection_name;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::session::Session;
use crate::units::{count, show_size};
use crate::upload;

/// Store files or directories as a collection; prints its uuid and portable data hash
///
/// The content of a single directory becomes the root of the collection; several things keep their names.
#[derive(Debug, Args)]
pub struct Put {
    /// Files and directories
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// What to call the collection [default: the name of the first path]
    #[arg(long, value_name = "TEXT", value_parser = collection_name::given)]
    pub name: Option<String>,
}

pub async fn run(args: Put, session: &Session, out: Output) -> Result<(), Failure> {
    let client = &session.client;
    let name = args.name.clone().unwrap_or_else(|| {
        let last = args.paths[0]
            .file_name()
            .map(|n| n.to_string_lossy().into_owned());
        collection_name::from_text(last.as_deref().unwrap_or("files"))
    });
    let items = upload::plan_aside(args.paths).await?;
    let manifest = upload::store(client, &items, "uploading").await?;
    let saved = upload::save(client, &manifest, &name).await?;
    let pdh = saved.portable_data_hash.unwrap_or_else(|| manifest.pdh());
    if out.json {
        return out.json(&json!({
            "uuid": saved.uuid, "portable_data_hash": pdh, "name": saved.name,
            "files": manifest.file_count(), "bytes": manifest.total_size(),
        }));
    }
    note(&format!(
        "{}, {}, as {:?}",
        count(manifest.file_count(), "file"),
        show_size(manifest.total_size()),
        saved.name
    ));
    out.line(&format!("{} {pdh}", saved.uuid))
}
