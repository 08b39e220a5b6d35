//! SQLite: layout, one writer that commits in groups, and a small pool of readers.

pub mod filter;
pub mod list;
mod migrate;
pub mod readers;
pub mod rows;
pub mod writer;

use std::path::Path;

use rusqlite::Connection;

pub use migrate::MigrateError;

/// Open the writing connection, creating or upgrading the database.
pub fn open(path: &Path) -> Result<Connection, MigrateError> {
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // FULL: a commit is on disk before it is answered, also after a power cut.
    connection.pragma_update(None, "synchronous", "FULL")?;
    tune(&connection)?;
    migrate::upgrade(&mut connection, path)?;
    Ok(connection)
}

/// Settings every connection needs; `like` must tell case apart as it does in the real API.
fn tune(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.pragma_update(None, "case_sensitive_like", true)?;
    connection.pragma_update(None, "cache_size", -16_384)?;
    connection.set_prepared_statement_cache_capacity(256);
    Ok(())
}
