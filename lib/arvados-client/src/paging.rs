//! Complete listings in pages. Input: a query. Output: every record that matches, or an error.
//!
//! A listing that may be incomplete is an error, never a part: a caller that acts on a missing
//! record must know that it is missing. A real Arvados ignores most filters of some resources, and
//! a cache may answer with an earlier page. So each page is compared with its query
//! ([`Query::ignored_filter`]), and each page must have a record that is new.

use std::collections::HashSet;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::{Call, Client};
use crate::error::{Error, ListFault};
use crate::filter::Query;
use crate::records::Page;

/// Page size of a listing; servers reduce it to their own maximum.
pub const PAGE_SIZE: u64 = 1000;

impl Client {
    /// Fetches a page of `resource`. A record that a filter of the query excludes is an error.
    pub async fn page<T: DeserializeOwned>(
        &self,
        resource: &str,
        query: &Query,
    ) -> Result<Page<T>, Error> {
        let page: Page<Value> = self.send(Call::get(resource).query(query)).await?;
        if let Some(filter) = query.ignored_filter(&page.items) {
            return Err(self.incomplete(resource, ListFault::FilterIgnored(filter)));
        }
        let items = page.items.into_iter().map(|item| {
            serde_json::from_value(item).map_err(|source| Error::Undecodable {
                host: self.endpoint().host.clone(),
                call: format!("GET {resource}"),
                source,
            })
        });
        Ok(Page {
            items: items.collect::<Result<_, _>>()?,
            items_available: page.items_available,
        })
    }

    /// Fetches every record that matches, in uuid order, or fails: never a part. `uuid` returns the
    /// uuid of a record, which must be among the selected attributes. Records that change during
    /// the listing are neither missed nor doubled, as they would be with offsets.
    pub async fn all<T: DeserializeOwned>(
        &self,
        resource: &str,
        query: Query,
        uuid: impl Fn(&T) -> &str,
    ) -> Result<Vec<T>, Error> {
        let query = query.order("uuid asc").limit(PAGE_SIZE);
        let mut records: Vec<T> = Vec::new();
        let mut uuids: HashSet<String> = HashSet::new();
        let mut last = String::new();
        loop {
            let page_query = match last.is_empty() {
                true => query.clone(),
                false => query.clone().filter("uuid", ">", &last),
            };
            let page: Page<T> = self.page(resource, &page_query).await?;
            let (before, is_empty) = (last.clone(), page.items.is_empty());
            for record in page.items {
                let id = uuid(&record).to_owned();
                if id > last {
                    last.clone_from(&id);
                }
                if uuids.insert(id) {
                    records.push(record);
                }
            }
            if is_empty {
                return Ok(records);
            }
            if last == before {
                return Err(self.incomplete(resource, ListFault::PageRepeated));
            }
        }
    }

    /// The error for a listing of `resource` that may be incomplete.
    pub(crate) fn incomplete(&self, resource: &str, fault: ListFault) -> Error {
        Error::IncompleteList {
            host: self.endpoint().host.clone(),
            resource: resource.to_owned(),
            fault,
        }
    }
}
