//! Finds the collection of a container image by name, image id or content hash.

use std::collections::HashSet;

use rusqlite::ToSql;

use crate::auth::{Access, Caller, permission};
use crate::collection::store;
use crate::db::rows;
use crate::db::trash;
use crate::emulation::Emulate;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{COLLECTIONS, LINKS, USERS};
use crate::store::transaction::Tx;

/// Maximum number of links that are looked at of one user: each takes some queries.
const MAX_LINKS: usize = 100;
const LINK_CLASSES: [&str; 2] = ["docker_image_repo+tag", "docker_image_hash"];
const NEWEST_FIRST: &str = "coalesce(json_extract(properties, '$.image_timestamp'), '') DESC, \
                            created_at DESC, uuid DESC";
const OF_CALLER: &str = "modified_by_user_uuid = ?3";
const OF_ADMINS: &str = "modified_by_user_uuid IN (SELECT uuid FROM users WHERE is_admin)";

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
    let bare = image.trim_start_matches("sha256:");
    let links = |class, name: &str| image_links(tx, caller, class, name);
    let [by_name, by_hash] = LINK_CLASSES;
    let named = links(by_name, &with_tag(image))?;
    let hashed = links(by_hash, bare)?;
    let prefixed = links(by_hash, &format!("sha256:{bare}"))?;
    let mut looked_at = HashSet::new();
    let mut changed = None;
    for link in named.iter().chain(&hashed).chain(&prefixed) {
        // Many links of one user to one collection, say in the trash, cost as much as one.
        let means = [
            "owner_uuid",
            "modified_by_user_uuid",
            "head_uuid",
            "head_pdh",
        ]
        .map(|name| link.text(name));
        if !looked_at.insert(means) || !may_name_images(tx, caller, link)? {
            continue;
        }
        match pdh_of_link(tx, caller, link)? {
            Meaning::Content(pdh) => return Ok(pdh),
            Meaning::Changed => changed = changed.or(Some(link.text("head_uuid"))),
            Meaning::Nothing => (),
        }
    }
    Err(changed.map_or_else(missing, |collection| {
        ApiError::invalid(format!(
            "docker image {image:?} not found: collection {collection} has been changed since it \
             got this name, and its former content is gone; give the name again"
        ))
    }))
}

/// Remembers the content of the collection that a new image link names. Whoever may write the
/// collection may put another program into it, but that does not get the name.
pub fn pin(tx: &Tx<'_>, old: &Record, link: &mut Record) -> Result<()> {
    let means = |link: &Record| ["link_class", "head_uuid"].map(|name| link.text(name).to_owned());
    if means(old) != means(link) {
        let is_image = LINK_CLASSES.contains(&link.text("link_class"));
        let head = match is_image {
            true => rows::fetch_brief(tx.conn, &COLLECTIONS, link.text("head_uuid"))?,
            false => None,
        };
        let pdh = head.map(|head| head.get("portable_data_hash").clone());
        link.set("head_pdh", pdh.unwrap_or_default());
    }
    Ok(())
}

/// What an image link means.
enum Meaning {
    /// This portable data hash.
    Content(String),
    /// Its collection has another content now.
    Changed,
    Nothing,
}

/// Whether the caller takes the name of an image from this link: one that the caller or an
/// administrator wrote, to something of their own. Any other user could give a known name to
/// another program, also in a project that both may change.
fn may_name_images(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<bool> {
    if tx.config.emulate.is_arvados() {
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

/// Image links with this name, newest first. Of the caller's and of the administrators' the newest
/// count, so that many of one user slow no write of others.
fn image_links(tx: &Tx<'_>, caller: &Caller, class: &str, name: &str) -> Result<Vec<Record>> {
    let links = match tx.config.emulate {
        Emulate::Arvados3 => newest_links("?3 IS NOT NULL"),
        Emulate::None => {
            let (own, admins) = (newest_links(OF_CALLER), newest_links(OF_ADMINS));
            format!("SELECT * FROM ({own}) UNION ALL SELECT * FROM ({admins})")
        }
    };
    let clause = format!("uuid IN ({links}) ORDER BY {NEWEST_FIRST}");
    let params: [&dyn ToSql; 3] = [&class, &name, &caller.user_uuid];
    rows::find(tx.conn, &LINKS, &clause, &params)
}

/// Statement for the newest links of the name `?2` by some writers; the index `links_image` has
/// their order.
fn newest_links(writers: &str) -> String {
    format!(
        "SELECT uuid FROM links WHERE link_class = ?1 AND name = ?2 AND {writers} \
         ORDER BY {NEWEST_FIRST} LIMIT {MAX_LINKS}"
    )
}

fn pdh_of_link(tx: &Tx<'_>, caller: &Caller, link: &Record) -> Result<Meaning> {
    let of_content = |pdh: &str, otherwise| {
        let found = store::find_by_pdh(tx.conn, caller, pdh, false)?;
        Ok(found.map_or(otherwise, |_| Meaning::Content(pdh.to_owned())))
    };
    let head = link.text("head_uuid");
    if is_pdh(head) {
        return of_content(head, Meaning::Nothing);
    }
    let found = Access::new(tx.conn, caller).find_brief(&COLLECTIONS, head)?;
    let Some(found) = found else {
        return Ok(Meaning::Nothing);
    };
    if trash::is_in_trash(tx.conn, &found, &tx.now)? {
        return Ok(Meaning::Nothing);
    }
    let pinned = link.text("head_pdh");
    match found.text("portable_data_hash") {
        same if same == pinned || tx.config.emulate.is_arvados() => {
            Ok(Meaning::Content(same.to_owned()))
        }
        _ => of_content(pinned, Meaning::Changed),
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

    /// Whoever makes 50,000 links of a name must not hold up the writer.
    #[test]
    fn the_newest_links_are_found_in_the_order_of_an_index() {
        let dir = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&dir.path().join("state.db")).unwrap();
        let plan = |writers: &str| -> Vec<String> {
            let sql = format!("EXPLAIN QUERY PLAN {}", newest_links(writers));
            let mut statement = connection.prepare(&sql).unwrap();
            let count = statement.parameter_count();
            let params = rusqlite::params_from_iter(["x", "y", "z"].into_iter().take(count));
            let steps = statement.query_map(params, |row| row.get(3)).unwrap();
            steps.map(|step| step.unwrap()).collect()
        };
        let of_caller = plan(OF_CALLER);
        let seek = "links_image (link_class=? AND name=? AND modified_by_user_uuid=?)";
        assert_eq!(of_caller.len(), 1, "a sort: {of_caller:?}");
        assert!(of_caller[0].contains(seek), "{of_caller:?}");
        let of_admins = plan(OF_ADMINS).join(" ");
        assert!(of_admins.contains(seek), "{of_admins}");
    }

    #[test]
    fn the_tag_defaults_to_latest() {
        assert_eq!(with_tag("busybox"), "busybox:latest");
        assert_eq!(with_tag("busybox:1.36"), "busybox:1.36");
        assert_eq!(with_tag("host:5000/busybox"), "host:5000/busybox:latest");
    }
}
