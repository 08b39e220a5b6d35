//! What to list: filters, order, columns, page size.

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
    /// Everything, in the server's order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only records where `attribute operator operand`.
    pub fn filter(mut self, attribute: &str, operator: &str, operand: impl Serialize) -> Self {
        self.filters
            .push(json!([attribute, operator, json!(operand)]));
        self
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

    /// At most so many records a page.
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = Some(limit);
        self
    }

    /// From this one on, counted from 0: for the head of a list that may change meanwhile, not for all of it.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = offset;
        self
    }

    /// Ask the server how many match in all.
    pub fn counted(mut self) -> Self {
        self.counted = true;
        self
    }

    /// Trashed collections too.
    pub fn include_trash(mut self) -> Self {
        self.trashed = true;
        self
    }

    /// As `key=value` pairs, values in JSON.
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
