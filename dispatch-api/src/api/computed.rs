//! Attributes that are computed for the caller when a record is shown: what the caller may do with
//! it, and what follows from stored attributes.

use rusqlite::Connection;
use serde_json::json;

use crate::auth::Access;
use crate::auth::Identity;
use crate::error::Result;
use crate::record::Record;
use crate::schema::{self, Attr, LINKS, Resource, USERS};

/// The record with all of them.
pub fn with(
    connection: &Connection,
    caller: &Identity,
    resource: &'static Resource,
    record: Record,
) -> Result<Record> {
    let mut records = [record];
    add(connection, caller, resource, None, &mut records)?;
    let [record] = records;
    Ok(record)
}

/// Adds them to records, if they are selected. Those that this server does not know, such as
/// `frozen_by_uuid`, stay null.
pub fn add(
    connection: &Connection,
    caller: &Identity,
    resource: &'static Resource,
    select: Option<&[&'static Attr]>,
    records: &mut [Record],
) -> Result<()> {
    let is_selected = |attr: &Attr| {
        select.is_none_or(|selected| selected.iter().any(|other| other.name == attr.name))
    };
    if !resource.computed.iter().any(is_selected) {
        return Ok(());
    }
    if resource.table == LINKS.table {
        for link in records {
            let kind_of = |end: &str| schema::by_uuid(link.text(end)).map(|end| end.kind);
            let (head, tail) = (kind_of("head_uuid"), kind_of("tail_uuid"));
            link.set("head_kind", head).set("tail_kind", tail);
        }
        return Ok(());
    }
    let rights = Access::new(connection, caller).rights(records)?;
    for (record, (can_write, can_manage)) in records.iter_mut().zip(rights) {
        record
            .set("can_write", can_write)
            .set("can_manage", can_manage);
        if resource.table == USERS.table {
            let name = format!("{} {}", record.text("first_name"), record.text("last_name"));
            let writers = json!([record.uuid(), record.text("owner_uuid")]);
            record
                .set("full_name", name.trim())
                .set("is_invited", true)
                .set("writable_by", writers);
        }
    }
    Ok(())
}
