//! `dispatch image`: adding and listing container images.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::json;

use crate::failure::Failure;
use crate::image::{ImageError, ImageName, Packed, store};
use crate::output::{Output, note, plain, progress};
use crate::session::Session;
use crate::units::{show_size, show_time};

/// Add and list container images
#[derive(Debug, Args)]
pub struct Image {
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// What to do with images.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    Add(Add),
    #[command(visible_alias = "ls")]
    List(List),
}

/// Store an image under a name
///
/// Takes what 'docker save' and 'podman save' write (also compressed with gzip or zstd), an OCI archive or layout, or
/// a root directory, which becomes an image with one layer. An image that is stored already is only given the name.
#[derive(Debug, Args)]
pub struct Add {
    /// Name; the tag is latest if none is given
    #[arg(value_name = "NAME[:TAG]")]
    pub name: ImageName,
    /// Archive, layout or root directory
    #[arg(value_name = "FILE|DIR")]
    pub path: PathBuf,
}

/// List the images on the server
#[derive(Debug, Args)]
pub struct List {}

pub async fn run(args: Image, session: &Session, out: Output) -> Result<(), Failure> {
    match args.command {
        ImageCommand::Add(add) => run_add(add, session, out).await,
        ImageCommand::List(_) => run_list(session, out).await,
    }
}

async fn run_add(args: Add, session: &Session, out: Output) -> Result<(), Failure> {
    let client = &session.client;
    let name = args.name.clone();
    let looking = tokio::task::spawn_blocking(move || Packed::open(&args.path, &name));
    let image = looking.await.map_err(|_| ImageError::Stopped)??;
    let id = image.id.clone();
    let (collection, was_there) = match store::existing(client, &id).await? {
        Some(collection) => (collection, true),
        None => {
            let bar = progress(image.size, "uploading image");
            let stored = store::store(client, image, &args.name, &bar).await?;
            bar.finish_and_clear();
            (stored, false)
        }
    };
    store::tag(client, &args.name, &collection).await?;
    if out.json {
        return out.json(&json!({
            "name": args.name.to_string(), "image": format!("sha256:{id}"), "uuid": collection.uuid,
            "portable_data_hash": collection.portable_data_hash, "was_stored": was_there,
        }));
    }
    let stored = if was_there {
        "was stored already and"
    } else {
        ""
    };
    note(&format!("image {} {stored} is now {}", &id[..12], args.name).replace("  ", " "));
    let pdh = collection.portable_data_hash.map(|pdh| pdh.to_string());
    out.line(&format!("{} {}", collection.uuid, pdh.unwrap_or_default()))
}

async fn run_list(session: &Session, out: Output) -> Result<(), Failure> {
    let images = store::list(&session.client).await?;
    if out.json {
        return out.json(&images);
    }
    if images.is_empty() {
        note("no images; add one with: dispatch image add NAME FILE");
        return Ok(());
    }
    let now = Timestamp::now();
    let rows = images.iter().map(|image| {
        let id = image.image.trim_start_matches("sha256:");
        let age = image
            .added
            .and_then(|added| now.duration_since(added).try_into().ok());
        vec![
            plain(&image.name),
            plain(&image.tag),
            id.chars().take(12).collect(),
            image.size.map(show_size).unwrap_or_default(),
            age.map(show_time).unwrap_or_default(),
            image.collection.clone(),
        ]
    });
    out.table(
        &["NAME", "TAG", "IMAGE", "SIZE", "AGE", "COLLECTION"],
        rows.collect(),
    )
}
