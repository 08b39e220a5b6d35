//! Listings of dispatch-api: no filters, order or selection makes it panic, or answer with a fault
//! of the server.

use std::cell::OnceCell;

use dispatch_api::db::filter::Clause;
use dispatch_api::db::list::{self, PageQuery};
use dispatch_api::error::ApiError;
use dispatch_api::schema::{self, Resource};
use rusqlite::Connection;
use serde_json::Value;

thread_local! {
    static DATABASE: OnceCell<Connection> = const { OnceCell::new() };
}

fn open() -> Connection {
    let dir = tempfile::tempdir_in("/dev/shm").expect("room in /dev/shm");
    dispatch_api::db::open(&dir.path().join("db")).expect("a database")
}

/// The first byte selects the resource; the rest is a JSON object of the listing's parameters.
pub fn check(bytes: &[u8]) {
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let Ok(params) = serde_json::from_slice::<Value>(rest) else {
        return;
    };
    let resource = schema::ALL[usize::from(*first) % schema::ALL.len()];
    DATABASE.with(|database| {
        let connection = database.get_or_init(open);
        if let Err(error) = list(connection, resource, &params) {
            assert!(!error.status().is_server_error(), "{error}");
        }
    });
}

fn list(
    connection: &Connection,
    resource: &'static Resource,
    params: &Value,
) -> Result<(), ApiError> {
    let page = PageQuery::parse(resource, |name| params[name].clone())?;
    let mut clause = Clause::default();
    clause.add_filters(resource, &params["filters"])?;
    clause.add_where(resource, &params["where"])?;
    list::fetch_page(connection, resource, &clause, &page)?;
    Ok(())
}
