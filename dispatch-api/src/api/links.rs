//! `/arvados/v1/links`: image names and permissions.

use rusqlite::types::Value as SqlValue;

use super::call::{Call, Reply};
use super::permission_link;
use super::resource::{change, get, list, list_where, write};
use super::route::Route;
use crate::auth::{Access, Caller};
use crate::container::image;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::field::Field;
use crate::record::patch;
use crate::schema::{self, LINKS};
use crate::store::transaction::Tx;

pub const ROUTES: &[Route] = &[
    Route::new("GET", "links", |call, _| list(call, &LINKS)),
    Route::new("POST", "links", create),
    Route::new("GET", "links/{}", |call, uuid| get(call, &LINKS, uuid)),
    Route::new("PUT", "links/{}", update),
    Route::new("DELETE", "links/{}", delete),
    Route::new("GET", "permissions/{}", permissions),
];

/// The permission links on a record, for who may manage it.
fn permissions(call: &Call, uuid: &str) -> Result<Reply> {
    let resource = schema::by_uuid(uuid).ok_or_else(ApiError::path_not_found)?;
    list_where(call, &LINKS, |connection, clause| {
        let record = Access::new(connection, &call.caller).require_readable(resource, uuid)?;
        Access::new(connection, &call.caller).require_manageable(&record)?;
        let head = SqlValue::Text(uuid.to_owned());
        clause.and("link_class = 'permission' AND head_uuid = ?", [head]);
        Ok(())
    })
}

fn delete(call: &Call, uuid: &str) -> Result<Reply> {
    change(call, &LINKS, uuid, |tx, caller, old| {
        Access::new(tx.conn, caller).require_linkable(&old)?;
        permission_link::delete_overlapping(tx, caller, &old)?;
        tx.delete(&LINKS, caller, &old)?;
        Ok(old)
    })
}

fn create(call: &Call, _: &str) -> Result<Reply> {
    let mut attributes = call.params.attributes(&LINKS)?;
    take_kind(&mut attributes, "head_kind", "head_uuid")?;
    take_kind(&mut attributes, "tail_kind", "tail_uuid")?;
    write(call, &LINKS, move |tx, caller| {
        let mut link = patch::create(&LINKS, &attributes, caller.is_admin)?;
        if link.some_text("link_class").is_none() {
            return Err(ApiError::invalid("Link class can't be blank"));
        }
        permission_link::check(tx, &link)?;
        Access::new(tx.conn, caller).set_owner(&mut link)?;
        Access::new(tx.conn, caller).require_linkable(&link)?;
        check_ends(tx, caller, &Record::new(), &link)?;
        image::pin(tx, &Record::new(), &mut link)?;
        match permission_link::join_existing(tx, caller, &link)? {
            Some(existing) => Ok(existing),
            None => tx.create(&LINKS, caller, link),
        }
    })
}

/// Rejects an end that is new and names no record that the caller may read. Who gets a permission
/// need not be readable.
fn check_ends(tx: &Tx<'_>, caller: &Caller, old: &Record, new: &Record) -> Result<()> {
    let ends = match new.text("link_class") {
        permission_link::CLASS => &["head_uuid"][..],
        _ => &["head_uuid", "tail_uuid"],
    };
    for end in ends.iter().filter(|end| old.get(end) != new.get(end)) {
        let uuid = new.text(end);
        if let Some(resource) = schema::by_uuid(uuid)
            && Access::new(tx.conn, caller)
                .find_brief(resource, uuid)?
                .is_none()
        {
            return Err(ApiError::invalid(format!("{end} '{uuid}' not found")));
        }
    }
    Ok(())
}

/// Takes out the kind that a client says one end has. As in Arvados, it must be the right one.
fn take_kind(attributes: &mut Record, kind: &str, end: &str) -> Result<()> {
    let said = attributes.0.remove(kind).map(Field::into_value);
    let Some(said) = said.filter(|said| !said.is_null()) else {
        return Ok(());
    };
    let resource = schema::by_uuid(attributes.text(end));
    match resource.map(|resource| resource.kind) {
        actual if actual == said.as_str() => Ok(()),
        _ => Err(ApiError::invalid(format!(
            "{kind} {said} is not the kind of {end}"
        ))),
    }
}

fn update(call: &Call, uuid: &str) -> Result<Reply> {
    let attributes = call.params.attributes(&LINKS)?;
    change(call, &LINKS, uuid, move |tx, caller, old| {
        Access::new(tx.conn, caller).require_linkable(&old)?;
        let mut new = patch::apply(&LINKS, &old, &attributes, &[])?;
        permission_link::check_change(&old, &new)?;
        Access::new(tx.conn, caller).require_owners(&old, &new)?;
        Access::new(tx.conn, caller).require_linkable(&new)?;
        check_ends(tx, caller, &old, &new)?;
        image::pin(tx, &old, &mut new)?;
        permission_link::strengthen(tx, &mut new)?;
        permission_link::delete_overlapping(tx, caller, &new)?;
        tx.update(&LINKS, caller, &old, new)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::Identity;
    use crate::schema::COLLECTIONS;
    use crate::store::cluster_config::ClusterConfig;

    const IMAGE: &str = "local-4zz18-imageimageimage";
    const PDH: &str = "fb7792b6596fd12502dd132c0aba0568+40";

    /// Reading it would take all other writes as long as it is large: here it cannot be read.
    #[test]
    fn the_manifest_of_an_image_is_not_read_for_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let connection = crate::db::open(&dir.path().join("state.db")).unwrap();
        let config = ClusterConfig::for_tests();
        let tx = Tx::new(&connection, &config);
        let user = Arc::new(Identity {
            user_uuid: "local-tpzed-useruseruseruse".into(),
            ..Identity::default()
        });
        let image = Record::new()
            .with("uuid", IMAGE)
            .with("current_version_uuid", IMAGE)
            .with("portable_data_hash", PDH);
        tx.create(&COLLECTIONS, &user, image).unwrap();
        let damage = "UPDATE collections SET manifest_text = CAST(x'ff' AS TEXT)";
        connection.execute(damage, []).unwrap();

        let mut link = Record::new()
            .with("link_class", "docker_image_repo+tag")
            .with("name", "busybox:latest")
            .with("head_uuid", IMAGE);
        check_ends(&tx, &user, &Record::new(), &link).unwrap();
        image::pin(&tx, &Record::new(), &mut link).unwrap();
        assert_eq!(link.text("head_pdh"), PDH);
        tx.create(&LINKS, &user, link).unwrap();
        assert_eq!(image::resolve(&tx, &user, "busybox").unwrap(), PDH);
        assert_eq!(image::resolve(&tx, &user, PDH).unwrap(), PDH);
    }
}
