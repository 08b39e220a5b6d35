//! Filters on what is not one column of a record: `any`, `(a < b)`, `container.NAME` of a container
//! request, and the kind of record that a uuid names. The source of their rules is the section
//! "filters" of Arvados' API documentation.

use rusqlite::types::Value as SqlValue;
use serde_json::{Value, json};

use super::{Clause, like, pattern_text};
use crate::error::{ApiError, Result};
use crate::schema::{self, Attr, AttrType, CONTAINERS, LINKS, Resource};

impl Clause {
    /// Adds a filter of one of these forms; false if it is none of them.
    pub(super) fn add_non_column(
        &mut self,
        resource: &Resource,
        attribute: &str,
        operator: &str,
        operand: &Value,
    ) -> Result<bool> {
        if operator == "@@" {
            return Err(ApiError::invalid(
                "Full text search ('@@') is not supported, as in Arvados; \
                 use [\"any\", \"ilike\", \"%WORD%\"] for each word",
            ));
        }
        if attribute == "any" {
            self.any_column(resource, operator, operand)?;
            return Ok(true);
        }
        if matches!(attribute, "file_names" | "collections.file_names")
            && resource.table == "collections"
        {
            self.file_names(operator, operand)?;
            return Ok(true);
        }
        if let Some(end) = end_of_link(resource, attribute)
            && matches!(operator, "=" | "in")
        {
            self.is_a(end, attribute, operand)?;
            return Ok(true);
        }
        let compared = attribute.strip_prefix('(');
        if let Some(compared) = compared.and_then(|rest| rest.strip_suffix(')')) {
            self.two_columns(resource, compared, operator, operand)?;
            return Ok(true);
        }
        match attribute.strip_prefix("container.") {
            Some(name) if resource.table == "container_requests" => {
                self.of_container(name, operator, operand)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A filter that one column of the record must pass.
    fn any_column(&mut self, resource: &Resource, operator: &str, operand: &Value) -> Result<()> {
        let is_pattern = matches!(operator, "like" | "ilike");
        if !is_pattern && !matches!(operator, "=" | "in") {
            return Err(ApiError::invalid(format!(
                "Invalid operator '{operator}' for 'any' in filter; \
                 it takes =, in, like and ilike"
            )));
        }
        let is_meant = |attr: &&Attr| match attr.kind {
            _ if attr.unsearchable || attr.bulky => false,
            AttrType::Text => true,
            // Their text is searched, as Arvados does.
            AttrType::Object | AttrType::Array => is_pattern,
            _ => false,
        };
        let mut either = Clause::default();
        for attr in resource.public_attrs().filter(is_meant) {
            either.column(resource, attr, operator, operand)?;
        }
        self.and(format!("({})", either.parts.join(" OR ")), either.values);
        Ok(())
    }

    /// A pattern that the list of all paths in a collection must match.
    fn file_names(&mut self, operator: &str, operand: &Value) -> Result<()> {
        if !matches!(operator, "like" | "ilike") {
            return Err(ApiError::invalid(format!(
                "Invalid operator '{operator}' for 'file_names' in filter; it takes like and ilike"
            )));
        }
        let pattern = pattern_text(operand)?.ok_or_else(|| {
            ApiError::invalid("Invalid operand type for filters on 'file_names': it must be text")
        })?;
        let sql = like(operator, "file_names(manifest_text)");
        self.and(sql, [pattern]);
        Ok(())
    }

    /// `["(modified_at > created_at)", "=", true]`.
    fn two_columns(
        &mut self,
        resource: &Resource,
        comparison: &str,
        operator: &str,
        operand: &Value,
    ) -> Result<()> {
        let words: Vec<&str> = comparison.split_whitespace().collect();
        let column = |name| {
            let attr = resource.searchable_attr(name);
            attr.map(|attr| attr.name)
                .ok_or_else(|| ApiError::invalid(format!("Invalid attribute '{name}' in filter")))
        };
        match words[..] {
            [left, compare @ ("<" | "<=" | "=" | ">=" | ">"), right]
                if operator == "=" && *operand == Value::Bool(true) =>
            {
                let (left, right) = (column(left)?, column(right)?);
                self.and(format!("{left} {compare} {right}"), []);
                Ok(())
            }
            _ => Err(ApiError::invalid(format!(
                "Invalid filter on '({comparison})': it must be \
                 [\"(ATTRIBUTE OPERATOR ATTRIBUTE)\", \"=\", true], with <, <=, =, >= or >"
            ))),
        }
    }

    /// The uuid in column `name` is of this kind, or of one of these. `attribute` is the name in
    /// the request.
    pub(super) fn is_a(&mut self, name: &str, attribute: &str, operand: &Value) -> Result<()> {
        let kinds: Vec<&str> = match operand {
            Value::String(kind) => vec![kind.as_str()],
            Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        let infixes: Vec<&str> = kinds
            .iter()
            .filter_map(|kind| {
                schema::ALL
                    .into_iter()
                    .find(|resource| resource.kind.eq_ignore_ascii_case(kind))
                    .map(|resource| resource.infix)
            })
            .collect();
        if infixes.is_empty() {
            return Err(ApiError::invalid(format!(
                "Invalid operand for filter on '{attribute}': {operand} is no kind of record, \
                 such as arvados#collection"
            )));
        }
        self.and(
            format!("substr({name}, 7, 5) IN (SELECT value FROM json_each(?))"),
            [SqlValue::Text(json!(infixes).to_string())],
        );
        Ok(())
    }

    /// A filter on the container of a request. A request without one has no value to compare.
    fn of_container(&mut self, name: &str, operator: &str, operand: &Value) -> Result<()> {
        let mut of_container = Clause::default();
        of_container.add_one(&CONTAINERS, name, operator, operand)?;
        let is_also_for_none = match operator {
            "!=" | "<>" | "not in" => !operand.is_null(),
            _ => operator == "=" && operand.is_null(),
        };
        let found = format!(
            "container_uuid IN (SELECT uuid FROM containers WHERE {})",
            of_container.sql()
        );
        let sql = match is_also_for_none {
            true => format!("(container_uuid IS NULL OR {found})"),
            false => found,
        };
        self.and(sql, of_container.values);
        Ok(())
    }
}

/// The column with the uuid whose kind this attribute of a link is.
fn end_of_link(resource: &Resource, attribute: &str) -> Option<&'static str> {
    match attribute.strip_prefix("links.").unwrap_or(attribute) {
        _ if resource.table != LINKS.table => None,
        "head_kind" => Some("head_uuid"),
        "tail_kind" => Some("tail_uuid"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::{CONTAINER_REQUESTS, GROUPS};

    fn sql(resource: &Resource, filter: Value) -> std::result::Result<String, String> {
        let mut clause = Clause::default();
        match clause.add_filters(resource, &json!([filter])) {
            Ok(()) => Ok(clause.sql()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn any_is_every_column_of_text() {
        let found = sql(&GROUPS, json!(["any", "ilike", "%x%"])).unwrap();
        for part in [
            "lower(name) LIKE",
            " OR lower(description) LIKE",
            "lower(properties)",
        ] {
            assert!(found.contains(part), "{found}");
        }
        assert!(!found.contains("created_at"), "{found}");
        let found = sql(&GROUPS, json!(["any", "=", "x"])).unwrap();
        assert!(found.starts_with("(uuid = ? OR owner_uuid = ?"), "{found}");
        assert!(!found.contains("properties"), "{found}");
    }

    #[test]
    fn columns_and_containers_are_compared() {
        let of = |filter| sql(&CONTAINER_REQUESTS, filter);
        let select = "container_uuid IN (SELECT uuid FROM containers WHERE";
        for (filter, expected) in [
            (
                json!(["(modified_at >= created_at)", "=", true]),
                "modified_at >= created_at".to_owned(),
            ),
            (
                json!(["container.state", "=", "Complete"]),
                format!("{select} state = ?)"),
            ),
            (
                json!(["container.exit_code", "!=", 0]),
                format!(
                    "(container_uuid IS NULL OR {select} (exit_code IS NULL OR exit_code <> ?)))"
                ),
            ),
            (
                json!(["container.runtime_status.error", "exists", true]),
                format!("{select} json_type(runtime_status, ?) IS NOT NULL)"),
            ),
        ] {
            assert_eq!(of(filter.clone()), Ok(expected), "{filter}");
        }
    }

    #[test]
    fn what_has_no_meaning_is_refused() {
        for (filter, words) in [
            (json!(["any", "@@", "word"]), "ilike"),
            (
                json!(["any", ">", "word"]),
                "Invalid operator '>' for 'any'",
            ),
            (json!(["any", "like", 1]), "Invalid operand"),
            (
                json!(["(name < secret_mounts)", "=", true]),
                "secret_mounts",
            ),
            (json!(["(name ; name)", "=", true]), "it must be"),
            (json!(["(name = name)", "=", false]), "it must be"),
            (
                json!(["container.runtime_token", "=", "x"]),
                "Invalid attribute",
            ),
            (json!(["container.x", "=", "x"]), "Invalid attribute 'x'"),
        ] {
            let refusal = sql(&CONTAINER_REQUESTS, filter.clone()).unwrap_err();
            assert!(refusal.contains(words), "{filter}: {refusal}");
        }
        let refusal = sql(&GROUPS, json!(["container.state", "=", "x"])).unwrap_err();
        assert!(refusal.contains("Invalid attribute"), "{refusal}");
    }
}
