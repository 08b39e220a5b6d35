//! SQLite: layout, read connections, rows, listings. Writes go through `store`.

pub mod deadline;
pub mod filter;
pub mod group_tree;
pub mod list;
mod migrate;
pub mod readers;
pub mod rows;
pub mod trash;

use std::path::Path;
use std::time::Duration;

use arvados_client::manifest::file_paths;
use host_state::file;
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

pub use migrate::{MigrateError, check_layout};

/// Time that a connection waits for another process's lock.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory of each connection for pages of the database. The kernel keeps them, too.
const CACHE_KIB: i64 = 4 << 10;

/// Opens the write connection, and creates or upgrades the database.
pub fn open(path: &Path) -> Result<Connection, MigrateError> {
    make_private(path)?;
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // FULL: a commit is on disk before its reply, even after a power failure.
    connection.pragma_update(None, "synchronous", "FULL")?;
    tune(&connection)?;
    migrate::upgrade(&mut connection, path)?;
    Ok(connection)
}

/// The database has the secrets of all tokens. SQLite gives its other files the mode of the first;
/// those of an earlier version may be readable by others.
fn make_private(path: &Path) -> std::io::Result<()> {
    file::make_private(path)?;
    for suffix in ["-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        if Path::new(&name).exists() {
            file::make_private(Path::new(&name))?;
        }
    }
    Ok(())
}

/// Settings of every connection. As in Arvados, `like` is case-sensitive.
fn tune(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.pragma_update(None, "case_sensitive_like", true)?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(256);
    group_tree::add_function(connection)?;
    add_file_names(connection)
}

/// The SQL function `file_names(manifest_text)`, for a filter: a line for each path.
fn add_file_names(connection: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    connection.create_scalar_function("file_names", 1, flags, |call| {
        let text = call.get_raw(0).as_str().unwrap_or_default();
        let mut paths = String::new();
        for path in file_paths(text) {
            paths.push_str(&path);
            paths.push('\n');
        }
        Ok(paths)
    })
}
