//! A small pool of read-only connections.

use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};

use crate::error::Result;

/// Readers are lent to one request at a time; who finds none waits for the next to come back.
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

    /// Run `look` on one consistent snapshot.
    pub fn read<T>(&self, look: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let lent = Lent {
            pool: self,
            connection: Some(self.take()),
        };
        let connection = lent.connection.as_ref().expect("held until drop");
        let snapshot = connection.unchecked_transaction()?;
        let answer = look(&snapshot)?;
        drop(snapshot);
        Ok(answer)
    }

    fn take(&self) -> Connection {
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

/// Gives the connection back also when `look` panics.
struct Lent<'a> {
    pool: &'a Readers,
    connection: Option<Connection>,
}

impl Drop for Lent<'_> {
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
