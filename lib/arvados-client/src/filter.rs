//! Parameters of a listing: filters, order, attributes, page size.

use std::cmp::Ordering;

use serde::Serialize;
use serde_json::{Value, json};

/// The parameters of a listing.
#[derive(Debug, Clone, Default)]
pub struct Query {
    filters: Vec<Value>,
    order: Vec<String>,
    select: Vec<String>,
    limit: Option<u64>,
    offset: u64,
    counted: bool,
    trashed: bool,
}

impl Query {
    /// All records, in the default order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only records where `attribute operator operand`.
    pub fn filter(mut self, attribute: &str, operator: &str, operand: impl Serialize) -> Self {
        self.filters
            .push(json!([attribute, operator, json!(operand)]));
        self
    }

    /// Only records with an attribute like this text, in which `%` stands for any text. `_` stands
    /// for itself, unlike in the filters of the API.
    pub fn like(self, attribute: &str, text: &str) -> Self {
        let pattern = text.replace('\\', r"\\").replace('_', r"\_");
        self.filter(attribute, "like", pattern)
    }

    /// Sorted by `column direction`, after the orders already given.
    pub fn order(mut self, order: &str) -> Self {
        self.order.push(order.to_owned());
        self
    }

    /// Only these attributes.
    pub fn select(mut self, columns: &[&str]) -> Self {
        self.select = columns.iter().map(|c| (*c).to_owned()).collect();
        self
    }

    /// Sets the maximum number of records per page.
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Skips this many records. Only for the head of a list, because the list may change between
    /// pages.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Requests the total number of matches.
    pub fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    /// Includes trashed collections.
    pub fn include_trash(mut self) -> Self {
        self.trashed = true;
        self
    }

    /// A filter of the query that excludes one of these records, as text: the server ignored it.
    /// Only filters on the listed attributes are compared, and only where both values are numbers
    /// or both are text. The order of texts is known for uuids only.
    pub fn ignored_filter(&self, records: &[Value]) -> Option<String> {
        let ignored = |filter: &&Value| {
            let excludes = |record: &Value| excludes(filter, record) == Some(true);
            records.iter().any(excludes)
        };
        self.filters.iter().find(ignored).map(Value::to_string)
    }

    /// The parameters as `key=value` pairs, with values in JSON.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let list = |items: Value| (items != json!([])).then(|| items.to_string());
        let count = if self.counted { "exact" } else { "none" };
        let pairs = [
            ("count", Some(count.to_owned())),
            ("filters", list(json!(self.filters))),
            ("order", list(json!(self.order))),
            ("select", list(json!(self.select))),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("offset", (self.offset > 0).then(|| self.offset.to_string())),
            ("include_trash", self.trashed.then(|| "true".to_owned())),
        ];
        let given = pairs.into_iter();
        given
            .filter_map(|(key, value)| Some((key, value?)))
            .collect()
    }
}

/// Whether a filter excludes a record. None: that is not known.
fn excludes(filter: &Value, record: &Value) -> Option<bool> {
    let [attribute, operator, operand] = filter.as_array()?.as_slice() else {
        return None;
    };
    let attribute = attribute.as_str()?;
    let value = record.get(attribute)?;
    let order = |operand: &Value| -> Option<Ordering> {
        match (value, operand) {
            (Value::Number(value), Value::Number(operand)) => {
                value.as_i64()?.partial_cmp(&operand.as_i64()?)
            }
            // A time has several texts.
            (Value::String(_), Value::String(_)) if attribute.ends_with("_at") => None,
            (Value::String(value), Value::String(operand)) => Some(value.cmp(operand)),
            _ => None,
        }
    };
    let has_order = value.is_number() || attribute == "uuid";
    match operator.as_str()? {
        "=" => order(operand).map(Ordering::is_ne),
        ">" if has_order => order(operand).map(Ordering::is_le),
        "<" if has_order => order(operand).map(Ordering::is_ge),
        "in" => {
            let orders: Option<Vec<Ordering>> = operand.as_array()?.iter().map(order).collect();
            orders.map(|orders| orders.into_iter().all(Ordering::is_ne))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_a_filter_excludes_is_noticed() {
        let record = json!({
            "uuid": "zzzzz-dz642-2", "state": "Queued", "priority": 7, "name": null,
            "modified_at": "2026-11-28T10:00:00.000000000Z",
        });
        #[rustfmt::skip]
        let rows = [
            ("uuid", ">", json!("zzzzz-dz642-1"), false), ("uuid", ">", json!("zzzzz-dz642-2"), true),
            ("uuid", "<", json!("zzzzz-dz642-3"), false), ("uuid", "<", json!("zzzzz-dz642-2"), true),
            ("uuid", "in", json!(["zzzzz-dz642-1", "zzzzz-dz642-2"]), false), ("uuid", "in", json!([]), true),
            ("uuid", "in", json!(["zzzzz-dz642-1"]), true), ("state", "=", json!("Queued"), false),
            ("state", "=", json!("Locked"), true), ("priority", ">", json!(0), false),
            ("priority", ">", json!(7), true), ("priority", "<", json!(7), true), ("priority", "=", json!(8), true),
            // Not compared: texts without an order, other operators and types, what is not listed.
            ("state", ">", json!("Z"), false), ("name", "=", json!("x"), false), ("state", "like", json!("x"), false),
            ("priority", "=", json!("8"), false), ("modified_at", "=", json!("2026-11-28T10:00:00Z"), false),
            ("modified_at", ">", json!("2026-11-29T10:00:00Z"), false), ("owner_uuid", "=", json!("x"), false),
            ("state", "in", json!(["Locked", null]), false),
        ];
        for (attribute, operator, operand, is_ignored) in rows {
            let query = Query::new().filter(attribute, operator, &operand);
            let found = query.ignored_filter(std::slice::from_ref(&record));
            assert_eq!(
                found.is_some(),
                is_ignored,
                "{attribute} {operator} {operand}"
            );
        }
    }
}
