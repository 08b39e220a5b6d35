//! Complete listings: keyset pages by uuid, so that records that come, go or change while we read are neither
//! missed nor doubled as they would be with offsets.

use std::collections::HashSet;

use serde::de::DeserializeOwned;

use crate::client::{Call, Client};
use crate::error::Error;
use crate::filter::Query;
use crate::records::Page;

/// Largest page asked for; servers clamp it to their own maximum.
pub const PAGE: u64 = 1000;

impl Client {
    /// One page of `resource`.
    pub async fn page<T: DeserializeOwned>(
        &self,
        resource: &str,
        query: &Query,
    ) -> Result<Page<T>, Error> {
        self.send(Call::get(resource).query(query)).await
    }

    /// Every record that matches, in uuid order, or an error: never a part. `uuid` tells a record's uuid, which
    /// must be among the selected attributes.
    pub async fn all<T: DeserializeOwned>(
        &self,
        resource: &str,
        query: Query,
        uuid: impl Fn(&T) -> &str,
    ) -> Result<Vec<T>, Error> {
        let query = query.order("uuid asc").limit(PAGE);
        let mut records: Vec<T> = Vec::new();
        let mut seen: HashSet<String> = HashSet::new();
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
                if seen.insert(id) {
                    records.push(record);
                }
            }
            if !progress {
                return Ok(records);
            }
        }
    }
}
