//! A small pool of read-only connections.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};

use crate::error::Result;

/// Each reader serves one request at a time; other requests wait for a free one.
pub struct Readers {
    idle: Mutex<Vec<Connection>>,
    returned: Condvar,
}

impl Readers {
    pub fn open(path: &Path, count: usize) -> rusqlite::Result<Self> {
        let idle = (0..count)
            .map(|_| open_one(path.to_path_buf()))
            .collect::<rusqlite::Result<_>>()?;
        Ok(Readers {
            idle: Mutex::new(idle),
            returned: Condvar::new(),
        })
    }

    /// Runs `query` on one consistent snapshot.
    pub fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let borrowed = BorrowedConnection {
            pool: self,
            connection: Some(self.borrow_connection()),
        };
        let connection = borrowed.connection.as_ref().expect("present until drop");
        let snapshot = connection.unchecked_transaction()?;
        let result = query(&snapshot)?;
        drop(snapshot);
        Ok(result)
    }

    fn borrow_connection(&self) -> Connection {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(connection) = idle.pop() {
                return connection;
            }
            idle = self
                .returned
                .wait(idle)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Returns the connection to the pool, even when a query panics.
struct BorrowedConnection<'a> {
    pool: &'a Readers,
    connection: Option<Connection>,
}

impl Drop for BorrowedConnection<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            self.pool
                .idle
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(connection);
            self.pool.returned.notify_one();
        }
    }
}

fn open_one(path: PathBuf) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    super::tune(&connection)?;
    Ok(connection)
}
