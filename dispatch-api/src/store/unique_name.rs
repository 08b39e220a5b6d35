//! `ensure_unique_name`: a record whose name is taken gets a suffix instead of an error.

use super::transaction::Tx;
use crate::error::Result;
use crate::record::Record;
use crate::schema::Resource;

/// Adds a suffix to the name if another record of the same owner has the name. What is in the trash
/// has no name.
pub fn make_name_unique(tx: &Tx<'_>, resource: &Resource, record: &mut Record) -> Result<()> {
    let Some(name) = record.some_text("name").map(str::to_owned) else {
        return Ok(());
    };
    let not_in_trash = match resource.attr("is_trashed") {
        Some(_) => "AND is_trashed = 0",
        None => "",
    };
    let mut taken = tx.conn.prepare_cached(&format!(
        "SELECT 1 FROM {} WHERE owner_uuid = ?1 AND name = ?2 AND uuid <> ?3 {not_in_trash}",
        resource.table
    ))?;
    let owner = record.text("owner_uuid").to_owned();
    let uuid = record.uuid().to_owned();
    let mut candidate = name.clone();
    let mut round = 0;
    while taken.exists([&owner, &candidate, &uuid])? {
        round += 1;
        candidate = match round {
            1 => format!("{name} ({})", tx.now),
            _ => format!("{name} ({} {round})", tx.now),
        };
    }
    record.set("name", candidate);
    Ok(())
}
