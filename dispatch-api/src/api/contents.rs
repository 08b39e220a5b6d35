//! Listings of several kinds of records: what a project or a user's home has
//! (`/arvados/v1/groups/contents` and `/arvados/v1/groups/UUID/contents`), and the groups that
//! others share with the caller (`/arvados/v1/groups/shared`).
//!
//! One kind comes after the other, and offset and limit count over all of them.

use std::collections::BTreeSet;

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use serde_json::{Value, json};

use super::call::{Call, Reply};
use super::collections::Manifests;
use super::route::Route;
use super::{computed, render, resource, users};
use crate::auth::Access;
use crate::db::filter::Clause;
use crate::db::list::{self, MAX_PAGE_SIZE, PageQuery};
use crate::error::{ApiError, Result};
use crate::project::BELOW_SQL;
use crate::record::Record;
use crate::schema::{
    COLLECTIONS, CONTAINER_REQUESTS, CONTAINERS, GROUPS, Resource, USERS, WORKFLOWS,
};

pub const ROUTES: &[Route] = &[
    Route::new("GET", "groups/contents", |call, _| {
        contents(call, call.params.text("uuid").as_deref())
    }),
    Route::new("GET", "groups/{}/contents", |call, uuid| {
        contents(call, Some(uuid))
    }),
    Route::new("GET", "groups/shared", |call, _| shared(call)),
];

/// The kinds of records that a project has, in the order of the listing.
const KINDS: [&Resource; 4] = [&GROUPS, &CONTAINER_REQUESTS, &WORKFLOWS, &COLLECTIONS];

fn contents(call: &Call, uuid: Option<&str>) -> Result<Reply> {
    let is_recursive = call.params.flag("recursive");
    let uuid = uuid.filter(|uuid| !uuid.is_empty()).map(str::to_owned);
    if let Some(uuid) = &uuid {
        require_readable_owner(call, uuid)?;
    }
    let is_without_home = call.params.flag("exclude_home_project");
    if is_without_home && uuid.is_some() {
        return Err(ApiError::invalid(
            "Cannot use 'exclude_home_project' with a parent object",
        ));
    }
    listing(call, &KINDS, |connection, clause| match &uuid {
        Some(uuid) => {
            let owners = if is_recursive { BELOW_SQL } else { "?" };
            let sql = format!("owner_uuid IN ({owners})");
            clause.and(sql, [SqlValue::Text(uuid.clone())]);
            Ok(())
        }
        None if is_without_home => exclude_home(connection, call, clause),
        None => Ok(()),
    })
}

/// Leaves out what the caller has at home, and what is in a project that it may read.
fn exclude_home(connection: &Connection, call: &Call, clause: &mut Clause) -> Result<()> {
    let mut readable = Clause::default();
    Access::new(connection, &call.caller).restrict_to_readable(&GROUPS, &mut readable)?;
    let me = SqlValue::Text(call.caller.user_uuid.clone());
    clause.and("owner_uuid <> ?", [me]);
    let projects = format!(
        "SELECT uuid FROM groups WHERE group_class = 'project' AND {}",
        readable.sql()
    );
    clause.and(format!("owner_uuid NOT IN ({projects})"), readable.values);
    Ok(())
}

/// The groups that the caller reads by a permission, not because of what contains them.
fn shared(call: &Call) -> Result<Reply> {
    listing(call, &[&GROUPS], |connection, clause| {
        exclude_home(connection, call, clause)
    })
}

/// The owner whose contents are listed must be a user or a group that the caller may read.
fn require_readable_owner(call: &Call, uuid: &str) -> Result<()> {
    let resource = match crate::schema::by_uuid(uuid) {
        Some(resource) if matches!(resource.table, "groups" | "users") => resource,
        _ => return Err(ApiError::path_not_found()),
    };
    resource::fetch(call, resource, uuid).map(drop)
}

/// A page of records of these kinds. `restrict` adds the condition that all of them must meet.
fn listing(
    call: &Call,
    kinds: &[&'static Resource],
    restrict: impl Fn(&Connection, &mut Clause) -> Result<()>,
) -> Result<Reply> {
    let asked = PageQuery::parse(&GROUPS, |name| match name {
        "select" => Value::Null,
        _ => call.params.get(name),
    })?;
    check_names(call)?;
    let (mut left, mut offset) = (asked.limit, asked.offset);
    let (mut listed, mut included) = (Vec::new(), Included::of(call)?);
    let mut available = 0;
    let mut refused = Vec::new();
    call.app.readers.read(|connection| {
        for resource in kinds.iter().copied() {
            let mut clause = match conditions(call, resource) {
                Ok(clause) => clause,
                // A filter may have a meaning for other kinds only.
                Err(error) => {
                    refused.push(error);
                    continue;
                }
            };
            restrict(connection, &mut clause)?;
            let access = Access::new(connection, &call.caller);
            access.restrict_to_readable(resource, &mut clause)?;
            if !call.params.flag("include_trash") {
                access.leave_out_trash(resource, &mut clause)?;
            }
            let mut page = PageQuery::parse(resource, |name| match name {
                "select" => list::known_attributes(resource, &call.params.get("select")),
                _ => call.params.get(name),
            })?;
            (page.limit, page.offset, page.count) = (left, offset, true);
            let select = page.select.clone();
            included.add_to(resource, &mut page);
            let mut found = list::fetch_page(connection, resource, &clause, &page)?;
            let selected = select.as_deref();
            let items = &mut found.items;
            computed::add(connection, &call.caller, resource, selected, items)?;
            let total = found.available.unwrap_or(0);
            let number = i64::try_from(found.items.len()).unwrap_or(i64::MAX);
            available += total;
            // A page that became too large ends here: the next one begins with this kind.
            let is_cut = number < left.min((total - offset).max(0));
            left = if is_cut { 0 } else { left - number };
            offset = (offset - total).max(0);
            for record in &found.items {
                included.note(record);
            }
            listed.push((resource, found.items, select));
        }
        included.fetch(connection, call)
    })?;
    if refused.len() == kinds.len()
        && let Some(error) = refused.pop()
    {
        return Err(error);
    }
    // Signing reads, too: with a connection held, all requests could wait for another one.
    let (mut items, manifests) = (Vec::new(), Manifests::of(call));
    for (resource, records, select) in listed {
        for mut record in records {
            if resource.table == "collections" {
                manifests.sign(call, &mut record);
            }
            items.push(render::list_item(resource, record, select.as_deref()));
        }
    }
    let range = (Some(asked.offset), Some(asked.limit));
    let available = asked.count.then_some(available);
    let mut body = render::list("arvados#objectList", range, items, available);
    if let Some(records) = included.records {
        body["included"] = Value::Array(records);
    }
    Ok(body.into())
}

/// Rejects a selected attribute that no kind has, and a filter on `TABLE.ATTRIBUTE` without a
/// meaning for this kind. Without a table, it may have a meaning for other kinds.
fn check_names(call: &Call) -> Result<()> {
    let select = call.params.get("select");
    for name in select.as_array().into_iter().flatten() {
        let one = json!([name]);
        // Those of included records, too.
        let mut kinds = KINDS.into_iter().chain([&USERS, &CONTAINERS]);
        if !kinds.any(|kind| list::parse_select(kind, &one).is_ok()) {
            return Err(ApiError::invalid(format!("Invalid attribute(s): {one}")));
        }
    }
    let filters = call.params.get("filters");
    for filter in filters.as_array().into_iter().flatten() {
        let name = filter[0].as_str().unwrap_or_default();
        let is_meant = |kind: &&Resource| name.split('.').next() == Some(kind.table);
        if let Some(kind) = KINDS
            .into_iter()
            .find(|kind| name.contains('.') && is_meant(kind))
        {
            Clause::default().add_filters(kind, &json!([filter]))?;
        }
    }
    Ok(())
}

/// The filters of the request that concern this kind.
fn conditions(call: &Call, resource: &'static Resource) -> Result<Clause> {
    let mut clause = Clause::default();
    clause.add_filters(resource, &own_filters(resource, call.params.get("filters")))?;
    clause.add_where(resource, &call.params.get("where"))?;
    if resource.table == "groups" {
        clause.and("group_class IN ('project', 'filter')", []);
    }
    Ok(clause)
}

/// The filters without those that name the table of another kind.
fn own_filters(resource: &Resource, filters: Value) -> Value {
    let Value::Array(filters) = filters else {
        return filters;
    };
    let is_of_other = |filter: &Value| {
        let table = filter[0].as_str().and_then(|name| name.split_once('.'));
        table.is_some_and(|(table, _)| {
            table != resource.table && KINDS.iter().any(|kind| kind.table == table)
        })
    };
    let own = filters.into_iter().filter(|filter| !is_of_other(filter));
    own.collect()
}

/// Records that listed ones refer to, as `include` asks for them.
struct Included {
    attributes: Vec<&'static str>,
    uuids: BTreeSet<String>,
    /// `None` if the request asks for none.
    records: Option<Vec<Value>>,
}

impl Included {
    fn of(call: &Call) -> Result<Included> {
        let names = match call.params.get("include") {
            Value::Null => Vec::new(),
            Value::Array(names) => names,
            name => vec![name],
        };
        let attribute = |name: &Value| match name.as_str() {
            Some("owner_uuid") => Ok("owner_uuid"),
            Some("container_uuid") => Ok("container_uuid"),
            _ => Err(ApiError::invalid(format!(
                "Invalid value for include: {name}; expected owner_uuid or container_uuid"
            ))),
        };
        let attributes: Vec<_> = names.iter().map(attribute).collect::<Result<_>>()?;
        Ok(Included {
            records: (!attributes.is_empty()).then(Vec::new),
            attributes,
            uuids: BTreeSet::new(),
        })
    }

    /// Has the attributes read, whatever is selected.
    fn add_to(&self, resource: &'static Resource, page: &mut PageQuery) {
        if let Some(select) = &mut page.select {
            let attributes = self.attributes.iter();
            select.extend(attributes.filter_map(|name| resource.public_attr(name)));
        }
    }

    fn note(&mut self, record: &Record) {
        let named = self
            .attributes
            .iter()
            .filter_map(|name| record.some_text(name));
        self.uuids.extend(named.map(str::to_owned));
    }

    /// Fetches those of the noted records that the caller may read.
    fn fetch(&mut self, connection: &Connection, call: &Call) -> Result<()> {
        let Some(records) = &mut self.records else {
            return Ok(());
        };
        let uuids = SqlValue::Text(json!(self.uuids).to_string());
        for resource in [&USERS, &GROUPS, &CONTAINERS] {
            let mut clause = Clause::default();
            clause.and("uuid IN (SELECT value FROM json_each(?))", [uuids.clone()]);
            Access::new(connection, &call.caller).restrict_to_readable(resource, &mut clause)?;
            let page = PageQuery {
                limit: MAX_PAGE_SIZE,
                ..PageQuery::default()
            };
            let mut found = list::fetch_page(connection, resource, &clause, &page)?.items;
            computed::add(connection, &call.caller, resource, None, &mut found)?;
            for mut record in found {
                if resource.table == "users" {
                    users::hide_private(call, &mut record);
                }
                records.push(render::list_item(resource, record, None));
            }
        }
        Ok(())
    }
}
