//! `dispatch image`: adds, lists and removes container images.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use image_archive::architecture;
use jiff::Timestamp;
use serde_json::json;

use super::gc::FREE_SPACE;
use super::rm::can_free;
use super::user::administrator;
use crate::completion;
use crate::error::CliError;
use crate::image::remove;
use crate::image::{ImageError, ImageName, ImageSource, share, store};
use crate::job_numbers;
use crate::printer::{Output, eprint_note, progress};
use crate::session::Session;
use crate::text::time_between;
use units::format_size;

/// Add, list and remove container images
#[derive(Debug, Args)]
pub struct Image {
    #[command(subcommand)]
    pub command: ImageCommand,
}

/// Subcommands of `dispatch image`.
#[derive(Debug, Subcommand)]
pub enum ImageCommand {
    Add(Add),
    /// List the images on the server
    #[command(visible_alias = "ls")]
    List,
    Rm(Rm),
}

/// Remove the name of an image, and with its last name the image
///
/// The image goes to the trash, where the server keeps it for two weeks. 'dispatch gc' frees its
/// space earlier.
#[derive(Debug, Args)]
pub struct Rm {
    /// Name of the image [default tag: latest]
    #[arg(value_name = "NAME[:TAG]", required = true, add = completion::image_names())]
    pub names: Vec<ImageName>,
}

/// Store an image under a name
///
/// Accepts the output of 'docker save' and 'podman save' (also compressed with gzip or zstd), an
/// OCI archive or layout, or a root directory. A root directory becomes an image with one layer. An
/// image that is already stored only gets the name. An image with a layer that no node could unpack
/// is refused, with the layer and the file.
#[derive(Debug, Args)]
#[command(override_usage = "dispatch image add [OPTIONS] [NAME[:TAG]] <FILE|DIR>")]
pub struct Add {
    /// Name of the image [default: the names that the archive gives it; default tag: latest]
    #[arg(value_name = "NAME[:TAG]", required = true)]
    name_or_path: String,
    /// Path of the archive, layout or root directory
    #[arg(value_name = "FILE|DIR")]
    path: Option<PathBuf>,
    /// Architecture of the machines that run the image, such as amd64 or arm64 [default: of this
    /// machine]
    #[arg(long, value_name = "NAME")]
    architecture: Option<String>,
    /// Let all users of the server use the image (for an administrator)
    ///
    /// On the machine of 'dispatch up', with its account, the image is stored as its
    /// administrator's. 'dispatch --admin image rm NAME' removes it.
    #[arg(long)]
    all_users: bool,
}

impl Add {
    /// The name, if one is given, and the path.
    fn name_and_path(&self) -> Result<(Option<ImageName>, PathBuf), ImageError> {
        match &self.path {
            Some(path) => Ok((Some(self.name_or_path.parse()?), path.clone())),
            None => Ok((None, PathBuf::from(&self.name_or_path))),
        }
    }
}

pub async fn run(args: Image, session: &Session, out: Output) -> Result<(), CliError> {
    match args.command {
        ImageCommand::Add(add) if add.all_users => {
            let session = session.as_admin()?;
            administrator(&session.client).await?;
            run_add(add, &session, out).await
        }
        ImageCommand::Add(add) => run_add(add, session, out).await,
        ImageCommand::List => run_list(session, out).await,
        ImageCommand::Rm(rm) => run_rm(rm, session, out).await,
    }
}

async fn run_rm(args: Rm, session: &Session, out: Output) -> Result<(), CliError> {
    let user = session.client.current_user().await?;
    let later = match can_free(session, &user) {
        true => format!("free its space with: {FREE_SPACE}"),
        false => "it stays in the trash for two weeks".to_owned(),
    };
    for name in &args.names {
        let is_image = remove::remove(&session.client, name).await?;
        let note = match is_image {
            true => format!("image {name} removed; {later}"),
            false => format!("name {name} removed; the image has other names"),
        };
        let value = json!({"name": name.to_string(), "image_removed": is_image});
        out.json_or_note(&value, &note)?;
    }
    Ok(())
}

async fn run_add(args: Add, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let (given, path) = args.name_and_path()?;
    let written = given.as_ref().and_then(|name| {
        let text = args.name_or_path.as_str();
        let is_written = |long: &String| long == text || long.strip_suffix(":latest") == Some(text);
        name.spellings().into_iter().skip(1).find(is_written)
    });
    let name = given.clone();
    let looking = tokio::task::spawn_blocking({
        let path = path.clone();
        let architecture = args
            .architecture
            .unwrap_or_else(|| architecture().to_owned());
        move || ImageSource::open(&path, name.as_ref(), &architecture)
    });
    let image = looking.await.map_err(|_| ImageError::Stopped)??;
    let id = image.id.clone();
    let names = given.map_or_else(|| image.names(), |name| vec![name]);
    let first = names.first().ok_or(ImageError::NoName(path))?;
    let (collection, was_there) = match store::find_stored(client, &id).await? {
        Some(collection) => (collection, true),
        None => {
            let bar = progress(image.size, "checking image");
            let checking = tokio::task::spawn_blocking(move || {
                let checked = image.check_layers(&bar);
                bar.finish_and_clear();
                checked.map(|()| image)
            });
            let image = checking.await.map_err(|_| ImageError::Stopped)??;
            let bar = progress(image.size, "uploading image");
            let stored = store::store(client, image, first, &bar).await?;
            bar.finish_and_clear();
            (stored, false)
        }
    };
    for name in &names {
        store::tag(client, &name.to_string(), &collection).await?;
        // A long form that is there means the same image.
        for long in store::long_names(client, name).await? {
            store::tag(client, &long, &collection).await?;
        }
    }
    // Another client may look for what was written, not for the short form.
    if let Some(written) = written {
        store::tag(client, &written, &collection).await?;
    }
    if args.all_users {
        share::with_all_users(client, &collection).await?;
    }
    let all: Vec<String> = names.iter().map(ToString::to_string).collect();
    if out.json {
        return out.json(&json!({
            "name": first.to_string(), "names": all, "image": format!("sha256:{id}"), "uuid": collection.uuid,
            "portable_data_hash": collection.portable_data_hash, "was_stored": was_there,
            "all_users": args.all_users,
        }));
    }
    let stored = match was_there {
        true => "was stored already and ",
        false => "",
    };
    let whose = match args.all_users {
        false => "",
        true if job_numbers::are_given(client).await? => ", for all users",
        // Arvados shows a link to those who may read what owns it.
        true => {
            "; all users can read it, but this server shows the name to you alone: \
             they give the portable data hash, or you move its links into a project for them"
        }
    };
    let all = all.join(", ");
    eprint_note(&format!("image {} {stored}is now {all}{whose}", &id[..12]));
    let pdh = collection.portable_data_hash.map(|pdh| pdh.to_string());
    out.line(&format!("{} {}", collection.uuid, pdh.unwrap_or_default()))
}

async fn run_list(session: &Session, out: Output) -> Result<(), CliError> {
    let images = store::list(&session.client).await?;
    if out.json {
        return out.json(&images);
    }
    if images.is_empty() {
        eprint_note("no images; add one with: dispatch image add NAME FILE");
        return Ok(());
    }
    let now = Timestamp::now();
    let rows = images.iter().map(|image| {
        let id = image.image.trim_start_matches("sha256:");
        let age = image.added.map(|added| time_between(added, now));
        vec![
            image.name.clone(),
            image.tag.clone(),
            id.chars().take(12).collect(),
            image.size.map(format_size).unwrap_or_default(),
            age.unwrap_or_default(),
            image.collection.clone(),
        ]
    });
    let header = vec!["NAME", "TAG", "IMAGE", "SIZE", "AGE", "COLLECTION"];
    out.narrow_table(header, rows.collect(), &["IMAGE", "AGE", "SIZE"])
}
