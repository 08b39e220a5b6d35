//! Images on the server: collections with one archive each, and the links that name them.

use std::collections::BTreeMap;
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

use super::{ImageError, ImageName, Packed};
use crate::collection_name;
use crate::failure::Failure;

/// Class of the links that say which image a collection holds.
const HASH: &str = "docker_image_hash";
/// Class of the links that give it names.
const NAME: &str = "docker_image_repo+tag";
/// Between the packing thread and the upload.
const PIPE: usize = 1 << 20;

/// An image as it is listed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Listed {
    pub name: String,
    pub tag: String,
    /// `sha256:…`.
    pub image: String,
    pub collection: String,
    pub portable_data_hash: Option<String>,
    pub size: Option<u64>,
    pub added: Option<Timestamp>,
}

/// The collection that holds an image already, if this token can read one.
pub async fn existing(client: &Client, id: &str) -> Result<Option<Collection>, Failure> {
    let query =
        Query::new()
            .filter("link_class", "=", HASH)
            .filter("name", "=", format!("sha256:{id}"));
    let links = client
        .all::<Link>("links", query, |l| l.uuid.as_str())
        .await?;
    for link in links {
        match client.collection(&link.head_uuid).await {
            Ok(collection) => return Ok(Some(collection)),
            // Deleted since, or somebody else's.
            Err(error) if error.is_not_found() || error.is_denied() => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

/// Stores the archive as a collection with one file, and says which image it is.
pub async fn store(
    client: &Client,
    image: Packed,
    name: &ImageName,
    bar: &ProgressBar,
) -> Result<Collection, Failure> {
    let id = image.id.clone();
    let keep = client.keep(client.keep_options().await?).await?;
    let (from_thread, to_us) = tokio::io::duplex(PIPE);
    let packing = tokio::task::spawn_blocking(move || {
        let mut out = std::io::BufWriter::with_capacity(PIPE / 4, SyncIoBridge::new(from_thread));
        image.write(&mut out)?;
        out.flush().map_err(ImageError::Pack)
    });
    let mut writer = CollectionWriter::new(keep);
    let uploaded = writer
        .put_reader(&format!("sha256:{id}.tar"), bar.wrap_async_read(to_us))
        .await;
    // The reason why reading ended early is the packing's, so its word comes first, unless it only lost its reader.
    let packed = packing.await.map_err(|_| ImageError::Stopped)?;
    uploaded?;
    packed?;
    let manifest = writer.finish().await?;
    let title = collection_name::from_text(&format!("Docker image {name} sha256:{}", &id[..12]));
    let collection = client
        .create_collection(json!({
            "name": title,
            "manifest_text": manifest.to_string(),
            "properties": {"docker-image-repo-tag": name.to_string()},
        }))
        .await?;
    link(client, HASH, &format!("sha256:{id}"), &collection).await?;
    Ok(collection)
}

/// Gives the image in `collection` a name; what had it before keeps its other names.
pub async fn tag(
    client: &Client,
    name: &ImageName,
    collection: &Collection,
) -> Result<(), Failure> {
    link(client, NAME, &name.to_string(), collection).await
}

async fn link(
    client: &Client,
    class: &str,
    name: &str,
    collection: &Collection,
) -> Result<(), Failure> {
    // Of several links with one name the newest by this time counts; so adding an image is what moves its name.
    let attributes = json!({
        "link_class": class, "name": name, "head_uuid": collection.uuid,
        "properties": {"image_timestamp": Timestamp::now().to_string()},
    });
    let call = Call::post("links", json!({"link": attributes}));
    client.send::<Value>(call).await?;
    Ok(())
}

/// Every named image, newest first; of several with one name only the one that counts.
pub async fn list(client: &Client) -> Result<Vec<Listed>, Failure> {
    let links = |class: &str| {
        let query = Query::new().filter("link_class", "=", class);
        client.all::<Link>("links", query, |l| l.uuid.as_str())
    };
    let (names, hashes) = tokio::try_join!(links(NAME), links(HASH))?;
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
    Ok(newest_of_each(&names, &ids, &collections))
}

fn newest_of_each(
    names: &[Link],
    ids: &BTreeMap<&str, &str>,
    collections: &[Collection],
) -> Vec<Listed> {
    let stamp = |link: &Link| {
        let said = link
            .properties
            .get("image_timestamp")
            .and_then(Value::as_str);
        (said.unwrap_or_default().to_owned(), link.created_at)
    };
    let known: BTreeMap<&str, &Collection> =
        collections.iter().map(|c| (c.uuid.as_str(), c)).collect();
    let mut newest: BTreeMap<&str, &Link> = BTreeMap::new();
    // A name whose collection is gone names nothing.
    for link in names
        .iter()
        .filter(|l| known.contains_key(l.head_uuid.as_str()))
    {
        let entry = newest.entry(link.name.as_str()).or_insert(link);
        if stamp(link) > stamp(entry) {
            *entry = link;
        }
    }
    let mut listed: Vec<Listed> = newest
        .into_values()
        .map(|link| {
            let (name, tag) = link.name.rsplit_once(':').unwrap_or((&link.name, ""));
            let collection = known.get(link.head_uuid.as_str());
            Listed {
                name: name.to_owned(),
                tag: tag.to_owned(),
                image: (*ids.get(link.head_uuid.as_str()).unwrap_or(&"")).to_owned(),
                collection: link.head_uuid.clone(),
                portable_data_hash: collection
                    .and_then(|c| c.portable_data_hash.as_ref())
                    .map(ToString::to_string),
                size: collection.map(|c| c.file_size_total),
                added: link.created_at,
            }
        })
        .collect();
    listed.sort_by_key(|image| std::cmp::Reverse(image.added));
    listed
}

/// What to send as `container_image`: the content's name for a collection, else as it is. The server looks it up.
pub async fn reference(client: &Client, image: &str) -> Result<String, Failure> {
    if CollectionUuid::parse(image).is_err() {
        return Ok(image.to_owned());
    }
    let missing = || Failure::NoCollection(image.to_owned());
    match client.collection(image).await {
        Ok(collection) => collection
            .portable_data_hash
            .map(|pdh| pdh.to_string())
            .ok_or_else(missing),
        Err(error) if error.is_not_found() => Err(missing()),
        Err(error) => Err(error.into()),
    }
}

/// Whether the server knows the image, asked before something large is uploaded for it.
pub async fn check(client: &Client, image: &str) -> Result<(), Failure> {
    if Pdh::parse(image).is_ok() {
        return match client.collection(image).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_not_found() => Err(Failure::NoCollection(image.to_owned())),
            Err(error) => Err(error.into()),
        };
    }
    let mut names = vec![
        image.to_owned(),
        format!("sha256:{}", image.trim_start_matches("sha256:")),
    ];
    names.extend(image.parse::<ImageName>().map(|name| name.to_string()));
    let query = Query::new()
        .filter("link_class", "in", [NAME, HASH])
        .filter("name", "in", names)
        .limit(1);
    let page = client.page::<Link>("links", &query).await?;
    match page.items.is_empty() {
        true => Err(Failure::NoImage(image.to_owned())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_links_with_one_name_the_newest_with_a_collection_counts() {
        let link = |n: u32, name: &str, head: &str, stamp: &str| -> Link {
            serde_json::from_value(json!({
                "uuid": format!("zzzzz-o0j2j-{n:015}"), "link_class": NAME, "name": name,
                "head_uuid": head, "properties": {"image_timestamp": stamp},
                "created_at": format!("2026-01-0{n}T00:00:00Z"),
            }))
            .unwrap()
        };
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
        ];
        let ids = BTreeMap::from([("c1", "sha256:1"), ("c2", "sha256:2")]);
        let got: Vec<(String, String, String)> = newest_of_each(&names, &ids, &collections)
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
