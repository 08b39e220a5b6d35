//! Requests that every resource has: list, get, and the response with one record.

use rusqlite::Connection;
use rusqlite::types::Value as SqlValue;
use serde_json::{Value, json};

use super::call::{Call, Reply};
use super::{computed, render};
use crate::auth::{Access, Caller};
use crate::clock;
use crate::db::filter::Clause;
use crate::db::list::{self, PageQuery};
use crate::db::trash::{self, IN_PROJECTS};
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::{Attr, Resource, TOKENS};
use crate::store::transaction::Tx;

/// `GET /arvados/v1/RESOURCE`.
pub fn list(call: &Call, resource: &'static Resource) -> Result<Reply> {
    list_finished(call, resource, |_| ())
}

/// The same, with a last change of each record for this caller.
pub fn list_finished(
    call: &Call,
    resource: &'static Resource,
    finish: impl Fn(&mut Record),
) -> Result<Reply> {
    let params = &call.params;
    page(call, resource, finish, |connection, clause| {
        // Tokens are listed only to their owner and the system user, not to every administrator.
        if resource.table == TOKENS.table && call.caller.user_uuid != call.app.config.system_user()
        {
            let me = SqlValue::Text(call.caller.user_uuid.clone());
            clause.and("owner_uuid = ?", [me]);
        }
        let access = Access::new(connection, &call.caller);
        access.restrict_to_readable(resource, clause)?;
        match params.flag("include_trash") {
            true => Ok(()),
            false => access.leave_out_trash(resource, clause),
        }
    })
}

/// A list of the records that meet a condition of the route. It says who may read them.
pub fn list_where(
    call: &Call,
    resource: &'static Resource,
    restrict: impl Fn(&Connection, &mut Clause) -> Result<()>,
) -> Result<Reply> {
    page(call, resource, |_| (), restrict)
}

fn page(
    call: &Call,
    resource: &'static Resource,
    finish: impl Fn(&mut Record),
    restrict: impl Fn(&Connection, &mut Clause) -> Result<()>,
) -> Result<Reply> {
    let params = &call.params;
    let page = PageQuery::parse(resource, |name| params.get(name))?;
    let mut clause = Clause::default();
    let mut filters = params.get("filters");
    if resource.table == TOKENS.table {
        let emulate = call.app.config.emulate;
        emulate.check_token_select(&params.get("select"))?;
        filters = emulate.token_filters(filters);
    }
    clause.add_filters(resource, &filters)?;
    clause.add_where(resource, &params.get("where"))?;
    let found = call.app.readers.read(|connection| {
        restrict(connection, &mut clause)?;
        let mut found = list::fetch_page(connection, resource, &clause, &page)?;
        let select = page.select.as_deref();
        computed::add(connection, &call.caller, resource, select, &mut found.items)?;
        Ok(found)
    })?;
    let items: Vec<Value> = found
        .items
        .into_iter()
        .map(|mut record| {
            finish(&mut record);
            render::list_item(resource, record, page.select.as_deref())
        })
        .collect();
    let range = (Some(page.offset), Some(page.limit));
    Ok(render::list(&resource.list_kind(), range, items, found.available).into())
}

/// `GET /arvados/v1/RESOURCE/UUID`.
pub fn get(call: &Call, resource: &'static Resource, uuid: &str) -> Result<Reply> {
    show(call, resource, fetch(call, resource, uuid)?)
}

/// The record, if the caller may read it, and in the trash only if that is asked for.
pub fn fetch(call: &Call, resource: &'static Resource, uuid: &str) -> Result<Record> {
    let with_trash = call.params.flag("include_trash") || !IN_PROJECTS.contains(&resource.table);
    call.app.readers.read(|connection| {
        let found = Access::new(connection, &call.caller).require_readable(resource, uuid)?;
        match !with_trash && trash::is_in_trash(connection, &found, &clock::now())? {
            true => Err(ApiError::path_not_found()),
            false => computed::with(connection, &call.caller, resource, found),
        }
    })
}

/// Creates, changes or deletes a record, and shows it with its computed attributes.
pub fn write(
    call: &Call,
    resource: &'static Resource,
    change: impl FnOnce(&Tx<'_>, &Caller) -> Result<Record> + Send + 'static,
) -> Result<Reply> {
    let caller = call.caller.clone();
    let written = call.write(move |tx| {
        let written = change(tx, &caller)?;
        computed::with(tx.conn, &caller, resource, written)
    })?;
    show(call, resource, written)
}

/// Changes or deletes a record that the caller may read.
pub fn change(
    call: &Call,
    resource: &'static Resource,
    uuid: &str,
    change: impl FnOnce(&Tx<'_>, &Caller, Record) -> Result<Record> + Send + 'static,
) -> Result<Reply> {
    let uuid = uuid.to_owned();
    write(call, resource, move |tx, caller| {
        let old = Access::new(tx.conn, caller).require_readable(resource, &uuid)?;
        change(tx, caller, old)
    })
}

/// The response with one record, limited to the selected attributes.
pub fn show(call: &Call, resource: &'static Resource, record: Record) -> Result<Reply> {
    let select = select(call, resource)?;
    Ok(render::record(resource, record, select.as_deref()))
}

/// The selection for one record. Unknown attributes are ignored unless no other is selected.
pub fn select(call: &Call, resource: &'static Resource) -> Result<Option<Vec<&'static Attr>>> {
    let given = call.params.get("select");
    let known = list::known_attributes(resource, &given);
    if known == json!([]) && given != known {
        return Err(ApiError::invalid(format!("Invalid attribute(s): {given}")));
    }
    list::parse_select(resource, &known)
}
