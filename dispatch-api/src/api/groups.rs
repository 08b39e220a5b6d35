//! `/arvados/v1/groups`: projects.

use super::{Call, Reply, changes, resource};
use crate::auth::permission;
use crate::error::{ApiError, Result};
use crate::record::Record;
use crate::schema::GROUPS;

pub fn route(call: &Call, verb: &str, rest: &[&str]) -> Result<Reply> {
    let record = match (verb, rest) {
        ("GET", []) => return resource::list(call, &GROUPS, |_| ()),
        ("POST", []) => create(call)?,
        ("GET", [uuid]) => resource::get(call, &GROUPS, uuid)?,
        ("PUT", [uuid]) => {
            let attributes = call.params.attributes(&GROUPS)?;
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            call.app.write(move |tx| {
                let old = permission::must_read(tx.conn, &GROUPS, &who, &uuid)?;
                permission::must_write(tx.conn, &who, &old)?;
                let new = changes::apply(&GROUPS, &old, &attributes, &[])?;
                permission::must_write(tx.conn, &who, &new)?;
                tx.update(&GROUPS, &who, &old, new)
            })?
        }
        ("DELETE", [uuid]) => {
            let (who, uuid) = (call.who.clone(), (*uuid).to_owned());
            call.app.write(move |tx| {
                let old = permission::must_read(tx.conn, &GROUPS, &who, &uuid)?;
                permission::must_write(tx.conn, &who, &old)?;
                tx.delete(&GROUPS, &who, &old)?;
                Ok(old)
            })?
        }
        _ => return Err(ApiError::path_not_found()),
    };
    resource::show(call, &GROUPS, &record)
}

fn create(call: &Call) -> Result<Record> {
    let attributes = call.params.attributes(&GROUPS)?;
    let who = call.who.clone();
    call.app.write(move |tx| {
        let mut group = changes::apply(&GROUPS, &Record::new(), &attributes, &[])?;
        if !matches!(group.text("group_class"), "project" | "filter" | "role") {
            return Err(ApiError::invalid(
                "Group class must be project, filter or role",
            ));
        }
        tx.setting.rules.check_name(group.text("name"))?;
        let owner = group
            .some_text("owner_uuid")
            .unwrap_or(&who.user_uuid)
            .to_owned();
        if !permission::may_write(tx.conn, &who, &owner)? {
            return Err(ApiError::denied());
        }
        group.set("owner_uuid", owner);
        tx.create(&GROUPS, &who, group)
    })
}
