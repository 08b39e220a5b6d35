//! JSON of records in responses.

use serde_json::{Map, Value, json};

use super::call::Reply;
use crate::record::Record;
use crate::record::field::Field;
use crate::schema::{Attr, Resource};

/// The reply with one record. With `select`, it has exactly the selected attributes.
pub fn record(
    resource: &'static Resource,
    record: Record,
    select: Option<&[&'static Attr]>,
) -> Reply {
    let etag = record.etag();
    let body = match select {
        Some(selected) => take_attributes(record, selected.iter().copied()),
        None => all_attributes(resource, record, |_| true),
    };
    Reply {
        body: Value::Object(body),
        etag: Some(etag),
    }
}

/// The reply with a list of records or other items.
pub fn list(
    kind: &str,
    (offset, limit): (Option<i64>, Option<i64>),
    items: Vec<Value>,
    available: Option<i64>,
) -> Value {
    let mut body = json!({
        "kind": kind, "etag": "", "self_link": "", "offset": offset, "limit": limit,
    });
    // Assigned, because the macro would copy every record.
    body["items"] = Value::Array(items);
    if let Some(available) = available {
        body["items_available"] = json!(available);
    }
    body
}

/// One item of a list, always with its kind and etag.
pub fn list_item(
    resource: &'static Resource,
    record: Record,
    select: Option<&[&'static Attr]>,
) -> Value {
    let Some(selected) = select else {
        return Value::Object(all_attributes(resource, record, |attr| !attr.bulky));
    };
    let etag = record.0.contains_key("row_version").then(|| record.etag());
    let mut body = take_attributes(record, selected.iter().copied());
    body.insert("kind".into(), json!(resource.kind));
    if let Some(etag) = etag {
        body.insert("etag".into(), json!(etag));
    }
    Value::Object(body)
}

/// Moves the wanted attributes out of the record, because copying long lists is slow.
fn take_attributes(
    mut record: Record,
    wanted: impl Iterator<Item = &'static Attr>,
) -> Map<String, Value> {
    wanted
        .map(|attr| {
            let taken = record.0.remove(attr.name);
            (
                attr.name.to_owned(),
                taken.map_or(Value::Null, Field::into_value),
            )
        })
        .collect()
}

fn all_attributes(
    resource: &'static Resource,
    record: Record,
    show: impl Fn(&Attr) -> bool,
) -> Map<String, Value> {
    let etag = record.etag();
    let attributes = resource.public_attrs().chain(resource.computed);
    let mut body = take_attributes(record, attributes.filter(|attr| show(attr)));
    body.insert("kind".into(), json!(resource.kind));
    body.insert("etag".into(), json!(etag));
    if resource.table == "container_requests" {
        // As in Arvados, always present although the value is never shown.
        body.insert("runtime_token".into(), json!(""));
    }
    body
}
