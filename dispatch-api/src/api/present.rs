//! Records as clients see them.

use serde_json::{Map, Value, json};

use super::Reply;
use crate::db::rows;
use crate::record::Record;
use crate::schema::{Attr, Resource};

/// One record as the answer to a request for it; a selection is exact.
pub fn single(
    resource: &'static Resource,
    record: Record,
    select: Option<&[&'static Attr]>,
) -> Reply {
    let etag = etag(&record);
    let body = match select {
        Some(selected) => take(record, selected.iter().copied()),
        None => full(resource, record, |_| true),
    };
    Reply {
        body: Value::Object(body),
        etag: Some(etag),
    }
}

/// One record in a list, with its kind and etag in any case.
pub fn item(
    resource: &'static Resource,
    record: Record,
    select: Option<&[&'static Attr]>,
) -> Value {
    let Some(selected) = select else {
        return Value::Object(full(resource, record, |attr| !attr.bulky));
    };
    let etag = record.0.contains_key("row_version").then(|| etag(&record));
    let mut body = take(record, selected.iter().copied());
    body.insert("kind".into(), json!(resource.kind));
    if let Some(etag) = etag {
        body.insert("etag".into(), json!(etag));
    }
    Value::Object(body)
}

fn etag(record: &Record) -> String {
    rows::etag(record.uuid(), record.int("row_version"))
}

/// The wanted attributes, moved out of the record: lists are long, and copies of them slow.
fn take(mut record: Record, wanted: impl Iterator<Item = &'static Attr>) -> Map<String, Value> {
    wanted
        .map(|attr| {
            record
                .0
                .remove_entry(attr.name)
                .unwrap_or_else(|| (attr.name.to_owned(), Value::Null))
        })
        .collect()
}

fn full(
    resource: &'static Resource,
    record: Record,
    show: impl Fn(&Attr) -> bool,
) -> Map<String, Value> {
    let described = match resource.table {
        "users" => describe_user(&record),
        // Never shown, and present all the same, as in the real server.
        "container_requests" => vec![("runtime_token", json!(""))],
        "groups" => vec![("is_trashed", json!(false))],
        _ => vec![],
    };
    let etag = etag(&record);
    let mut body = take(record, resource.public_attrs().filter(|attr| show(attr)));
    body.insert("kind".into(), json!(resource.kind));
    body.insert("etag".into(), json!(etag));
    for (name, value) in described {
        body.insert(name.into(), value);
    }
    body
}

fn describe_user(record: &Record) -> Vec<(&'static str, Value)> {
    let name = format!("{} {}", record.text("first_name"), record.text("last_name"));
    vec![
        ("full_name", json!(name.trim())),
        ("is_invited", json!(true)),
        ("can_write", json!(true)),
        ("can_manage", json!(true)),
        (
            "writable_by",
            json!([record.uuid(), record.text("owner_uuid")]),
        ),
    ]
}
