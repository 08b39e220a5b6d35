//! `collections/UUID/provenance` and `collections/UUID/used_by`: what a collection was made from,
//! and what was made from it, directly or not. The source of the rules is Arvados' API
//! documentation, `collections`.
//!
//! The caller gets the records that their token could also get by themselves; nothing is followed
//! over others.

use std::collections::BTreeSet;
use std::sync::TryLockError;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use serde_json::{Map, Value};

use super::call::{Call, Reply};
use super::render;
use super::resource;
use super::route::Route;
use crate::auth::permission;
use crate::collection::store;
use crate::container::image::is_pdh;
use crate::db::filter::Clause;
use crate::db::list::{self, MAX_PAGE_SIZE, PageQuery};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{self, Attr, COLLECTIONS, CONTAINER_REQUESTS, CONTAINERS, LINKS, Resource};

/// Maximum number of records of an answer.
const MAX_RECORDS: usize = 1000;
/// Time after which the search is given up: it holds a connection to the database, and may read all
/// containers for each collection.
const MAX_TIME: Duration = Duration::from_secs(10);
/// The content of every collection without files. That it is an input tells nothing.
const EMPTY_PDH: &str = "d41d8cd98f00b204e9800998ecf8427e+0";

pub const ROUTES: &[Route] = &[
    Route::new("GET", "collections/{}/provenance", |call, name| {
        search(call, name, Direction::ToInputs)
    }),
    Route::new("GET", "collections/{}/used_by", |call, name| {
        search(call, name, Direction::ToOutputs)
    }),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToInputs,
    ToOutputs,
}

fn search(call: &Call, name: &str, direction: Direction) -> Result<Reply> {
    if !is_pdh(name) {
        resource::get(call, &COLLECTIONS, name)?;
    }
    // One at a time, and no other waits: they would keep threads and connections from all other
    // requests. The client tries again.
    let _turn = match call.app.provenance_search.try_lock() {
        Ok(turn) => turn,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => return Err(ApiError::Busy),
    };
    let begun = Instant::now();
    call.app.readers.read(|connection| {
        let mut search = Search {
            call,
            connection,
            direction,
            found: Map::new(),
            seen: BTreeSet::new(),
            waiting: Vec::new(),
        };
        search.wait_for(name);
        while let Some(name) = search.waiting.pop() {
            let is_large = search.found.len() + search.waiting.len() > MAX_RECORDS;
            if is_large || begun.elapsed() > MAX_TIME {
                return Err(too_large());
            }
            search.visit(&name)?;
        }
        match is_pdh(name) && search.found.is_empty() {
            true => Err(ApiError::path_not_found()),
            false => Ok(Value::Object(search.found).into()),
        }
    })
}

fn too_large() -> ApiError {
    ApiError::invalid(format!(
        "{MAX_RECORDS} records or more are connected with this collection, or it takes more than \
         {} s to find them; ask for a collection between them",
        MAX_TIME.as_secs()
    ))
}

struct Search<'a> {
    call: &'a Call,
    connection: &'a Connection,
    direction: Direction,
    /// Records by the name that led to them: a uuid or a portable data hash.
    found: Map<String, Value>,
    /// All names that were or are waiting.
    seen: BTreeSet<String>,
    waiting: Vec<String>,
}

impl Search<'_> {
    fn visit(&mut self, name: &str) -> Result<()> {
        if is_pdh(name) {
            return self.visit_content(name);
        }
        let Some(resource) = schema::by_uuid(name) else {
            return Ok(());
        };
        if ![&COLLECTIONS, &CONTAINERS, &CONTAINER_REQUESTS]
            .iter()
            .any(|known| known.table == resource.table)
        {
            return Ok(());
        }
        let everything = resource.public_attrs();
        let select = everything
            .filter(|attr| attr.name != "manifest_text")
            .collect();
        let Some(record) = self.records(resource, "uuid = ?1", name, select)?.pop() else {
            return Ok(());
        };
        self.visit_linked(name)?;
        let follows_inputs = self.direction == Direction::ToInputs;
        match resource.table {
            "collections" if follows_inputs => {
                let makers = "output_uuid = ?1 OR log_uuid = ?1";
                self.visit_all(&CONTAINER_REQUESTS, makers, name)?;
            }
            "collections" => {
                self.wait_for(record.text("portable_data_hash"));
                return Ok(());
            }
            _ if follows_inputs => {
                for attribute in ["container_image", "mounts"] {
                    let text = match record.get(attribute) {
                        Value::String(text) => text.clone(),
                        other => other.to_string(),
                    };
                    for input in collections_in(&text) {
                        self.wait_for(input);
                    }
                }
            }
            "containers" => self.wait_for(record.text("output")),
            _ => self.wait_for(record.text("output_uuid")),
        }
        self.add(name, resource, record);
        Ok(())
    }

    /// Visits what links of the class `provenance` connect with a record. A program made the head
    /// of such a link from its tail.
    fn visit_linked(&mut self, uuid: &str) -> Result<()> {
        let (near, far) = match self.direction {
            Direction::ToInputs => ("head_uuid", "tail_uuid"),
            Direction::ToOutputs => ("tail_uuid", "head_uuid"),
        };
        let sql = format!("link_class = 'provenance' AND {near} = ?1");
        let select = LINKS.public_attrs().collect();
        for link in self.records(&LINKS, &sql, uuid, select)? {
            self.wait_for(link.text(far));
            let uuid = link.uuid().to_owned();
            self.add(&uuid, &LINKS, link);
        }
        Ok(())
    }

    /// Visits the containers that have made this content, or that have read it.
    fn visit_content(&mut self, pdh: &str) -> Result<()> {
        let found = store::find_by_pdh(self.connection, &self.call.caller, pdh, false)?;
        let path = format!("/arvados/v1/collections/{pdh}");
        if let Some(collection) = found.filter(|_| self.call.caller.may_request("GET", &path)) {
            self.add(pdh, &COLLECTIONS, collection);
        }
        let containers = match self.direction {
            Direction::ToInputs => "output = ?1 OR log = ?1",
            Direction::ToOutputs if pdh == EMPTY_PDH => return Ok(()),
            Direction::ToOutputs => {
                "(container_image = ?1 OR instr(mounts, ?1) > 0) \
                 AND coalesce(output, '') <> ?1 AND coalesce(log, '') <> ?1"
            }
        };
        self.visit_all(&CONTAINERS, containers, pdh)
    }

    fn visit_all(&mut self, resource: &'static Resource, sql: &str, name: &str) -> Result<()> {
        let uuid = resource.public_attr("uuid").into_iter().collect();
        for record in self.records(resource, sql, name, uuid)? {
            self.wait_for(record.uuid());
        }
        Ok(())
    }

    /// The records that meet the condition and that the caller may get.
    fn records(
        &self,
        resource: &'static Resource,
        sql: &str,
        name: &str,
        select: Vec<&'static Attr>,
    ) -> Result<Vec<Record>> {
        let mut clause = Clause::default();
        let values = sql.matches("?1").map(|_| SqlValue::Text(name.to_owned()));
        clause.and(format!("({})", sql.replace("?1", "?")), values);
        clause.and_not_in_trash(resource);
        let caller = &self.call.caller;
        permission::restrict_to_readable(self.connection, resource, caller, &mut clause)?;
        let mut page = PageQuery::parse(resource, |_| Value::Null)?;
        (page.limit, page.count, page.select) = (MAX_PAGE_SIZE, false, Some(select));
        let mut found = list::fetch_page(self.connection, resource, &clause, &page)?.items;
        if found.len() >= MAX_RECORDS {
            return Err(too_large());
        }
        found.retain(|record| {
            let path = format!("/arvados/v1/{}/{}", resource.table, record.uuid());
            caller.may_request("GET", &path)
        });
        Ok(found)
    }

    fn wait_for(&mut self, name: &str) {
        if !name.is_empty() && self.seen.insert(name.to_owned()) {
            self.waiting.push(name.to_owned());
        }
    }

    fn add(&mut self, name: &str, resource: &'static Resource, record: Record) {
        let shown = render::list_item(resource, record, None);
        self.found.insert(name.to_owned(), shown);
    }
}

/// The portable data hashes and uuids of collections in a text, such as the JSON of mounts.
fn collections_in(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-');
    text.split(move |c| !is_part(c)).filter(|word| {
        is_pdh(word) || schema::by_uuid(word).is_some_and(|kind| kind.table == "collections")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_are_found_in_any_text() {
        let pdh = "83367e8913dcec0bf3fc25ed5a27eacb+49";
        let uuid = "zzzzz-4zz18-0123456789abcde";
        let text = format!(
            r#"{{"/in": {{"portable_data_hash": "{pdh}"}}, "/x": {{"content": "keep:{pdh}/a b",
               "uuid": "{uuid}", "other": "zzzzz-dz642-0123456789abcde", "n": "49+3"}}}}"#
        );
        let found: Vec<&str> = collections_in(&text).collect();
        assert_eq!(found, [pdh, pdh, uuid]);
    }
}
