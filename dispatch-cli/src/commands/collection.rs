//! `dispatch collection`: lists and removes collections (outputs, logs, inputs, images, what `put`
//! stored), and restores them from the trash.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::Client;
use arvados_client::api::NameKind;
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::records::Collection as Record;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::rm::user_of;
use crate::collection;
use crate::completion;
use crate::delete::delete;
use crate::error::CliError;
use crate::image::remove::{Restored, name_again};
use crate::image::store;
use crate::jobs;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::text::{plural, shortened, time_between};
use units::format_size;

/// Number of collections that are asked for at once, and how often.
const PAGE: u64 = 1000;
const MAX_PAGES: u64 = 20;

/// List and remove collections of files, and restore them from the trash
#[derive(Debug, Args)]
pub struct Collections {
    #[command(subcommand)]
    pub command: CollectionCommand,
}

/// Subcommands of `dispatch collection`.
#[derive(Debug, Subcommand)]
pub enum CollectionCommand {
    #[command(visible_alias = "ls")]
    List(List),
    Rm(Rm),
    Restore(Restore),
}

/// List my newest collections: outputs, logs and inputs of jobs, images, and what 'put' stored
#[derive(Debug, Args)]
pub struct List {
    /// Those in the trash, with the time until they are gone
    #[arg(long)]
    pub trash: bool,
    /// Only those with this name; % stands for any text
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// Maximum number of collections
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub limit: u64,
}

/// Move collections to the trash, where the server keeps them for two weeks
#[derive(Debug, Args)]
pub struct Rm {
    /// Uuid of the collection
    #[arg(value_name = "UUID", required = true, add = completion::collection_uuids())]
    pub uuids: Vec<String>,
}

/// Take collections out of the trash
///
/// A job that was removed does not come back, but its output and its log do.
#[derive(Debug, Args)]
pub struct Restore {
    /// Uuid of the collection, see 'dispatch collection list --trash'
    #[arg(value_name = "UUID", required = true, add = completion::trashed_collection_uuids())]
    pub uuids: Vec<String>,
}

/// `of_all`: with --admin, of all users.
pub async fn run(
    args: Collections,
    session: &Session,
    of_all: bool,
    out: Output,
) -> Result<(), CliError> {
    match args.command {
        CollectionCommand::List(args) => list(&args, session, of_all, out).await,
        CollectionCommand::Rm(args) => remove(&args, session, out).await,
        CollectionCommand::Restore(args) => restore(&args, session, out).await,
    }
}

async fn list(args: &List, session: &Session, of_all: bool, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let user = match of_all {
        true => None,
        false => Some(client.current_user().await?.uuid.to_string()),
    };
    let mut query = collection::newest_of(user.as_deref(), args.trash);
    if let Some(name) = &args.name {
        query = query.like("name", name);
    }
    let (found, has_more) = newest(client, query, args.limit as usize).await?;
    if out.json {
        let rows: Vec<Value> = found.iter().map(json_row).collect();
        return out.json(&rows);
    }
    if found.is_empty() {
        eprint_note(match args.trash {
            true => "no such collections in the trash",
            false => "no such collections",
        });
        return Ok(());
    }
    let now = Timestamp::now();
    let last = if args.trash { "GONE IN" } else { "AGE" };
    let users = match of_all {
        true => user_names(client, &found).await,
        false => BTreeMap::new(),
    };
    let rows = found.iter().map(|collection| {
        let time = match args.trash {
            true => gone_at(collection).map(|at| time_between(now, at)),
            false => collection.created_at.map(|at| time_between(at, now)),
        };
        let mut row = vec![
            collection.uuid.clone(),
            shortened(&collection.name),
            collection.file_count.to_string(),
            format_size(collection.file_size_total),
            time.unwrap_or_default(),
        ];
        if of_all {
            let owner = owner(collection);
            row.push(users.get(&owner).unwrap_or(&owner).clone());
        }
        row
    });
    let mut header = vec!["UUID", "NAME", "FILES", "SIZE", last];
    if of_all {
        header.push("USER");
    }
    out.narrow_table(header, rows.collect(), &["FILES", last])?;
    if has_more {
        let shown = plural(found.len() as u64, "collection");
        eprint_note(&format!("the newest {shown}; see more with --limit"));
    }
    Ok(())
}

/// Names of the owners, as far as they can be read.
async fn user_names(client: &Client, found: &[Record]) -> BTreeMap<String, String> {
    let owners: BTreeSet<String> = found.iter().map(owner).collect();
    client
        .names(NameKind::User, &owners)
        .await
        .unwrap_or_default()
}

fn owner(collection: &Record) -> String {
    let owner = collection.owner_uuid.as_ref();
    owner.map(ToString::to_string).unwrap_or_default()
}

/// The first collections that match, and whether there are more. What crunch-run has stored for the
/// server to copy is left out.
async fn newest(
    client: &Client,
    query: Query,
    limit: usize,
) -> Result<(Vec<Record>, bool), CliError> {
    let mut found = Vec::new();
    for page_number in 0..MAX_PAGES {
        let query = query.clone().limit(PAGE).offset(page_number * PAGE);
        let page = client.page::<Record>("collections", &query).await?;
        let is_last = (page.items.len() as u64) < PAGE;
        let is_for_people = |record: &Record| !collection::is_original(&record.name);
        found.extend(page.items.into_iter().filter(is_for_people));
        if is_last || found.len() > limit {
            break;
        }
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    Ok((found, has_more))
}

fn json_row(collection: &Record) -> Value {
    json!({
        "uuid": collection.uuid, "name": collection.name, "files": collection.file_count,
        "owner_uuid": collection.owner_uuid, "bytes": collection.file_size_total, "portable_data_hash": collection.portable_data_hash,
        "created_at": collection.created_at, "gone_at": gone_at(collection),
    })
}

/// When a collection in the trash is deleted.
fn gone_at(collection: &Record) -> Option<Timestamp> {
    collection.extra.get("delete_at")?.as_str()?.parse().ok()
}

async fn remove(args: &Rm, session: &Session, out: Output) -> Result<(), CliError> {
    let open = jobs::open(&session.client).await?;
    for uuid in &args.uuids {
        exists(session, uuid).await?;
        if let Some(image) = store::name_of(&session.client, uuid).await? {
            return Err(CliError::CollectionIsImage {
                collection: uuid.clone(),
                image,
            });
        }
        if let Some(job) = user_of(&session.client, uuid, &open).await? {
            return Err(CliError::CollectionInUse {
                collection: uuid.clone(),
                job,
            });
        }
        delete(&session.client, &format!("collections/{uuid}")).await?;
        report(uuid, "in the trash", out)?;
    }
    if !out.json {
        let number = plural(args.uuids.len() as u64, "collection");
        eprint_note(&format!(
            "{number} moved to the trash; take one out with: dispatch collection restore UUID"
        ));
    }
    Ok(())
}

/// Fails if the collection is not there, or in the trash.
async fn exists(session: &Session, uuid: &str) -> Result<(), CliError> {
    let call = Call::get(format!("collections/{uuid}"));
    let found = session.client.send::<Value>(call).await.map(drop);
    found.map_err(CliError::of_collection(uuid))
}

async fn restore(args: &Restore, session: &Session, out: Output) -> Result<(), CliError> {
    for uuid in &args.uuids {
        match exists(session, uuid).await {
            Err(CliError::NoCollection(_)) => {}
            found => {
                found?;
                eprint_note(&format!("{uuid} is not in the trash"));
                continue;
            }
        }
        // Another collection may have got its name meanwhile.
        let call = Call::post(
            format!("collections/{uuid}/untrash"),
            json!({"ensure_unique_name": true}),
        );
        match session.client.send::<Value>(call).await {
            Err(error) if error.is_not_found() => {
                return Err(CliError::NoCollection(uuid.clone()));
            }
            // If the answer to an earlier attempt was lost, the collection is back already.
            Err(error) if exists(session, uuid).await.is_err() => return Err(error.into()),
            _ => {}
        }
        report(uuid, "restored", out)?;
        match name_again(&session.client, uuid).await? {
            Some(Restored::Named(name)) => eprint_note(&format!("it is image {name} again")),
            Some(Restored::NameTaken(name)) => eprint_note(&format!(
                "it is an image without a name: another one is {name} now; use it with: --image {uuid}"
            )),
            None => {}
        }
    }
    if !out.json {
        let number = plural(args.uuids.len() as u64, "collection");
        eprint_note(&format!(
            "{number} restored; fetch one with: dispatch get UUID DIR"
        ));
    }
    Ok(())
}

fn report(uuid: &str, state: &str, out: Output) -> Result<(), CliError> {
    match out.json {
        true => out.json(&json!({"uuid": uuid, "state": state})),
        false => Ok(()),
    }
}
