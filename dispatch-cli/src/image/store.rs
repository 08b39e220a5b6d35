//! Images on the server: each is a collection with one archive, named by links.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use arvados_client::Client;
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::keep::CollectionWriter;
use arvados_client::records::{Collection, Link};
use arvados_client::{CollectionUuid, Pdh};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::io::SyncIoBridge;

use super::{ImageError, ImageName, ImageSource};
use crate::collection_name;
use crate::error::CliError;

/// Class of links from the hash of an image to its collection.
pub const HASH_LINK_CLASS: &str = "docker_image_hash";
/// Class of links from the name of an image to its collection.
pub const NAME_LINK_CLASS: &str = "docker_image_repo+tag";
/// Property of a collection with the name of the image in it, as arv-keepdocker sets it.
pub const NAME_PROPERTY: &str = "docker-image-repo-tag";
/// Size of the buffer between packing and upload, in bytes.
const PIPE_BYTES: usize = 1 << 20;

/// An image in a listing.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ListedImage {
    pub name: String,
    pub tag: String,
    /// `sha256:…`.
    pub image: String,
    pub collection: String,
    pub portable_data_hash: Option<String>,
    pub size: Option<u64>,
    pub added: Option<Timestamp>,
    /// Whether the user or the system user gave the name, not another user who shares it.
    #[serde(skip)]
    pub is_believed: bool,
}

impl ListedImage {
    pub fn has_name(&self, name: &ImageName) -> bool {
        (&self.name, &self.tag) == (&name.repository, &name.tag)
    }
}

/// The owners whose links to images are believed: the user, and the system user. Anybody else can
/// link any hash or name to a program of their own.
async fn believed_owners(client: &Client) -> Result<[String; 2], CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let system = format!("{}-tpzed-000000000000000", &user[..5]);
    Ok([user, system])
}

/// All links that match.
pub async fn links(client: &Client, query: Query) -> Result<Vec<Link>, CliError> {
    let links = client.all("links", query, |link: &Link| link.uuid.as_str());
    Ok(links.await?)
}

/// Finds a collection that holds the image, stored by this user or the system user.
pub async fn find_stored(client: &Client, id: &str) -> Result<Option<Collection>, CliError> {
    let owners = believed_owners(client).await?;
    let query = Query::new()
        .filter("link_class", "=", HASH_LINK_CLASS)
        .filter("name", "=", format!("sha256:{id}"))
        .filter("owner_uuid", "in", &owners);
    for link in links(client, query).await? {
        match client.collection(&link.head_uuid).await {
            Ok(collection) => {
                let owner = collection.owner_uuid.as_ref().map(ToString::to_string);
                if owner.is_some_and(|owner| owners.contains(&owner)) {
                    return Ok(Some(collection));
                }
            }
            // Deleted, or not readable by this token.
            Err(error) if error.is_not_found() || error.is_denied() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Stores the archive as a collection with one file, linked by its hash.
pub async fn store(
    client: &Client,
    image: ImageSource,
    name: &ImageName,
    bar: &ProgressBar,
) -> Result<Collection, CliError> {
    let id = image.id.clone();
    let keep = client.keep(client.keep_options().await?).await?;
    let (from_thread, to_us) = tokio::io::duplex(PIPE_BYTES);
    let packing = tokio::task::spawn_blocking(move || {
        let mut out =
            std::io::BufWriter::with_capacity(PIPE_BYTES / 4, SyncIoBridge::new(from_thread));
        image.write(&mut out)?;
        out.flush().map_err(ImageError::Pack)
    });
    let mut writer = CollectionWriter::new(keep);
    let uploaded = writer
        .put_reader(&format!("sha256:{id}.tar"), bar.wrap_async_read(to_us))
        .await;
    // If packing failed, its error is the reason why the upload ended early. If the upload failed,
    // packing only lost its reader.
    let packed = packing.await.map_err(|_| ImageError::Stopped)?;
    uploaded?;
    packed?;
    let manifest = writer.finish().await?;
    let title = collection_name::from_text(&format!("Docker image {name} sha256:{}", &id[..12]));
    let collection = client
        .create_collection(json!({
            "name": title,
            "manifest_text": manifest.to_string(),
            "properties": {NAME_PROPERTY: name.to_string()},
        }))
        .await?;
    let hash = format!("sha256:{id}");
    link(client, HASH_LINK_CLASS, &hash, &collection).await?;
    Ok(collection)
}

/// Names the image in `collection`. An image that had the name before loses it.
pub async fn tag(client: &Client, name: &str, collection: &Collection) -> Result<(), CliError> {
    link(client, NAME_LINK_CLASS, name, collection).await
}

/// The long spellings of a name under which this user has an image already.
pub async fn long_names(client: &Client, name: &ImageName) -> Result<Vec<String>, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let query = Query::new()
        .filter("link_class", "=", NAME_LINK_CLASS)
        .filter("name", "in", &name.spellings()[1..])
        .filter("owner_uuid", "=", &user);
    let links = links(client, query).await?;
    let names: BTreeSet<String> = links.into_iter().map(|link| link.name).collect();
    Ok(names.into_iter().collect())
}

/// Links the image in `collection` by its name or hash (`sha256:…`).
pub async fn link(
    client: &Client,
    class: &str,
    name: &str,
    collection: &Collection,
) -> Result<(), CliError> {
    // Of several links with one name, the newest by this time counts.
    let attributes = json!({
        "link_class": class, "name": name, "head_uuid": collection.uuid,
        "properties": {"image_timestamp": Timestamp::now().to_string()},
    });
    create_link(client, attributes).await
}

/// Creates a link of any class.
pub async fn create_link(client: &Client, attributes: Value) -> Result<(), CliError> {
    let call = Call::post("links", json!({"link": attributes}));
    Ok(client.send::<Value>(call).await.map(drop)?)
}

/// Lists named images, newest first. Of several links with one name, only one: the newest of the
/// user's own and the system user's, else the newest.
pub async fn list(client: &Client) -> Result<Vec<ListedImage>, CliError> {
    let owners = believed_owners(client).await?;
    let of_class = |class: &str| links(client, Query::new().filter("link_class", "=", class));
    let (names, hashes) = tokio::try_join!(of_class(NAME_LINK_CLASS), of_class(HASH_LINK_CLASS))?;
    let ids: BTreeMap<&str, &str> = hashes
        .iter()
        .map(|link| (link.head_uuid.as_str(), link.name.as_str()))
        .collect();
    let heads: Vec<&str> = names.iter().map(|link| link.head_uuid.as_str()).collect();
    let query = Query::new().filter("uuid", "in", &heads).select(&[
        "uuid",
        "portable_data_hash",
        "file_size_total",
    ]);
    let collections = client
        .all::<Collection>("collections", query, |c| c.uuid.as_str())
        .await?;
    Ok(newest_of_each(&names, &owners, &ids, &collections))
}

fn newest_of_each(
    names: &[Link],
    owners: &[String],
    ids: &BTreeMap<&str, &str>,
    collections: &[Collection],
) -> Vec<ListedImage> {
    let is_believed = |link: &Link| {
        let owner = link.extra.get("owner_uuid").and_then(Value::as_str);
        owner.is_some_and(|owner| owners.iter().any(|one| one == owner))
    };
    let stamp = |link: &Link| {
        let stamp = link
            .properties
            .get("image_timestamp")
            .and_then(Value::as_str);
        let stamp = stamp.unwrap_or_default().to_owned();
        (is_believed(link), stamp, link.created_at)
    };
    let known: BTreeMap<&str, &Collection> =
        collections.iter().map(|c| (c.uuid.as_str(), c)).collect();
    let mut newest: BTreeMap<String, &Link> = BTreeMap::new();
    // A link to a deleted collection is ignored.
    let is_there = |link: &&Link| known.contains_key(link.head_uuid.as_str());
    for link in names.iter().filter(is_there) {
        let short = link.name.parse::<ImageName>();
        let name = short.map_or_else(|_| link.name.clone(), |name| name.to_string());
        let entry = newest.entry(name).or_insert(link);
        if stamp(link) > stamp(entry) {
            *entry = link;
        }
    }
    let mut listed: Vec<ListedImage> = newest
        .into_iter()
        .map(|(name, link)| {
            let (name, tag) = name.rsplit_once(':').unwrap_or((&name, ""));
            let collection = known.get(link.head_uuid.as_str());
            ListedImage {
                name: name.to_owned(),
                tag: tag.to_owned(),
                image: (*ids.get(link.head_uuid.as_str()).unwrap_or(&"")).to_owned(),
                collection: link.head_uuid.clone(),
                portable_data_hash: collection
                    .and_then(|c| c.portable_data_hash.as_ref())
                    .map(ToString::to_string),
                size: collection.map(|c| c.file_size_total),
                added: link.created_at,
                is_believed: is_believed(link),
            }
        })
        .collect();
    listed.sort_by_key(|image| std::cmp::Reverse(image.added));
    listed
}

/// A name of the image in a collection, if it is one.
pub async fn name_of(client: &Client, collection: &str) -> Result<Option<String>, CliError> {
    let images = list(client).await?;
    let image = images.iter().find(|image| image.collection == collection);
    Ok(image.map(|image| format!("{}:{}", image.name, image.tag)))
}

/// Value of `container_image`: the portable data hash of a collection, else the name unchanged.
pub async fn container_image(client: &Client, image: &str) -> Result<String, CliError> {
    if CollectionUuid::parse(image).is_err() {
        return short_name(client, image).await;
    }
    let collection = client.collection(image).await;
    let collection = collection.map_err(CliError::of_collection(image))?;
    let pdh = collection.portable_data_hash.map(|pdh| pdh.to_string());
    pdh.ok_or_else(|| CliError::NoCollection(image.to_owned()))
}

/// Maximum number of other tags that are named.
const MAX_OTHERS: usize = 5;

/// The name in Docker's short form, unless the server has the image under the long one.
async fn short_name(client: &Client, image: &str) -> Result<String, CliError> {
    let Ok(name) = image.parse::<ImageName>() else {
        return Ok(image.to_owned());
    };
    let is_shortened = !image.starts_with(&name.repository);
    match is_shortened && !is_linked(client, &[image.to_owned()]).await? {
        true => Ok(name.to_string()),
        false => Ok(image.to_owned()),
    }
}

/// Whether an image has one of these names or hashes.
async fn is_linked(client: &Client, names: &[String]) -> Result<bool, CliError> {
    let query = Query::new()
        .filter("link_class", "in", [NAME_LINK_CLASS, HASH_LINK_CLASS])
        .filter("name", "in", names)
        .limit(1);
    let page = client.page::<Link>("links", &query).await?;
    Ok(!page.items.is_empty())
}

/// Checks that the server has the image, before inputs are uploaded.
pub async fn check_exists(client: &Client, image: &str) -> Result<(), CliError> {
    if Pdh::parse(image).is_ok() {
        let found = client.collection(image).await.map(drop);
        return found.map_err(CliError::of_collection(image));
    }
    let mut names = vec![
        image.to_owned(),
        format!("sha256:{}", image.trim_start_matches("sha256:")),
    ];
    names.extend(image.parse::<ImageName>().map(|name| name.to_string()));
    match is_linked(client, &names).await? {
        true => Ok(()),
        false => Err(missing(client, image).await),
    }
}

/// The error for a name that no image has, with the images that differ by their tag alone.
pub async fn missing(client: &Client, image: &str) -> CliError {
    let parsed = image.parse::<ImageName>();
    let repository = parsed.map(|name| name.repository).unwrap_or_default();
    // An error is ignored: the others are only a hint.
    let images = list(client).await.unwrap_or_default();
    let others = images.iter().filter(|image| image.name == repository);
    let others: Vec<String> = others
        .map(|image| format!("{}:{}", image.name, image.tag))
        .take(MAX_OTHERS)
        .collect();
    CliError::NoImage {
        name: image.to_owned(),
        others: match others.is_empty() {
            true => String::new(),
            false => format!(" (there is {})", others.join(", ")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_links_with_one_name_the_newest_with_a_collection_counts() {
        let owned = |owner: &str, n: u32, name: &str, head: &str, stamp: &str| -> Link {
            serde_json::from_value(json!({
                "owner_uuid": owner,
                "uuid": format!("zzzzz-o0j2j-{n:015}"), "link_class": NAME_LINK_CLASS, "name": name,
                "head_uuid": head, "properties": {"image_timestamp": stamp},
                "created_at": format!("2026-01-0{n}T00:00:00Z"),
            }))
            .unwrap()
        };
        let link = |n, name, head, stamp| owned("me", n, name, head, stamp);
        let collections: Vec<Collection> = ["c1", "c2"]
            .iter()
            .map(|uuid| {
                serde_json::from_value(json!({"uuid": uuid, "file_size_total": 5})).unwrap()
            })
            .collect();
        let names = [
            link(1, "tool:1", "c1", "2026-01-01"),
            link(2, "tool:1", "c2", "2026-01-02"),
            link(3, "tool:1", "gone", "2026-01-03"),
            link(4, "host:1/tool:2", "c1", "2026-01-04"),
            link(1, "docker.io/tool:1", "c1", "2026-01-01"),
            owned("another", 5, "tool:1", "c1", "9999-01-01"),
        ];
        let ids = BTreeMap::from([("c1", "sha256:1"), ("c2", "sha256:2")]);
        let got: Vec<(String, String, String)> =
            newest_of_each(&names, &["me".to_owned()], &ids, &collections)
                .into_iter()
                .map(|l| (l.name, l.tag, l.image))
                .collect();
        let row = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
        assert_eq!(
            got,
            [
                row("host:1/tool", "2", "sha256:1"),
                row("tool", "1", "sha256:2")
            ]
        );
    }
}
