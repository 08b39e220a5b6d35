//! Applies the attributes that a client sent to a record.

use std::borrow::Cow;

use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::record::field::Field;
use crate::schema::{Attr, Resource};

/// Attributes that only the server sets; values from clients are ignored.
const IGNORED_ATTRIBUTES: [&str; 3] = ["created_at", "modified_at", "modified_by_user_uuid"];

/// Returns the record with the attributes applied. `write_only` names hidden attributes that may be
/// set.
pub fn apply(
    resource: &Resource,
    old: &Record,
    attributes: &Record,
    write_only: &[&str],
) -> Result<Record> {
    let mut new = old.clone();
    for (name, field) in &attributes.0 {
        if IGNORED_ATTRIBUTES.contains(&name.as_str()) {
            continue;
        }
        let attr = resource
            .attr(name)
            .filter(|attr| !attr.hidden || write_only.contains(&attr.name))
            .ok_or_else(|| {
                ApiError::invalid(format!(
                    "#<ActiveModel::UnknownAttributeError: unknown attribute '{name}' for {}.>",
                    resource.class
                ))
            })?;
        new.0.insert(name.clone(), stored(attr, field)?);
    }
    if !old.uuid().is_empty() && old.uuid() != new.uuid() {
        return Err(ApiError::invalid("Uuid cannot be changed"));
    }
    Ok(new)
}

/// The stored form of a client's value.
pub fn stored(attr: &Attr, given: &Field) -> Result<Field> {
    Ok(match attr.coerce(given.value())? {
        Cow::Borrowed(_) => given.clone(),
        Cow::Owned(value) => value.into(),
    })
}

/// Returns a new record with the attributes of a client, which cannot choose the uuid unless it is
/// an administrator: records and links that outlived another record may name its uuid.
pub fn create(resource: &Resource, attributes: &Record, is_admin: bool) -> Result<Record> {
    let mut new = apply(resource, &Record::new(), attributes, &[])?;
    if !is_admin {
        new.0.remove("uuid");
    }
    Ok(new)
}

/// Rejects a change whose `If-Match` does not name the current etag.
pub fn check_etag(record: &Record, if_match: Option<&str>) -> Result<()> {
    let Some(wanted) = if_match else {
        return Ok(());
    };
    let current = record.etag();
    let fits = wanted.split(',').any(|tag| {
        let tag = tag.trim().trim_start_matches("W/").trim_matches('"');
        tag == "*" || tag == current
    });
    if fits {
        Ok(())
    } else {
        Err(ApiError::Stale { current })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::schema::CONTAINERS;

    fn attributes(value: Value) -> Record {
        value.as_object().cloned().unwrap().into_iter().collect()
    }

    #[test]
    fn unknown_and_hidden_attributes_are_refused_and_server_times_are_dropped() {
        let old = Record::new().with("uuid", "u").with("state", "Queued");
        for name in ["nonsense", "etag", "kind", "secret_mounts", "row_version"] {
            let given = attributes(json!({name: "x"}));
            let error = apply(&CONTAINERS, &old, &given, &[]).unwrap_err();
            assert!(
                error.to_string().contains("unknown attribute"),
                "{name}: {error}"
            );
        }
        let given = attributes(json!({"modified_at": "2026-01-01T00:00:00Z"}));
        assert_eq!(apply(&CONTAINERS, &old, &given, &[]).unwrap(), old);
    }

    #[test]
    fn what_is_stored_as_it_was_sent_is_shared() {
        let given = attributes(json!({"mounts": {"/out": {"kind": "tmp"}}, "exit_code": "7"}));
        let new = apply(&CONTAINERS, &Record::new(), &given, &[]).unwrap();
        assert!(std::ptr::eq(new.get("mounts"), given.get("mounts")));
        let mut copy = new.clone();
        copy.copy("mounts", &given);
        assert!(std::ptr::eq(copy.get("mounts"), given.get("mounts")));
        assert_eq!(new.get("exit_code"), 7);
    }

    #[test]
    fn an_unchanged_number_is_no_change() {
        let old = Record::new()
            .with("cost", 0.0)
            .with("exit_code", Value::Null);
        let given = attributes(json!({"cost": 0, "exit_code": null}));
        let new = apply(&CONTAINERS, &old, &given, &[]).unwrap();
        assert!(old.changed_attributes(&new).is_empty());
    }

    #[test]
    fn an_etag_must_match_if_given() {
        let record = Record::new().with("uuid", "u").with("row_version", 3);
        let tag = record.etag();
        check_etag(&record, None).unwrap();
        check_etag(&record, Some(&format!("\"{tag}\""))).unwrap();
        check_etag(&record, Some(&format!("\"x\", W/\"{tag}\""))).unwrap();
        check_etag(&record, Some("*")).unwrap();
        let stale = check_etag(&record, Some("\"x\"")).unwrap_err();
        assert_eq!(stale.status().as_u16(), 412);
    }
}
