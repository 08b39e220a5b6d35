//! Complete listings in pages by uuid. Records that change during the listing are neither missed
//! nor doubled, as they would be with offsets.

use std::collections::HashSet;

use serde::de::DeserializeOwned;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::filter::Query;
use crate::records::Page;

/// Page size of a listing; servers reduce it to their own maximum.
pub const PAGE_SIZE: u64 = 1000;

impl Client {
    /// Fetches a page of `resource`.
    pub async fn page<T: DeserializeOwned>(
        &self,
        resource: &str,
        query: &Query,
    ) -> Result<Page<T>, Error> {
        self.send(Call::get(resource).query(query)).await
    }

    /// Fetches every record that matches, in uuid order, or fails: never a part. `uuid` returns the
    /// uuid of a record, which must be among the selected attributes.
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
            let mut progress = false;
            for record in page.items {
                let id = uuid(&record).to_owned();
                if id > last {
                    last.clone_from(&id);
                    progress = true;
                }
                // A page delivered twice or out of order adds nothing new.
                if uuids.insert(id) {
                    records.push(record);
                }
            }
            if !progress {
                return Ok(records);
            }
        }
    }
}
