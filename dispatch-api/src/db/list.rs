//! One page of a listing: filters, order, select, limit, count.

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, params_from_iter};
use serde_json::Value;

use super::filter::Clause;
use super::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{Attr, Resource};

/// The largest page, whatever the client asks for.
pub const MAX_PAGE: i64 = 1000;
const DEFAULT_PAGE: i64 = 100;
/// A page stops growing here even if fewer records than `limit` are in it.
const MAX_PAGE_BYTES: usize = 32 << 20;

/// What the client asked for, checked.
#[derive(Debug)]
pub struct Page {
    pub select: Option<Vec<&'static Attr>>,
    pub order: Vec<(&'static Attr, bool)>,
    pub limit: i64,
    pub offset: i64,
    pub count: bool,
    pub distinct: bool,
}

/// What was found; `available` only when counting was asked for.
#[derive(Debug)]
pub struct Found {
    pub items: Vec<Record>,
    pub available: Option<i64>,
}

impl Page {
    pub fn parse(resource: &'static Resource, param: impl Fn(&str) -> Value) -> Result<Page> {
        Ok(Page {
            select: parse_select(resource, &param("select"))?,
            order: parse_order(resource, &param("order")),
            limit: whole("limit", &param("limit"), DEFAULT_PAGE)?.min(MAX_PAGE),
            offset: whole("offset", &param("offset"), 0)?,
            count: match &param("count") {
                Value::Null => true,
                Value::String(text) if text == "exact" => true,
                Value::String(text) if text == "none" => false,
                other => {
                    return Err(ApiError::invalid(format!(
                        "Invalid value for count: {other}; expected exact or none"
                    )));
                }
            },
            distinct: matches!(&param("distinct"), Value::Bool(true))
                || param("distinct") == "true"
                || param("distinct") == 1,
        })
    }
}

fn whole(name: &str, given: &Value, default: i64) -> Result<i64> {
    let number = match given {
        Value::Null => Some(default),
        Value::Number(number) => number.as_i64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number.filter(|number| *number >= 0).ok_or_else(|| {
        ApiError::invalid(format!(
            "Invalid value for {name}: {given}; expected a whole number, 0 or more"
        ))
    })
}

/// The attributes named by `select`; `None` when nothing was selected.
pub fn parse_select(
    resource: &'static Resource,
    given: &Value,
) -> Result<Option<Vec<&'static Attr>>> {
    let Some(names) = given.as_array() else {
        return match given {
            Value::Null => Ok(None),
            _ => Err(ApiError::invalid(
                "select must be an array of attribute names",
            )),
        };
    };
    let mut attrs: Vec<&'static Attr> = Vec::new();
    for name in names {
        let name = name.as_str().unwrap_or_default();
        match resource.public_attr(name) {
            Some(attr) if !attrs.iter().any(|known| known.name == name) => attrs.push(attr),
            Some(_) => {}
            None if matches!(name, "kind" | "etag" | "href") => {}
            None => {
                return Err(ApiError::invalid(format!(
                    "Invalid attribute(s): [\"{name}\"]"
                )));
            }
        }
    }
    Ok(Some(attrs))
}

fn parse_order(resource: &'static Resource, given: &Value) -> Vec<(&'static Attr, bool)> {
    let joined = match given {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let parts: Vec<&str> = parts.iter().filter_map(Value::as_str).collect();
            parts.join(",")
        }
        _ => String::new(),
    };
    joined
        .split(',')
        .filter_map(|part| {
            let mut words = part.split_whitespace();
            let name = words.next()?;
            let name = name
                .strip_prefix(resource.table)
                .and_then(|rest| rest.strip_prefix('.'))
                .unwrap_or(name);
            let descending = words
                .next()
                .is_some_and(|direction| direction.eq_ignore_ascii_case("desc"));
            Some((resource.public_attr(name)?, descending))
        })
        .collect()
}

pub fn run(
    connection: &Connection,
    resource: &'static Resource,
    clause: &Clause,
    page: &Page,
) -> Result<Found> {
    let attrs = fetched(resource, page);
    let columns = rows::columns(&attrs);
    let distinct = if page.distinct { "DISTINCT " } else { "" };
    let source = format!("FROM {} WHERE {}", resource.table, clause.sql());
    let mut items = Vec::new();
    if page.limit > 0 {
        let sql = format!(
            "SELECT {distinct}{columns} {source}{} LIMIT ? OFFSET ?",
            order_by(resource, page)
        );
        let values = clause.values.iter().cloned().chain([
            SqlValue::Integer(page.limit),
            SqlValue::Integer(page.offset),
        ]);
        let mut statement = connection.prepare_cached(&sql)?;
        let mut found = statement.query(params_from_iter(values))?;
        let mut bytes = 0;
        while let Some(row) = found.next()? {
            bytes += row_bytes(row, attrs.len());
            items.push(rows::read(row, &attrs)?);
            if bytes > MAX_PAGE_BYTES {
                break;
            }
        }
    }
    let available = page
        .count
        .then(|| {
            let sql = if page.distinct {
                format!("SELECT COUNT(*) FROM (SELECT DISTINCT {columns} {source})")
            } else {
                format!("SELECT COUNT(*) {source}")
            };
            connection
                .prepare_cached(&sql)?
                .query_row(params_from_iter(clause.values.iter()), |row| row.get(0))
        })
        .transpose()?;
    Ok(Found { items, available })
}

fn row_bytes(row: &rusqlite::Row<'_>, columns: usize) -> usize {
    (0..columns)
        .filter_map(|index| row.get_ref(index).ok())
        .map(|value| value.as_bytes().map_or(8, <[u8]>::len))
        .sum()
}

/// What to read: the selection (with what its etag needs), or all that is shown plus the row version.
fn fetched(resource: &'static Resource, page: &Page) -> Vec<&'static Attr> {
    let mut attrs: Vec<&'static Attr> = match &page.select {
        Some(selected) => selected.clone(),
        None => resource.public_attrs().filter(|attr| !attr.bulky).collect(),
    };
    if page.distinct {
        return attrs;
    }
    for needed in ["uuid", "row_version", "is_trashed"] {
        if let Some(attr) = resource.attr(needed)
            && !attrs.iter().any(|known| known.name == needed)
        {
            attrs.push(attr);
        }
    }
    attrs
}

/// A complete order, so that pages neither overlap nor leave gaps.
fn order_by(resource: &'static Resource, page: &Page) -> String {
    let mut terms: Vec<String> = page
        .order
        .iter()
        .map(|(attr, descending)| format!("{}{}", attr.name, direction(*descending)))
        .collect();
    if page.distinct {
        return if terms.is_empty() {
            String::new()
        } else {
            format!(" ORDER BY {}", terms.join(", "))
        };
    }
    let mut last_descending = page.order.last().is_none_or(|(_, descending)| *descending);
    if terms.is_empty() && resource.table == "logs" {
        terms.push("id DESC".into());
        last_descending = true;
    } else if terms.is_empty() {
        terms.push("modified_at DESC".into());
    }
    // The tie-breaker runs in the direction of the last term, so that one index serves both.
    if !page.order.iter().any(|(attr, _)| attr.name == "uuid") {
        terms.push(format!("uuid{}", direction(last_descending)));
    }
    format!(" ORDER BY {}", terms.join(", "))
}

fn direction(descending: bool) -> &'static str {
    if descending { " DESC" } else { " ASC" }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::schema::CONTAINERS;

    fn page(params: Value) -> Result<Page> {
        Page::parse(&CONTAINERS, |name| params[name].clone())
    }

    #[test]
    fn order_is_made_complete_and_unknown_columns_are_ignored() {
        for (order, expected) in [
            (json!("priority desc"), " ORDER BY priority DESC, uuid DESC"),
            (json!(["created_at"]), " ORDER BY created_at ASC, uuid ASC"),
            (
                json!("nonsense desc"),
                " ORDER BY modified_at DESC, uuid DESC",
            ),
            (
                json!("state asc, uuid desc"),
                " ORDER BY state ASC, uuid DESC",
            ),
        ] {
            let page = page(json!({"order": order})).unwrap();
            assert_eq!(order_by(&CONTAINERS, &page), expected);
        }
    }

    #[test]
    fn limits_are_clamped_and_nonsense_is_refused() {
        assert_eq!(page(json!({})).unwrap().limit, 100);
        assert_eq!(page(json!({"limit": 5000})).unwrap().limit, 1000);
        assert_eq!(page(json!({"limit": "0"})).unwrap().limit, 0);
        for bad in [
            json!({"limit": -1}),
            json!({"limit": "x"}),
            json!({"count": "some"}),
        ] {
            assert_eq!(page(bad).unwrap_err().status().as_u16(), 422);
        }
    }

    #[test]
    fn hidden_attributes_cannot_be_selected() {
        let refused = page(json!({"select": ["uuid", "secret_mounts"]})).unwrap_err();
        assert_eq!(refused.status().as_u16(), 422);
    }
}
