//! From what a user calls an image to the collection that holds it.

use crate::auth::{Caller, permission};
use crate::collection::store;
use crate::db::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{COLLECTIONS, LINKS};
use crate::tx::Tx;

/// The portable data hash of the collection holding the image named by `repo:tag`, image id or PDH.
pub fn resolve(tx: &Tx<'_>, who: &Caller, image: &str) -> Result<String> {
    let missing = || ApiError::invalid(format!("docker image {image:?} not found"));
    if image.is_empty() {
        return Err(ApiError::invalid("Container image can't be blank"));
    }
    if is_pdh(image) {
        return match store::find_by_pdh(tx.conn, who, image, false)? {
            Some(_) => Ok(image.to_owned()),
            None => Err(missing()),
        };
    }
    let named = links(tx, "docker_image_repo+tag", &with_tag(image))?;
    let hashed = links(tx, "docker_image_hash", image.trim_start_matches("sha256:"))?;
    let prefixed = links(
        tx,
        "docker_image_hash",
        &format!("sha256:{}", image.trim_start_matches("sha256:")),
    )?;
    for link in named.iter().chain(&hashed).chain(&prefixed) {
        if let Some(pdh) = collection_of(tx, who, link)? {
            return Ok(pdh);
        }
    }
    Err(missing())
}

/// Newest first.
fn links(tx: &Tx<'_>, class: &str, name: &str) -> Result<Vec<Record>> {
    rows::find(
        tx.conn,
        &LINKS,
        "link_class = ?1 AND name = ?2 \
         ORDER BY coalesce(json_extract(properties, '$.image_timestamp'), '') DESC, created_at DESC, uuid DESC",
        &[&class, &name],
    )
}

fn collection_of(tx: &Tx<'_>, who: &Caller, link: &Record) -> Result<Option<String>> {
    let head = link.text("head_uuid");
    if is_pdh(head) {
        return Ok(store::find_by_pdh(tx.conn, who, head, false)?.map(|_| head.to_owned()));
    }
    let found = permission::readable(tx.conn, &COLLECTIONS, who, head)?;
    Ok(found
        .filter(|collection| !store::in_trash(collection, &tx.now))
        .map(|collection| collection.text("portable_data_hash").to_owned()))
}

pub fn is_pdh(text: &str) -> bool {
    arvados_client::ids::Pdh::parse(text).is_ok()
}

/// An image without a tag means its `latest`; a colon before the last slash is a port.
fn with_tag(image: &str) -> String {
    let tagged = image
        .rsplit_once('/')
        .map_or(image, |(_, last)| last)
        .contains(':');
    if tagged {
        image.to_owned()
    } else {
        format!("{image}:latest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_defaults_to_latest() {
        assert_eq!(with_tag("busybox"), "busybox:latest");
        assert_eq!(with_tag("busybox:1.36"), "busybox:1.36");
        assert_eq!(with_tag("host:5000/busybox"), "host:5000/busybox:latest");
    }
}
