//! Finds the collection of a container image by name, image id or content hash.

use crate::auth::{Caller, permission};
use crate::collection::store;
use crate::db::rows;
use crate::db::trash;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{COLLECTIONS, LINKS, USERS};
use crate::store::transaction::Tx;

/// The portable data hash of the collection with the image `repo:tag`, image id or hash.
pub fn resolve(tx: &Tx<'_>, caller: &Caller, image: &str) -> Result<String> {
    let missing = || ApiError::invalid(format!("docker image {image:?} not found"));
    if image.is_empty() {
        return Err(ApiError::invalid("Container image can't be blank"));
    }
    if is_pdh(image) {
        return match store::find_by_pdh(tx.conn, caller, image, false)? {
            Some(_) => Ok(image.to_owned()),
            None => Err(missing()),
        };
    }
    let named = image_links(tx, "docker_image_repo+tag", &with_tag(image))?;
    let hashed = image_links(tx, "docker_image_hash", image.trim_start_matches("sha256:"))?;
    let prefixed = image_links(
        tx,
        "docker_image_hash",
        &format!("sha256:{}", image.trim_start_matches("sha256:")),
    )?;
    for link in named.iter().chain(&hashed).chain(&prefixed) {
        if !may_name_images(tx, caller, link)? {
            continue;
        }
        if let Some(pdh) = pdh_of_link(tx, caller, link)? {
            return Ok(pdh);
        }
    }
    Err(missing())
}

/// Whether the caller takes the name of an image from this link: one that the caller or an
/// administrator wrote, to something of their own. Any other user could give a known name to
/// another program, also in a project that both may change.
fn may_name_images(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<bool> {
    if !tx.config.rules.references_guarded {
        return Ok(true);
    }
    let owners = permission::owners(tx.conn, link.text("owner_uuid"))?;
    let owner = owners.last().map(String::as_str).unwrap_or_default();
    for user in [owner, link.text("modified_by_user_uuid")] {
        let is_admin = |user: Record| user.bool("is_admin");
        if user != caller.user_uuid && !tx.fetch(&USERS, user)?.is_some_and(is_admin) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Image links with this name, newest first.
fn image_links(tx: &Tx<'_>, class: &str, name: &str) -> Result<Vec<Record>> {
    rows::find(
        tx.conn,
        &LINKS,
        "link_class = ?1 AND name = ?2 \
         ORDER BY coalesce(json_extract(properties, '$.image_timestamp'), '') DESC, created_at DESC, uuid DESC",
        &[&class, &name],
    )
}

fn pdh_of_link(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<Option<String>> {
    let head = link.text("head_uuid");
    if is_pdh(head) {
        return Ok(store::find_by_pdh(tx.conn, caller, head, false)?.map(|_| head.to_owned()));
    }
    match permission::find_readable(tx.conn, &COLLECTIONS, caller, head)? {
        Some(found) if !trash::is_in_trash(tx.conn, &found, &tx.now)? => {
            Ok(Some(found.text("portable_data_hash").to_owned()))
        }
        _ => Ok(None),
    }
}

pub fn is_pdh(text: &str) -> bool {
    arvados_client::ids::Pdh::parse(text).is_ok()
}

/// Adds the default tag `latest`. A colon before the last slash is a port, not a tag.
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
