//! What every resource can do: be listed and be read.

use rusqlite::types::Value as SqlValue;
use serde_json::{Value, json};

use super::{Call, Reply, present};
use crate::auth::permission;
use crate::clock;
use crate::db::filter::Clause;
use crate::db::list::{self, Page};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{Attr, Resource};

/// `GET /arvados/v1/RESOURCE`.
pub fn list(
    call: &Call,
    resource: &'static Resource,
    finish: impl Fn(&mut Record),
) -> Result<Reply> {
    let params = &call.params;
    let page = Page::parse(resource, |name| params.get(name))?;
    let mut clause = Clause::default();
    clause.add_filters(resource, &params.get("filters"))?;
    clause.add_where(resource, &params.get("where"))?;
    if resource.table == "collections" && !params.flag("include_trash") {
        clause.and(
            "is_trashed = 0 AND (trash_at IS NULL OR trash_at > ?)",
            [SqlValue::Text(clock::now())],
        );
    }
    // Secrets are listed to their owner and to the system's root only, not to every administrator.
    if resource.table == "api_client_authorizations"
        && call.who.user_uuid != call.app.setting.system_user()
    {
        clause.and(
            "owner_uuid = ?",
            [SqlValue::Text(call.who.user_uuid.clone())],
        );
    }
    let found = call.app.readers.read(|connection| {
        permission::restrict(connection, resource, &call.who, &mut clause)?;
        list::run(connection, resource, &clause, &page)
    })?;
    let items: Vec<Value> = found
        .items
        .into_iter()
        .map(|mut record| {
            finish(&mut record);
            present::item(resource, record, page.select.as_deref())
        })
        .collect();
    let mut body = json!({
        "kind": resource.list_kind(),
        "etag": "",
        "self_link": "",
        "offset": page.offset,
        "limit": page.limit,
    });
    // Moved in: the macro would copy every record.
    body["items"] = Value::Array(items);
    if let Some(available) = found.available {
        body["items_available"] = json!(available);
    }
    Ok(body.into())
}

/// `GET /arvados/v1/RESOURCE/UUID`.
pub fn get(call: &Call, resource: &'static Resource, uuid: &str) -> Result<Record> {
    call.app
        .readers
        .read(|connection| permission::must_read(connection, resource, &call.who, uuid))
}

/// One record, cut down to what was selected.
pub fn show(call: &Call, resource: &'static Resource, record: &Record) -> Result<Reply> {
    let select = select(call, resource)?;
    Ok(present::single(resource, record.clone(), select.as_deref()))
}

/// On one record, attributes that do not exist are passed over unless nothing else was selected.
fn select(call: &Call, resource: &'static Resource) -> Result<Option<Vec<&'static Attr>>> {
    let given = call.params.get("select");
    let Some(names) = given.as_array() else {
        return list::parse_select(resource, &given);
    };
    let known: Vec<Value> = names
        .iter()
        .filter(|name| resource.public_attr(name.as_str().unwrap_or("")).is_some())
        .cloned()
        .collect();
    if known.is_empty() && !names.is_empty() {
        return Err(ApiError::invalid(format!("Invalid attribute(s): {given}")));
    }
    list::parse_select(resource, &Value::Array(known))
}
