//! A small pool of read-only connections.

use std::path::Path;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, OpenFlags};

use super::deadline::Deadline;
use crate::error::Result;

/// Number of connections for the requests of all clients.
pub const CONNECTIONS: usize = 8;
/// Time after which the queries of a request are ended, because others wait for their connection.
/// The wait for a connection does not count.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Each reader serves one request at a time; other requests wait for a free one.
pub struct Readers {
    idle: Mutex<Vec<Reader>>,
    returned: Condvar,
    timeout: Duration,
}

struct Reader {
    connection: Connection,
    deadline: Deadline,
}

impl Readers {
    pub fn open(path: &Path, count: usize, timeout: Duration) -> rusqlite::Result<Self> {
        let idle = (0..count)
            .map(|_| Reader::open(path))
            .collect::<rusqlite::Result<_>>()?;
        Ok(Readers {
            idle: Mutex::new(idle),
            returned: Condvar::new(),
            timeout,
        })
    }

    /// Runs `query` on one consistent snapshot.
    pub fn read<T>(&self, query: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.read_within(Some(self.timeout), query)
    }

    /// Like [`Self::read`], however long it takes.
    pub fn read_everything<T>(&self, query: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.read_within(None, query)
    }

    fn read_within<T>(
        &self,
        timeout: Option<Duration>,
        query: impl FnOnce(&Connection) -> Result<T>,
    ) -> Result<T> {
        let borrowed = BorrowedReader {
            pool: self,
            reader: Some(self.borrow_reader()),
        };
        let reader = borrowed.reader.as_ref().expect("present until drop");
        let snapshot = reader.connection.unchecked_transaction()?;
        reader
            .deadline
            .set(timeout.map(|timeout| Instant::now() + timeout));
        let result = query(&snapshot);
        // The end of the snapshot is a query, too.
        reader.deadline.set(None);
        drop(snapshot);
        result
    }

    fn borrow_reader(&self) -> Reader {
        let mut idle = self.idle.lock();
        loop {
            if let Some(reader) = idle.pop() {
                return reader;
            }
            self.returned.wait(&mut idle);
        }
    }
}

impl Reader {
    fn open(path: &Path) -> rusqlite::Result<Self> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags)?;
        super::tune(&connection)?;
        let deadline = Deadline::of(&mut connection)?;
        Ok(Reader {
            connection,
            deadline,
        })
    }
}

/// Returns the reader to the pool, even when a query panics.
struct BorrowedReader<'a> {
    pool: &'a Readers,
    reader: Option<Reader>,
}

impl Drop for BorrowedReader<'_> {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.deadline.set(None);
            self.pool.idle.lock().push(reader);
            self.pool.returned.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ApiError;

    const ENDLESS: &str = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) \
                           SELECT count(*) FROM n";

    fn number(connection: &Connection, sql: &str) -> Result<i64> {
        Ok(connection.query_row(sql, [], |row| row.get(0))?)
    }

    #[test]
    fn a_query_that_takes_too_long_is_ended_and_its_connection_is_used_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.db");
        crate::db::open(&path).unwrap();
        let readers = Readers::open(&path, 1, Duration::from_millis(20)).unwrap();
        for _ in 0..2 {
            let ended = readers.read(|connection| number(connection, ENDLESS));
            assert!(matches!(ended, Err(ApiError::SlowQuery)), "{ended:?}");
            let long = ENDLESS.replace("FROM n)", "FROM n LIMIT 1000000)");
            let found = readers.read_everything(|connection| number(connection, &long));
            assert_eq!(found.unwrap(), 1_000_000);
        }
    }
}
