//! The one writer: queued writes share a transaction, and each is answered only after the commit.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tracing::{error, warn};

use crate::error::{ApiError, Result};
use crate::events::Event;
use crate::tx::{Effects, Setting, Tx};

/// Writes waiting beyond this many are refused with "busy".
const QUEUE: usize = 1024;
/// At most this many writes share one commit, so that the first of them is not kept waiting.
const BATCH: usize = 128;

type Publish = Box<dyn Fn(Vec<Event>, Vec<crate::auth::attempt::Override>) + Send>;

/// What one queued write needs from the writer thread.
trait Job: Send {
    fn run(&mut self, tx: &Tx<'_>) -> Outcome;
    /// Answer whoever waits.
    fn answer(self: Box<Self>, commit: std::result::Result<(), CommitFailed>);
}

/// What becomes of one write within its group.
enum Outcome {
    Keep,
    Undo,
    /// SQLite may have undone the whole transaction on its own; the group is lost.
    DiskFull,
}

/// Why a whole group was lost.
#[derive(Clone, Copy)]
enum CommitFailed {
    DiskFull,
    Failed,
}

struct Write<F, T> {
    work: Option<F>,
    done: Option<Result<T>>,
    reply: Sender<Result<T>>,
}

impl<F, T> Job for Write<F, T>
where
    F: FnOnce(&Tx<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> Outcome {
        self.done = self.work.take().map(|work| work(tx));
        match self.done {
            Some(Ok(_)) => Outcome::Keep,
            Some(Err(ApiError::DiskFull)) => Outcome::DiskFull,
            _ => Outcome::Undo,
        }
    }

    fn answer(mut self: Box<Self>, commit: std::result::Result<(), CommitFailed>) {
        let answer = match (self.done.take(), commit) {
            (Some(Err(refused)), _) => Err(refused),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (_, Err(CommitFailed::DiskFull)) => Err(ApiError::DiskFull),
            (_, _) => Err(ApiError::NotWritten),
        };
        // The request may have been given up; nobody is left to tell then.
        let _ = self.reply.send(answer);
    }
}

/// The handle that requests use.
pub struct Writer {
    queue: SyncSender<Box<dyn Job>>,
}

impl Writer {
    /// Start the thread. `publish` is called after each commit and before its answers.
    pub fn start(
        connection: Connection,
        setting: Arc<Setting>,
        database: PathBuf,
        publish: Publish,
    ) -> std::io::Result<(Writer, JoinHandle<()>)> {
        let (queue, jobs) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || serve(connection, &setting, &database, &jobs, &publish))?;
        Ok((Writer { queue }, thread))
    }

    /// Queue a write and wait for its commit. Blocks: call it from a blocking thread.
    pub fn write<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let (reply, answer) = channel();
        let job = Box::new(Write {
            work: Some(work),
            done: None,
            reply,
        });
        self.queue.try_send(job).map_err(|refused| match refused {
            TrySendError::Full(_) => ApiError::Busy,
            TrySendError::Disconnected(_) => ApiError::Stopping,
        })?;
        answer.recv().map_err(|_| ApiError::Stopping)?
    }
}

fn serve(
    mut connection: Connection,
    setting: &Setting,
    database: &std::path::Path,
    jobs: &Receiver<Box<dyn Job>>,
    publish: &Publish,
) {
    while let Ok(first) = jobs.recv() {
        let mut group = vec![first];
        group.extend(jobs.try_iter().take(BATCH - 1));
        let outcome = commit_group(&mut connection, setting, &mut group);
        let answer = match outcome {
            Ok(effects) => {
                publish(effects.events, effects.overrides);
                Ok(())
            }
            Err(failure) => {
                let full = failure.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
                error!(database = %database.display(), error = %failure, writes = group.len(),
                       "a group of writes could not be committed; none of them took effect");
                Err(if full {
                    CommitFailed::DiskFull
                } else {
                    CommitFailed::Failed
                })
            }
        };
        for job in group {
            job.answer(answer);
        }
    }
}

fn commit_group(
    connection: &mut Connection,
    setting: &Setting,
    group: &mut [Box<dyn Job>],
) -> rusqlite::Result<Effects> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut kept = Effects::default();
    for job in group.iter_mut() {
        transaction.execute_batch("SAVEPOINT one")?;
        let tx = Tx::new(&transaction, setting);
        // One write that panics must not take the writer, and with it the server, down.
        let keep = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run(&tx)));
        match keep {
            Ok(Outcome::Keep) => {
                kept.absorb(tx.into_effects());
                transaction.execute_batch("RELEASE one")?;
            }
            Ok(Outcome::Undo) => transaction.execute_batch("ROLLBACK TO one; RELEASE one")?,
            Ok(Outcome::DiskFull) => {
                let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
                return Err(rusqlite::Error::SqliteFailure(full, None));
            }
            Err(_) => {
                warn!("a write was undone because it panicked");
                transaction.execute_batch("ROLLBACK TO one; RELEASE one")?;
            }
        }
    }
    transaction.commit()?;
    Ok(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;
    use crate::record::Record;
    use crate::schema::LINKS;

    /// A writer over a database that may not grow beyond so many pages.
    fn writer(directory: &std::path::Path, pages: u32) -> (Writer, JoinHandle<()>) {
        let database = directory.join("state.db");
        let connection = crate::db::open(&database).unwrap();
        connection
            .pragma_update(None, "max_page_count", pages)
            .unwrap();
        let setting = Setting::of_a_test();
        Writer::start(connection, Arc::new(setting), database, Box::new(|_, _| ())).unwrap()
    }

    fn add(writer: &Writer, name: String) -> Result<String> {
        writer.write(move |tx| {
            let who = Identity::system(tx.setting.system_user());
            let link = Record::new().with("name", name).with("link_class", "test");
            Ok(tx.create(&LINKS, &who, link)?.uuid().to_owned())
        })
    }

    #[test]
    fn a_full_disk_is_told_and_takes_nothing_that_was_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, thread) = writer(directory.path(), 120);
        let mut accepted = Vec::new();
        let refused = loop {
            match add(&writer, "x".repeat(20_000)) {
                Ok(uuid) => accepted.push(uuid),
                Err(refused) => break refused,
            }
            assert!(accepted.len() < 1000, "the disk never filled");
        };
        assert!(matches!(refused, ApiError::DiskFull), "{refused}");
        assert!(!accepted.is_empty());
        let kept: i64 = writer
            .write(|tx| {
                Ok(tx
                    .conn
                    .query_row("SELECT count(*) FROM links", [], |row| row.get(0))?)
            })
            .unwrap();
        assert_eq!(kept, accepted.len() as i64);
        drop(writer);
        thread.join().unwrap();
    }

    #[test]
    fn a_refused_or_panicking_write_takes_nothing_else_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, thread) = writer(directory.path(), 10_000);
        let refused: Result<()> = writer.write(|tx| {
            tx.conn.execute("DELETE FROM links", [])?;
            Err(ApiError::denied())
        });
        assert!(matches!(refused, Err(ApiError::Denied(_))));
        add(&writer, "kept".into()).unwrap();
        let broken: Result<()> = writer.write(|tx| {
            tx.conn.execute("DELETE FROM links", [])?;
            panic!("as a test")
        });
        assert!(matches!(broken, Err(ApiError::NotWritten)));
        let kept: i64 = writer
            .write(|tx| {
                Ok(tx
                    .conn
                    .query_row("SELECT count(*) FROM links", [], |row| row.get(0))?)
            })
            .unwrap();
        assert_eq!(kept, 1);
        drop(writer);
        thread.join().unwrap();
    }
}
