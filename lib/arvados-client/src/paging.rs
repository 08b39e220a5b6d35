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

/// Maximum number of pages in a row without a new record.
const MAX_REPEATED_PAGES: usize = 3;

/// What a page adds to a listing whose pages are counted by records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageProgress {
    /// The next page may have more.
    More,
    /// It was the last one.
    End,
    /// The server gives the same page again and again.
    Repeats,
}

/// The pages of a listing that are counted by records, newest first. A record that is made
/// meanwhile moves older ones to the next page, so that a page may have known records.
#[derive(Debug, Default)]
pub struct CountedPages {
    seen: HashSet<String>,
    /// Length and last record of the last page.
    last: Option<(usize, String)>,
    /// Number of pages in a row without a new record.
    repeated: usize,
}

impl CountedPages {
    /// Adds a page, given by its uuids in order.
    pub fn add<'a>(&mut self, uuids: impl Iterator<Item = &'a str>) -> PageProgress {
        let (before, mut length, mut end) = (self.seen.len(), 0, None);
        for uuid in uuids {
            length += 1;
            end = Some(uuid.to_owned());
            self.seen.insert(uuid.to_owned());
        }
        let Some(end) = end else {
            return PageProgress::End;
        };
        let is_new = self.seen.len() > before;
        // The rest of the last page, moved by new records.
        let is_rest = |(length_before, end_before): &(usize, String)| {
            !is_new && *end_before == end && length < *length_before
        };
        let is_end = self.last.as_ref().is_some_and(is_rest);
        self.last = Some((length, end));
        self.repeated = if is_new { 0 } else { self.repeated + 1 };
        match (is_end, self.repeated < MAX_REPEATED_PAGES) {
            (true, _) => PageProgress::End,
            (false, true) => PageProgress::More,
            (false, false) => PageProgress::Repeats,
        }
    }
}

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
            serde_json::from_value(item)
                .map_err(|source| self.undecodable(format!("GET {resource}"), source))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_records_move_the_end_and_a_page_that_repeats_is_no_end() {
        use PageProgress::{End, More, Repeats};
        #[rustfmt::skip]
        let rows: [(&[&[&str]], &[PageProgress]); 6] = [
            (&[&[]], &[End]),
            (&[&["c", "b"], &["a"], &[]], &[More, More, End]),
            // One record was made before the last page.
            (&[&["d", "c"], &["b", "a"], &["a"]], &[More, More, End]),
            // As many were made as the last page has: it is asked again.
            (&[&["c", "b"], &["a"], &["a"], &[]], &[More, More, More, End]),
            (&[&["c", "b"], &["b", "a"], &["a"]], &[More, More, End]),
            // The first page again.
            (&[&["c", "b"], &["c", "b"], &["c", "b"], &["c", "b"]], &[More, More, More, Repeats]),
        ];
        for (pages, expected) in rows {
            let mut all = CountedPages::default();
            let progress: Vec<_> = pages
                .iter()
                .map(|page| all.add(page.iter().copied()))
                .collect();
            assert_eq!(progress, expected, "{pages:?}");
        }
    }
}
