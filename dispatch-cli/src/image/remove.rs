//! Removes the name of an image, and the image with its last name; and names it again when it is
//! taken out of the trash.

use std::collections::BTreeSet;

use arvados_client::Client;
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::manifest::Manifest;
use arvados_client::records::Link;
use serde_json::{Value, json};

use super::ImageName;
use super::store::{self, HASH_LINK_CLASS, NAME_LINK_CLASS};
use crate::collection;
use crate::delete::delete;
use crate::error::CliError;
use crate::job::Job;
use crate::jobs;

/// Removes the user's image of this name. Returns whether the image is in the trash now; else it
/// has other names, and only this one is gone.
pub async fn remove(client: &Client, name: &ImageName) -> Result<bool, CliError> {
    let user = client.current_user().await?.uuid.to_string();
    let text = name.to_string();
    let spellings = name.spellings();
    let own = Query::new()
        .filter("link_class", "=", NAME_LINK_CLASS)
        .filter("name", "in", &spellings)
        .filter("owner_uuid", "=", &user);
    let own = store::links(client, own).await?;
    if own.is_empty() {
        let of_others = store::list(client).await?;
        return Err(match of_others.iter().any(|image| image.has_name(name)) {
            true => CliError::ImageOfAnother(text),
            false => store::missing(client, &text).await,
        });
    }
    let mut is_image_removed = false;
    let heads: BTreeSet<&str> = own.iter().map(|link| link.head_uuid.as_str()).collect();
    for head in heads {
        let of_image = |class| {
            Query::new()
                .filter("link_class", "=", class)
                .filter("head_uuid", "=", head)
        };
        let all_names = store::links(client, of_image(NAME_LINK_CLASS)).await?;
        let is_own = |link: &Link| spellings.contains(&link.name) && is_of(link, &user);
        if all_names.iter().all(is_own) {
            check_unused(client, head, name).await?;
            remember_name(client, head, &text).await?;
            let hashes = of_image(HASH_LINK_CLASS).filter("owner_uuid", "=", &user);
            for hash in store::links(client, hashes).await? {
                delete(client, &format!("links/{}", hash.uuid)).await?;
            }
            delete(client, &format!("collections/{head}")).await?;
            is_image_removed = true;
        }
        // The name last: if this is interrupted, the image is still there to be removed again.
        for link in own.iter().filter(|link| link.head_uuid == head) {
            delete(client, &format!("links/{}", link.uuid)).await?;
        }
    }
    Ok(is_image_removed)
}

/// Writes the last name of an image into its collection. If the server does not take it, the image
/// comes back with its first name.
async fn remember_name(client: &Client, uuid: &str, name: &str) -> Result<(), CliError> {
    let collection = match client.collection(uuid).await {
        Err(error) if error.is_not_found() => return Ok(()),
        collection => collection?,
    };
    // An update replaces all of them.
    let mut properties = collection.properties;
    if properties.get(store::NAME_PROPERTY) == Some(&name.into()) {
        return Ok(());
    }
    match properties.as_object_mut() {
        Some(properties) => drop(properties.insert(store::NAME_PROPERTY.to_owned(), name.into())),
        None => properties = json!({store::NAME_PROPERTY: name}),
    }
    let change = json!({"collection": {"properties": properties}});
    let call = Call::put(format!("collections/{uuid}"), change);
    // An error is ignored: a full disk must not keep the image from being removed.
    let _ = client.send::<Value>(call).await;
    Ok(())
}

/// An image that was taken out of the trash.
#[derive(Debug, PartialEq, Eq)]
pub enum Restored {
    /// It has its name again.
    Named(ImageName),
    /// Another image has its name meanwhile.
    NameTaken(ImageName),
}

/// Names the image in a collection that was taken out of the trash. `None` if there is none in it.
pub async fn name_again(client: &Client, uuid: &str) -> Result<Option<Restored>, CliError> {
    let collection = client.collection(uuid).await?;
    let name = collection.properties.get(store::NAME_PROPERTY);
    let name = name.and_then(Value::as_str).map(str::parse::<ImageName>);
    let Some(Ok(name)) = name else {
        return Ok(None);
    };
    let manifest = Manifest::parse(&collection.manifest_text).map_err(|source| {
        let collection = uuid.to_owned();
        CliError::Manifest { collection, source }
    })?;
    let files: Vec<_> = manifest.files().collect();
    let hash = match files.as_slice() {
        [file] => file.path.strip_suffix(".tar"),
        _ => None,
    };
    let Some(hash) = hash.filter(|hash| hash.starts_with("sha256:")) else {
        return Ok(None);
    };
    let taken = store::list(client).await?;
    let is_taken = |image: &store::ListedImage| image.collection != uuid && image.has_name(&name);
    if taken.iter().any(is_taken) {
        return Ok(Some(Restored::NameTaken(name)));
    }
    store::link(client, HASH_LINK_CLASS, hash, &collection).await?;
    store::tag(client, &name.to_string(), &collection).await?;
    Ok(Some(Restored::Named(name)))
}

fn is_of(link: &Link, user: &str) -> bool {
    link.extra.get("owner_uuid").and_then(Value::as_str) == Some(user)
}

/// Fails if a job that has not ended needs the image.
async fn check_unused(client: &Client, uuid: &str, name: &ImageName) -> Result<(), CliError> {
    let pdh = collection::portable_data_hash(client, uuid).await?;
    let open = jobs::open(client).await?;
    // The request has what the user wrote, and the container the content that it means.
    let needs_it = |job: &&Job| {
        let written = &job.request.container_image;
        let container = job.container.as_ref();
        let content = container.map(|c| c.container_image.clone());
        let is_name = written.parse().is_ok_and(|image: ImageName| image == *name);
        written == uuid || is_name || pdh.is_some() && content == pdh
    };
    let user = open.iter().find(needs_it);
    match user.map(Job::name) {
        Some(job) => Err(CliError::ImageInUse {
            image: name.to_string(),
            job,
        }),
        None => Ok(()),
    }
}
