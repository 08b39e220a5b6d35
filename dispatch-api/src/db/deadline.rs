//! Ends the statements of a connection that take too long. Input: a time. Output: SQLite's error
//! "interrupted" in the statement that runs then, and in later ones until another time is set.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rusqlite::Connection;

/// Instructions of SQLite between two looks at the time.
const LOOK_INTERVAL: i32 = 1000;

/// When the statements of a connection are ended.
#[derive(Clone, Default)]
pub struct Deadline(Arc<Mutex<Option<Instant>>>);

impl Deadline {
    /// The deadline of this connection; none at first.
    pub fn of(connection: &mut Connection) -> rusqlite::Result<Self> {
        let deadline = Self::default();
        let looked_at = deadline.clone();
        connection.progress_handler(LOOK_INTERVAL, Some(move || looked_at.has_passed()))?;
        Ok(deadline)
    }

    /// Sets the time, or that there is none.
    pub fn set(&self, at: Option<Instant>) {
        *self.0.lock() = at;
    }

    fn has_passed(&self) -> bool {
        let at = *self.0.lock();
        at.is_some_and(|at| Instant::now() > at)
    }
}
