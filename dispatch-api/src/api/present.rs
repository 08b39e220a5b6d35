//! Records as clients see them.

use serde_json::{Map, Value, json};

use super::Reply;
use crate::db::rows;
use crate::record::Record;
use crate::schema::{Attr, Resource};

/// One record as the answer to a request for it; a selection is exact.
pub fn single(
    resource: &'static Resource,
    record: &Record,
    select: Option<&[&'static Attr]>,
) -> Reply {
    let etag = rows::etag(record.uuid(), record.int("row_version"));
    let body = match select {
        Some(selected) => selected
            .iter()
            .map(|attr| (attr.name.to_owned(), record.get(attr.name).clone()))
            .collect(),
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
    record: &Record,
    select: Option<&[&'static Attr]>,
) -> Value {
    let mut body = match select {
        Some(selected) => selected
            .iter()
            .map(|attr| (attr.name.to_owned(), record.get(attr.name).clone()))
            .collect(),
        None => full(resource, record, |attr| !attr.bulky),
    };
    body.insert("kind".into(), json!(resource.kind));
    if record.0.contains_key("row_version") {
        body.insert(
            "etag".into(),
            json!(rows::etag(record.uuid(), record.int("row_version"))),
        );
    }
    Value::Object(body)
}

fn full(
    resource: &'static Resource,
    record: &Record,
    show: impl Fn(&Attr) -> bool,
) -> Map<String, Value> {
    let mut body: Map<String, Value> = resource
        .public_attrs()
        .filter(|attr| show(attr))
        .map(|attr| (attr.name.to_owned(), record.get(attr.name).clone()))
        .collect();
    body.insert("kind".into(), json!(resource.kind));
    body.insert(
        "etag".into(),
        json!(rows::etag(record.uuid(), record.int("row_version"))),
    );
    match resource.table {
        "users" => describe_user(record, &mut body),
        // Never shown, and present all the same, as in the real server.
        "container_requests" => {
            body.insert("runtime_token".into(), json!(""));
        }
        "groups" => {
            body.insert("is_trashed".into(), json!(false));
        }
        _ => {}
    }
    body
}

fn describe_user(record: &Record, body: &mut Map<String, Value>) {
    let name = format!("{} {}", record.text("first_name"), record.text("last_name"));
    body.insert("full_name".into(), json!(name.trim()));
    body.insert("is_invited".into(), json!(true));
    body.insert("can_write".into(), json!(true));
    body.insert("can_manage".into(), json!(true));
    body.insert(
        "writable_by".into(),
        json!([record.uuid(), record.text("owner_uuid")]),
    );
}
