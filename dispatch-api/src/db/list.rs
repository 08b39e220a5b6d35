//! Queries one page of a listing: filters, order, select, limit, count.

use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, Statement, params_from_iter};
use serde_json::Value;

use super::filter::Clause;
use super::rows;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{Attr, Resource};

/// Maximum number of records of a page.
pub const MAX_PAGE_SIZE: i64 = 1000;
const DEFAULT_PAGE_SIZE: i64 = 100;
/// Size in bytes at which a page ends, even if it has fewer records than `limit`
/// ([`rows::read_up_to`]).
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Maximum size in bytes of the text of a statement that is kept. The statement takes several times
/// as much.
const MAX_KEPT_SQL_BYTES: usize = 4 << 10;

/// The validated parameters of a listing.
#[derive(Debug, Default)]
pub struct PageQuery {
    pub select: Option<Vec<&'static Attr>>,
    pub order: Vec<(&'static Attr, bool)>,
    pub limit: i64,
    pub offset: i64,
    pub count: bool,
    pub distinct: bool,
}

/// The records of a page; `available` is the total, if requested.
#[derive(Debug)]
pub struct ListResult {
    pub items: Vec<Record>,
    pub available: Option<i64>,
}

impl PageQuery {
    pub fn parse(resource: &'static Resource, param: impl Fn(&str) -> Value) -> Result<PageQuery> {
        let distinct = matches!(&param("distinct"), Value::Bool(true))
            || param("distinct") == "true"
            || param("distinct") == 1;
        let select = parse_select(resource, &param("select"))?;
        if distinct && select.as_ref().is_some_and(Vec::is_empty) {
            return Err(ApiError::invalid("distinct needs an attribute in select"));
        }
        let computed = select
            .iter()
            .flatten()
            .find(|attr| resource.is_computed(attr));
        if let (true, Some(attr)) = (distinct, computed) {
            return Err(ApiError::invalid(format!(
                "distinct cannot be used with {}, which is not stored",
                attr.name
            )));
        }
        Ok(PageQuery {
            select,
            order: parse_order(resource, &param("order")),
            limit: parse_count("limit", &param("limit"), DEFAULT_PAGE_SIZE)?.min(MAX_PAGE_SIZE),
            offset: parse_count("offset", &param("offset"), 0)?,
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
            distinct,
        })
    }
}

fn parse_count(name: &str, given: &Value, default: i64) -> Result<i64> {
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

/// The attributes named by `select`; `None` without a selection.
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
        match resource.selectable_attr(name) {
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

/// A selection without the attributes that the resource does not have.
pub fn known_attributes(resource: &'static Resource, select: &Value) -> Value {
    let Value::Array(names) = select else {
        return select.clone();
    };
    let is_known = |name: &&Value| {
        let name = name.as_str();
        name.is_some_and(|name| resource.selectable_attr(name).is_some())
    };
    names.iter().filter(is_known).cloned().collect()
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
    // Only the first term of an attribute has an effect, so the clause is never long.
    let mut terms: Vec<(&'static Attr, bool)> = Vec::new();
    for part in joined.split(',') {
        let Some((attr, descending)) = parse_order_term(resource, part) else {
            continue;
        };
        if !terms.iter().any(|(known, _)| known.name == attr.name) {
            terms.push((attr, descending));
        }
    }
    terms
}

/// One term of an order; `None` for an unknown attribute.
fn parse_order_term(resource: &'static Resource, part: &str) -> Option<(&'static Attr, bool)> {
    let mut words = part.split_whitespace();
    let name = words.next()?;
    let name = name
        .strip_prefix(resource.table)
        .and_then(|rest| rest.strip_prefix('.'))
        .unwrap_or(name);
    let descending = words
        .next()
        .is_some_and(|direction| direction.eq_ignore_ascii_case("desc"));
    Some((resource.searchable_attr(name)?, descending))
}

pub fn fetch_page(
    connection: &Connection,
    resource: &'static Resource,
    clause: &Clause,
    page: &PageQuery,
) -> Result<ListResult> {
    let attrs = columns_to_fetch(resource, page);
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
        items = with_statement(connection, &sql, |statement| {
            let found = statement.query(params_from_iter(values))?;
            rows::read_up_to(found, &attrs, MAX_PAGE_BYTES)
        })?;
    }
    let available = page
        .count
        .then(|| {
            let sql = if page.distinct {
                format!("SELECT COUNT(*) FROM (SELECT DISTINCT {columns} {source})")
            } else {
                format!("SELECT COUNT(*) {source}")
            };
            with_statement(connection, &sql, |statement| {
                Ok(statement.query_row(params_from_iter(&clause.values), |row| row.get(0))?)
            })
        })
        .transpose()?;
    Ok(ListResult { items, available })
}

/// Runs a statement, and keeps it for the next time if it is short: its length is the client's
/// choice, and each connection keeps hundreds.
fn with_statement<T>(
    connection: &Connection,
    sql: &str,
    run: impl FnOnce(&mut Statement<'_>) -> Result<T>,
) -> Result<T> {
    match sql.len() <= MAX_KEPT_SQL_BYTES {
        true => run(&mut *connection.prepare_cached(sql)?),
        false => run(&mut connection.prepare(sql)?),
    }
}

/// The columns to read: the selection, else all public attributes; what the etag and computed
/// attributes need; and what tells whether a manifest is signed, which one in the trash is not.
fn columns_to_fetch(resource: &'static Resource, page: &PageQuery) -> Vec<&'static Attr> {
    let mut attrs: Vec<&'static Attr> = match &page.select {
        Some(selected) => selected.clone(),
        None => resource.public_attrs().filter(|attr| !attr.bulky).collect(),
    };
    let mut needed = Vec::new();
    if !page.distinct {
        needed.extend(["uuid", "row_version"]);
    }
    if attrs
        .iter()
        .any(|attr| attr.name.ends_with("manifest_text"))
    {
        needed.extend(["manifest_text", "is_trashed", "trash_at", "owner_uuid"]);
    }
    let stored = attrs.len();
    attrs.retain(|attr| !resource.is_computed(attr));
    if attrs.len() < stored {
        needed.extend(["owner_uuid", "first_name", "last_name"]);
        needed.extend(["head_uuid", "tail_uuid"]);
    }
    for needed in needed {
        if let Some(attr) = resource.attr(needed)
            && !attrs.iter().any(|known| known.name == needed)
        {
            attrs.push(attr);
        }
    }
    attrs
}

/// The ORDER BY clause. It is total, so that pages neither overlap nor leave gaps.
fn order_by(resource: &'static Resource, page: &PageQuery) -> String {
    let mut terms: Vec<String> = page
        .order
        .iter()
        .map(|(attr, descending)| format!("{}{}", attr.name, direction(*descending)))
        .collect();
    if page.distinct && terms.is_empty() {
        return String::new();
    }
    if terms.is_empty() {
        let newest_first = match resource.table {
            "logs" => "id DESC",
            _ => "modified_at DESC",
        };
        terms.push(newest_first.into());
    }
    // The tie-breaker has the direction of the last term, so that one index serves both.
    if !page.distinct && !page.order.iter().any(|(attr, _)| attr.name == "uuid") {
        let last_descending = page.order.last().is_none_or(|(_, descending)| *descending);
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

    fn page(params: Value) -> Result<PageQuery> {
        PageQuery::parse(&CONTAINERS, |name| params[name].clone())
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
            (
                json!(vec!["priority desc"; 10_000]),
                " ORDER BY priority DESC, uuid DESC",
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
