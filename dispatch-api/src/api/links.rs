//! `/arvados/v1/links`: image names and permissions.

use super::{Call, Reply, changes, resource};
use crate::auth::permission;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::LINKS;

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    let record = match (verb, rest) {
        ("GET", []) => return resource::list(call, &LINKS, |_| ()),
        ("POST", []) => create(call)?,
        ("GET", [uuid]) => resource::get(call, &LINKS, uuid)?,
        ("PUT", [uuid]) => update(call, uuid)?,
        ("DELETE", [uuid]) => {
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            call.app.write(move |tx| {
                let old = permission::must_read(tx.conn, &LINKS, &who, &uuid)?;
                permission::must_write(tx.conn, &who, &old)?;
                tx.delete(&LINKS, &who, &old)?;
                Ok(old)
            })?
        }
        _ => return Err(ApiError::path_not_found()),
    };
    resource::show(call, &LINKS, &record)
}

fn create(call: &Call) -> Result<Record> {
    let attributes = call.params.attributes(&LINKS)?;
    let who = call.who.clone();
    call.app.write(move |tx| {
        let mut link = changes::apply(&LINKS, &Record::new(), &attributes, &[])?;
        if link.some_text("link_class").is_none() {
            return Err(ApiError::invalid("Link class can't be blank"));
        }
        let owner = link
            .some_text("owner_uuid")
            .unwrap_or(&who.user_uuid)
            .to_owned();
        if !permission::may_write(tx.conn, &who, &owner)? {
            return Err(ApiError::denied());
        }
        check_grant(tx, &who, &link)?;
        link.set("owner_uuid", owner);
        tx.create(&LINKS, &who, link)
    })
}

fn update(call: &Call, uuid: &str) -> Result<Record> {
    let attributes = call.params.attributes(&LINKS)?;
    let (who, uuid) = (call.who.clone(), uuid.to_owned());
    call.app.write(move |tx| {
        let old = permission::must_read(tx.conn, &LINKS, &who, &uuid)?;
        permission::must_write(tx.conn, &who, &old)?;
        let new = changes::apply(&LINKS, &old, &attributes, &[])?;
        permission::must_write(tx.conn, &who, &new)?;
        check_grant(tx, &who, &new)?;
        tx.update(&LINKS, &who, &old, new)
    })
}

/// Only who may change an object may let others at it.
fn check_grant(tx: &crate::tx::Tx<'_>, who: &crate::auth::Caller, link: &Record) -> Result<()> {
    if link.text("link_class") != "permission" || who.is_admin {
        return Ok(());
    }
    let head = link.text("head_uuid");
    let resource = crate::schema::by_uuid(head).ok_or_else(ApiError::denied)?;
    let object = permission::must_read(tx.conn, resource, who, head)?;
    permission::must_write(tx.conn, who, &object)
}
