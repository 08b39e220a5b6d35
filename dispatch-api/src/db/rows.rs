//! Converts records to rows and back, driven by the schema.

use rusqlite::types::{Value as SqlValue, ValueRef};
use rusqlite::{Connection, Row, Rows, ToSql, params_from_iter};
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::json_text;
use crate::record::Record;
use crate::record::field::Field;
use crate::schema::{Attr, AttrType, Resource};

/// The column list of a resource, in the order that [`read_row`] expects.
pub fn columns(attrs: &[&Attr]) -> String {
    let names: Vec<&str> = attrs.iter().map(|attr| attr.name).collect();
    names.join(", ")
}

/// Reads a row whose columns are exactly `attrs`.
fn read_row(row: &Row<'_>, attrs: &[&Attr]) -> Result<Record> {
    attrs
        .iter()
        .enumerate()
        .map(|(index, attr)| {
            let field = from_sql(attr, row.get_ref(index)?)?;
            Ok((attr.name.to_owned(), field))
        })
        .collect()
}

fn from_sql(attr: &Attr, stored: ValueRef<'_>) -> Result<Field> {
    let unreadable = |why: String| ApiError::BadRecord(format!("{}: {why}", attr.name));
    let utf8 = |text| str::from_utf8(text).map_err(|e| unreadable(e.to_string()));
    let value = match (attr.kind, stored) {
        (_, ValueRef::Null) => Value::Null,
        (AttrType::Bool, ValueRef::Integer(number)) => json!(number != 0),
        (AttrType::Float, ValueRef::Integer(number)) => json!(number as f64),
        (_, ValueRef::Integer(number)) => json!(number),
        (_, ValueRef::Real(number)) => json!(number),
        (AttrType::Object | AttrType::Array, ValueRef::Text(text)) => {
            return Field::from_json(utf8(text)?).map_err(|e| unreadable(e.to_string()));
        }
        (_, ValueRef::Text(text)) => json!(utf8(text)?),
        (_, ValueRef::Blob(_)) => return Err(unreadable("unexpected binary value".into())),
    };
    Ok(value.into())
}

fn to_sql(attr: &Attr, record: &Record) -> SqlValue {
    if let Some(text) = record.0.get(attr.name).and_then(Field::long_json) {
        return SqlValue::Text(text.to_owned());
    }
    let value = record.get(attr.name);
    // `Display` takes four times as long.
    let json = |value: &Value| {
        SqlValue::Text(serde_json::to_string(value).unwrap_or_else(|_| value.to_string()))
    };
    match (attr.kind, value) {
        (_, Value::Null) => SqlValue::Null,
        (AttrType::Object | AttrType::Array, other) => json(other),
        (_, Value::Bool(flag)) => SqlValue::Integer(i64::from(*flag)),
        (AttrType::Float, Value::Number(number)) => {
            SqlValue::Real(number.as_f64().unwrap_or_default())
        }
        (_, Value::Number(number)) => number.as_i64().map_or(SqlValue::Null, SqlValue::Integer),
        (_, Value::String(text)) => SqlValue::Text(text.clone()),
        (_, other) => json(other),
    }
}

/// All records that match `clause`, which is SQL of this program with bound values.
pub fn find(
    connection: &Connection,
    resource: &Resource,
    clause: &str,
    params: &[&dyn ToSql],
) -> Result<Vec<Record>> {
    find_up_to(connection, resource, clause, params, usize::MAX)
}

/// Like [`find`], but ends after the record with which values of `max_bytes` are read.
pub fn find_up_to(
    connection: &Connection,
    resource: &Resource,
    clause: &str,
    params: &[&dyn ToSql],
    max_bytes: usize,
) -> Result<Vec<Record>> {
    let attrs: Vec<&Attr> = resource.stored_attrs().collect();
    select(connection, resource, &attrs, clause, params, max_bytes)
}

fn select(
    connection: &Connection,
    resource: &Resource,
    attrs: &[&Attr],
    clause: &str,
    params: &[&dyn ToSql],
    max_bytes: usize,
) -> Result<Vec<Record>> {
    let sql = format!(
        "SELECT {} FROM {} WHERE {clause}",
        columns(attrs),
        resource.table
    );
    let mut statement = connection.prepare_cached(&sql)?;
    read_up_to(statement.query(params)?, attrs, max_bytes)
}

/// Reads rows whose columns are exactly `attrs`, up to the one with which values of `max_bytes` are
/// read.
pub fn read_up_to(mut rows: Rows<'_>, attrs: &[&Attr], max_bytes: usize) -> Result<Vec<Record>> {
    let (mut found, mut bytes) = (Vec::new(), 0);
    while bytes < max_bytes
        && let Some(row) = rows.next()?
    {
        if max_bytes < usize::MAX {
            bytes += row_bytes(row, attrs);
        }
        found.push(read_row(row, attrs)?);
    }
    Ok(found)
}

/// The size in bytes of the values of a row: as they are stored, and for JSON what each value takes
/// beside its text, once it is parsed.
fn row_bytes(row: &Row<'_>, attrs: &[&Attr]) -> usize {
    let size = |(index, attr): (usize, &&Attr)| {
        let stored = row.get_ref(index).ok()?.as_bytes().ok();
        let text = stored.unwrap_or(&[0; 8]);
        let values = match attr.kind {
            AttrType::Object | AttrType::Array => json_text::count_values(text),
            _ => 0,
        };
        Some(text.len() + values * size_of::<Value>())
    };
    attrs.iter().enumerate().filter_map(size).sum()
}

pub fn fetch(connection: &Connection, resource: &Resource, uuid: &str) -> Result<Option<Record>> {
    Ok(find(connection, resource, "uuid = ?1", &[&uuid])?.pop())
}

/// Whether an attribute is short however large the record is. Permissions, the trash and the
/// content of a collection are decided by these.
fn is_brief(attr: &&'static Attr) -> bool {
    let others = ["link_class", "is_trashed", "trash_at", "portable_data_hash"];
    attr.name.ends_with("uuid") || others.contains(&attr.name)
}

/// Like [`fetch`], but with the short attributes alone: a manifest may have 64 MiB, and what reads
/// it in the writer holds up all other writes.
pub fn fetch_brief(
    connection: &Connection,
    resource: &Resource,
    uuid: &str,
) -> Result<Option<Record>> {
    let attrs: Vec<&Attr> = resource.stored_attrs().filter(is_brief).collect();
    let by_uuid: [&dyn ToSql; 1] = [&uuid];
    let found = select(
        connection,
        resource,
        &attrs,
        "uuid = ?1",
        &by_uuid,
        usize::MAX,
    )?;
    Ok(found.into_iter().next())
}

/// Inserts a record and returns it with the defaults of the layout. Only JSON that was given is not
/// read back: it may be large, and all other writes wait meanwhile.
pub fn insert(connection: &Connection, resource: &Resource, mut record: Record) -> Result<Record> {
    let given: Vec<&Attr> = resource
        .stored_attrs()
        .filter(|attr| record.0.contains_key(attr.name))
        .collect();
    let marks = vec!["?"; given.len()].join(", ");
    let sql = format!(
        "INSERT INTO {} ({}) VALUES ({marks})",
        resource.table,
        columns(&given)
    );
    let values = given.iter().map(|attr| to_sql(attr, &record));
    connection
        .prepare_cached(&sql)?
        .execute(params_from_iter(values))
        .map_err(|error| name_conflict(error, resource, &record))?;
    let is_kept = |attr: &Attr| {
        matches!(attr.kind, AttrType::Object | AttrType::Array) && !record.get(attr.name).is_null()
    };
    let others: Vec<&Attr> = resource
        .stored_attrs()
        .filter(|attr| !is_kept(attr))
        .collect();
    let sql = format!(
        "SELECT {} FROM {} WHERE uuid = ?1",
        columns(&others),
        resource.table
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let stored = statement.query_row([record.uuid()], |row| Ok(read_row(row, &others)))??;
    record.0.extend(stored.0);
    Ok(record)
}

/// Writes the columns that differ and increments the row version.
pub fn update(
    connection: &Connection,
    resource: &Resource,
    old: &Record,
    mut new: Record,
) -> Result<Record> {
    new.set("row_version", old.int("row_version") + 1);
    let changed: Vec<&Attr> = old
        .changed_attributes(&new)
        .into_iter()
        .filter_map(|name| resource.attr(name))
        .collect();
    let assignments: Vec<String> = changed
        .iter()
        .map(|attr| format!("{} = ?", attr.name))
        .collect();
    let sql = format!(
        "UPDATE {} SET {} WHERE uuid = ?",
        resource.table,
        assignments.join(", ")
    );
    let values = changed
        .iter()
        .map(|attr| to_sql(attr, &new))
        .chain([SqlValue::Text(old.uuid().to_owned())]);
    connection
        .prepare_cached(&sql)?
        .execute(params_from_iter(values))
        .map_err(|error| name_conflict(error, resource, &new))?;
    Ok(new)
}

pub fn delete(connection: &Connection, resource: &Resource, uuid: &str) -> Result<()> {
    let sql = format!("DELETE FROM {} WHERE uuid = ?1", resource.table);
    connection.prepare_cached(&sql)?.execute([uuid])?;
    Ok(())
}

/// Converts a duplicate name to the error text that clients of Arvados match.
fn name_conflict(error: rusqlite::Error, resource: &Resource, record: &Record) -> ApiError {
    match error.sqlite_error() {
        Some(code) if code.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE => {
            ApiError::invalid(format!(
                "#<ActiveRecord::RecordNotUnique: {} \"{}\" already exists in {}>",
                resource.singular,
                record.some_text("name").unwrap_or(record.text("username")),
                record.text("owner_uuid")
            ))
        }
        _ => error.into(),
    }
}
