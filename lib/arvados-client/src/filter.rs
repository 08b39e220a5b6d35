//! Parameters of a listing: filters, order, attributes, page size.

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

    /// The parameters as `key=value` pairs, with values in JSON.
    pub(crate) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = vec![(
            "count",
            if self.counted { "exact" } else { "none" }.to_owned(),
        )];
        if !self.filters.is_empty() {
            pairs.push(("filters", json!(self.filters).to_string()));
        }
        if !self.order.is_empty() {
            pairs.push(("order", json!(self.order).to_string()));
        }
        if !self.select.is_empty() {
            pairs.push(("select", json!(self.select).to_string()));
        }
        if let Some(limit) = self.limit {
            pairs.push(("limit", limit.to_string()));
        }
        if self.offset > 0 {
            pairs.push(("offset", self.offset.to_string()));
        }
        if self.trashed {
            pairs.push(("include_trash", "true".to_owned()));
        }
        pairs
    }
}
