//! Filters of a listing as SQL. Names come from the schema; values are always bound. Filters on
//! what is no column, such as `any`, are in `non_column.rs`.

#[cfg(test)]
mod fuzz;
mod non_column;

use rusqlite::ToSql;
use rusqlite::types::Value as SqlValue;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};
use crate::schema::{Attr, AttrType, Resource};

/// Maximum number of filters of a listing. SQLite permits 1,000 nested expressions.
const MAX_FILTERS: usize = 500;

/// Maximum length of a pattern, in bytes: that of SQLite.
const MAX_PATTERN_BYTES: usize = 50_000;

/// The escape character of patterns, as in PostgreSQL.
const ESCAPE: &str = r"ESCAPE '\'";

/// A WHERE clause under construction.
#[derive(Debug, Default)]
pub struct Clause {
    pub parts: Vec<String>,
    pub values: Vec<SqlValue>,
}

impl Clause {
    pub fn and(&mut self, sql: impl Into<String>, values: impl IntoIterator<Item = SqlValue>) {
        self.parts.push(sql.into());
        self.values.extend(values);
    }

    /// The values, as parameters of a statement.
    pub fn params(&self) -> Vec<&dyn ToSql> {
        self.values
            .iter()
            .map(|value| value as &dyn ToSql)
            .collect()
    }

    pub fn sql(&self) -> String {
        if self.parts.is_empty() {
            return "1".into();
        }
        self.parts.join(" AND ")
    }

    /// Adds the filters of a request: `[["attr","op",operand], …]`.
    pub fn add_filters(&mut self, resource: &Resource, filters: &Value) -> Result<()> {
        let not_triples = || {
            ApiError::BadRequest(
                "filters must be an array of [attribute, operator, operand] triples".into(),
            )
        };
        let list = match filters {
            Value::Null => return Ok(()),
            Value::Array(list) => list,
            _ => return Err(not_triples()),
        };
        self.check_number(list.len())?;
        for filter in list {
            let Some([Value::String(attribute), Value::String(operator), operand]) =
                filter.as_array().map(Vec::as_slice)
            else {
                return Err(not_triples());
            };
            self.add_one(resource, attribute, &operator.to_lowercase(), operand)?;
        }
        Ok(())
    }

    /// Adds `where={"attr": value or [values]}`, the older form of equality filters, or
    /// `where={"attr": ["contains", text]}`.
    pub fn add_where(&mut self, resource: &Resource, conditions: &Value) -> Result<()> {
        let conditions = match conditions {
            Value::Null => return Ok(()),
            Value::Object(conditions) => conditions,
            _ => {
                return Err(ApiError::BadRequest(
                    "where must be an object of attributes and their values".into(),
                ));
            }
        };
        self.check_number(conditions.len())?;
        for (attribute, operand) in conditions {
            let (operator, operand) = match operand.as_array().map(Vec::as_slice) {
                Some([form, word]) if form == "contains" => {
                    let word = word.as_str().unwrap_or_default();
                    let operator = if attribute == "any" { "ilike" } else { "like" };
                    (operator, json!(format!("%{word}%")))
                }
                Some(_) => ("in", operand.clone()),
                None => ("=", operand.clone()),
            };
            self.add_one(resource, attribute, operator, &operand)?;
        }
        Ok(())
    }

    fn check_number(&self, added: usize) -> Result<()> {
        match self.parts.len() + added <= MAX_FILTERS {
            true => Ok(()),
            false => Err(ApiError::invalid(format!(
                "{added} filters exceed the maximum of {MAX_FILTERS}; \
                 use the operator \"in\" for a list of values"
            ))),
        }
    }

    fn add_one(
        &mut self,
        resource: &Resource,
        attribute: &str,
        operator: &str,
        operand: &Value,
    ) -> Result<()> {
        if self.add_non_column(resource, attribute, operator, operand)? {
            return Ok(());
        }
        let unknown = || ApiError::invalid(format!("Invalid attribute '{attribute}' in filter"));
        // A table prefix (`containers.state`) is allowed and ignored.
        let name = attribute
            .strip_prefix(resource.table)
            .and_then(|rest| rest.strip_prefix('.'))
            .unwrap_or(attribute);
        let (column, key) = match name.split_once('.') {
            Some((column, key)) => (column, Some(key)),
            None => (name, None),
        };
        let attr = resource.searchable_attr(column).ok_or_else(unknown)?;
        match key {
            Some(key) if attr.queryable => {
                let key = key.trim_matches(['<', '>']);
                self.property(attr, key, operator, operand)
            }
            Some(_) => Err(ApiError::invalid(format!(
                "Invalid attribute '{attribute}' for subproperty filter"
            ))),
            None => self.column(resource, attr, operator, operand),
        }
    }

    fn column(
        &mut self,
        resource: &Resource,
        attr: &Attr,
        operator: &str,
        operand: &Value,
    ) -> Result<()> {
        let name = attr.name;
        match operator {
            "=" if operand.is_null() => self.and(format!("{name} IS NULL"), []),
            "!=" | "<>" if operand.is_null() => self.and(format!("{name} IS NOT NULL"), []),
            "=" | "<" | "<=" | ">" | ">=" => {
                let value = scalar(attr, operator, operand)?;
                self.and(format!("{name} {operator} ?"), [value]);
            }
            "!=" | "<>" => {
                let value = scalar(attr, operator, operand)?;
                self.and(format!("({name} IS NULL OR {name} <> ?)"), [value]);
            }
            "in" | "not in" => self.membership(attr, operator, operand)?,
            "like" | "ilike" => {
                self.and(like(operator, name), [pattern(attr, operator, operand)?]);
            }
            "is_a" if name.ends_with("uuid") => self.is_a(name, name, operand)?,
            "exists" if attr.queryable => {
                let key = operand
                    .as_str()
                    .ok_or_else(|| bad_operand(attr, operator))?;
                self.and(
                    format!("json_type({name}, ?) IS NOT NULL"),
                    [property_path(key)?],
                );
            }
            "contains" if attr.queryable => {
                let element = json_scalar(operand).ok_or_else(|| bad_operand(attr, operator))?;
                self.and(
                    format!("EXISTS (SELECT 1 FROM json_each({name}) WHERE json_each.value = ?)"),
                    [element],
                );
            }
            _ => {
                return Err(ApiError::invalid(format!(
                    "Invalid operator '{operator}' for attribute '{name}' of {} in filter",
                    resource.class
                )));
            }
        }
        Ok(())
    }

    /// Binds the operands as one JSON array, so that a long list needs no long statement.
    fn membership(&mut self, attr: &Attr, operator: &str, operand: &Value) -> Result<()> {
        let negated = operator == "not in";
        let list = operand
            .as_array()
            .ok_or_else(|| bad_operand(attr, operator))?;
        let with_null = list.iter().any(Value::is_null);
        let values: Vec<Value> = list
            .iter()
            .filter(|value| !value.is_null())
            .map(|value| {
                attr.coerce(value)
                    .map(|value| stored_scalar(value.into_owned()))
            })
            .collect::<Result<_>>()?;
        let name = attr.name;
        let operator = operator.to_uppercase();
        let is_member = format!("{name} {operator} (SELECT value FROM json_each(?))");
        let sql = match (negated, with_null) {
            (false, false) => is_member,
            (true, true) => format!("({name} IS NOT NULL AND {is_member})"),
            _ => format!("({name} IS NULL OR {is_member})"),
        };
        self.and(sql, [SqlValue::Text(Value::Array(values).to_string())]);
        Ok(())
    }

    fn property(&mut self, attr: &Attr, key: &str, operator: &str, operand: &Value) -> Result<()> {
        let name = attr.name;
        let path = property_path(key)?;
        let invalid_operand = || bad_operand(attr, operator);
        match operator {
            "exists" => {
                let present = operand.as_bool().ok_or_else(invalid_operand)?;
                let negation = if present { "NOT " } else { "" };
                self.and(format!("json_type({name}, ?) IS {negation}NULL"), [path]);
            }
            "=" if operand.is_null() => {
                self.and(format!("json_extract({name}, ?) IS NULL"), [path]);
            }
            "=" | "<" | "<=" | ">" | ">=" => {
                let value = json_scalar(operand).ok_or_else(invalid_operand)?;
                self.and(
                    format!("json_extract({name}, ?) {operator} ?"),
                    [path, value],
                );
            }
            "!=" | "<>" => {
                let value = json_scalar(operand).ok_or_else(invalid_operand)?;
                self.and(format!("json_extract({name}, ?) IS NOT ?"), [path, value]);
            }
            "in" | "not in" => {
                let list = operand.as_array().ok_or_else(invalid_operand)?;
                let negation = if operator == "in" { "" } else { "NOT " };
                self.and(
                    format!("coalesce(json_extract({name}, ?), '') {negation}IN (SELECT value FROM json_each(?))"),
                    [path, SqlValue::Text(json!(list).to_string())],
                );
            }
            "like" | "ilike" => {
                let text = pattern_text(operand)?.ok_or_else(invalid_operand)?;
                let sql = like(operator, &format!("json_extract({name}, ?)"));
                self.and(sql, [path, text]);
            }
            "contains" => {
                let element = json_scalar(operand).ok_or_else(invalid_operand)?;
                self.and(
                    format!(
                        "EXISTS (SELECT 1 FROM json_each({name}, ?) WHERE json_each.value = ?)"
                    ),
                    [path, element],
                );
            }
            _ => {
                return Err(ApiError::invalid(format!(
                    "Invalid operator for subproperty search: '{operator}'"
                )));
            }
        }
        Ok(())
    }
}

/// The condition that a text matches a pattern.
fn like(operator: &str, text: &str) -> String {
    match operator {
        "like" => format!("{text} LIKE ? {ESCAPE}"),
        _ => format!("lower({text}) LIKE lower(?) {ESCAPE}"),
    }
}

/// A pattern that SQLite takes.
fn pattern_text(operand: &Value) -> Result<Option<SqlValue>> {
    match operand {
        Value::String(text) if text.len() > MAX_PATTERN_BYTES => Err(ApiError::invalid(format!(
            "a pattern of {} bytes exceeds the maximum of {MAX_PATTERN_BYTES}",
            text.len()
        ))),
        Value::String(text) => Ok(Some(SqlValue::Text(text.clone()))),
        _ => Ok(None),
    }
}

fn bad_operand(attr: &Attr, operator: &str) -> ApiError {
    ApiError::invalid(format!(
        "Invalid operand type for '{operator}' operator in filters on '{}'",
        attr.name
    ))
}

/// Converts booleans to numbers, as they are stored.
fn stored_scalar(value: Value) -> Value {
    match value {
        Value::Bool(flag) => json!(i64::from(flag)),
        other => other,
    }
}

fn scalar(attr: &Attr, operator: &str, operand: &Value) -> Result<SqlValue> {
    if matches!(attr.kind, AttrType::Object | AttrType::Array) {
        let text = operand.as_str().map(str::to_owned);
        return Ok(SqlValue::Text(text.unwrap_or_else(|| operand.to_string())));
    }
    let value = attr
        .coerce(operand)
        .map_err(|_| bad_operand(attr, operator))?;
    json_scalar(&value).ok_or_else(|| bad_operand(attr, operator))
}

fn json_scalar(value: &Value) -> Option<SqlValue> {
    Some(match value {
        Value::String(text) => SqlValue::Text(text.clone()),
        Value::Bool(flag) => SqlValue::Integer(i64::from(*flag)),
        Value::Number(number) => match number.as_i64() {
            Some(whole) => SqlValue::Integer(whole),
            None => SqlValue::Real(number.as_f64()?),
        },
        _ => return None,
    })
}

fn pattern(attr: &Attr, operator: &str, operand: &Value) -> Result<SqlValue> {
    match (attr.kind, operand) {
        (AttrType::Int | AttrType::Float | AttrType::Bool, _) => Err(bad_operand(attr, operator)),
        _ => pattern_text(operand)?.ok_or_else(|| bad_operand(attr, operator)),
    }
}

fn property_path(key: &str) -> Result<SqlValue> {
    if key.contains(['"', '\\', '\0']) {
        return Err(ApiError::invalid(format!(
            "Property name {key:?} cannot be used in a filter"
        )));
    }
    Ok(SqlValue::Text(format!("$.\"{key}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::CONTAINERS;

    fn clause(filters: Value) -> Result<Clause> {
        let mut clause = Clause::default();
        clause.add_filters(&CONTAINERS, &filters)?;
        Ok(clause)
    }

    #[test]
    fn filters_become_bound_sql() {
        let cases = [
            (json!([["state", "=", "Queued"]]), "state = ?"),
            (json!([["priority", ">", "0"]]), "priority > ?"),
            (
                json!([["locked_by_uuid", "=", null]]),
                "locked_by_uuid IS NULL",
            ),
            (
                json!([["uuid", "in", ["a"]]]),
                "uuid IN (SELECT value FROM json_each(?))",
            ),
            (
                json!([["runtime_status.error", "exists", true]]),
                "json_type(runtime_status, ?) IS NOT NULL",
            ),
            (json!([]), "1"),
        ];
        for (filters, expected) in cases {
            assert_eq!(
                clause(filters.clone()).unwrap().sql(),
                expected,
                "{filters}"
            );
        }
    }

    #[test]
    fn numbers_given_as_text_are_bound_as_numbers() {
        let clause = clause(json!([["priority", ">", "0"]])).unwrap();
        assert_eq!(clause.values, vec![SqlValue::Integer(0)]);
    }

    #[test]
    fn what_the_real_server_refuses_is_refused() {
        let cases = [
            (
                json!([["x", "=", 1]]),
                422,
                "Invalid attribute 'x' in filter",
            ),
            (json!([["state", "~", "Q"]]), 422, "Invalid operator"),
            (
                json!([["runtime_constraints.ram", ">", 1]]),
                422,
                "subproperty",
            ),
            (
                json!([["scheduling_parameters", "contains", "p"]]),
                422,
                "Invalid operator",
            ),
            (
                json!([["secret_mounts", "=", "{}"]]),
                422,
                "Invalid attribute",
            ),
            (json!([["state", "="]]), 400, "triples"),
            (json!("state"), 400, "triples"),
            (json!([["priority", ">", "high"]]), 422, "Invalid operand"),
        ];
        for (filters, status, text) in cases {
            let error = clause(filters.clone()).unwrap_err();
            assert_eq!(error.status().as_u16(), status, "{filters}");
            assert!(error.to_string().contains(text), "{filters}: {error}");
        }
    }
}
