//! The writer thread: queued writes share a transaction, and each gets its reply after the commit.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use rusqlite::Connection;
use tracing::{error, warn};

use crate::error::{ApiError, Result};
use crate::events::event::Event;
use crate::store::cluster_config::ClusterConfig;
use crate::store::transaction::{Effects, Tx};

/// Maximum number of waiting writes; more are rejected as "busy".
const MAX_QUEUED_WRITES: usize = 1024;
/// Maximum number of writes that share a commit, which bounds the wait of the first.
const MAX_BATCH_WRITES: usize = 128;

type Publish = Box<dyn Fn(Vec<Event>, Vec<crate::auth::attempt_token::ExpiryOverride>) + Send>;

/// A queued write, as the writer thread uses it.
trait QueuedWrite: Send {
    fn run(&mut self, tx: &Tx<'_>) -> WriteOutcome;
    /// Sends the result to the waiting request.
    fn send_reply(self: Box<Self>, commit: std::result::Result<(), CommitError>);
}

/// What happens to one write of a batch.
enum WriteOutcome {
    Commit,
    RollBack,
    /// SQLite may have rolled back the whole transaction; the batch is lost.
    DiskFull,
}

/// The reason why a whole batch was lost.
#[derive(Clone, Copy)]
enum CommitError {
    DiskFull,
    Failed,
}

struct WriteRequest<F, T> {
    work: Option<F>,
    result: Option<Result<T>>,
    reply: Sender<Result<T>>,
}

impl<F, T> QueuedWrite for WriteRequest<F, T>
where
    F: FnOnce(&Tx<'_>) -> Result<T> + Send,
    T: Send,
{
    fn run(&mut self, tx: &Tx<'_>) -> WriteOutcome {
        self.result = self.work.take().map(|work| work(tx));
        match self.result {
            Some(Ok(_)) => WriteOutcome::Commit,
            Some(Err(ApiError::DiskFull)) => WriteOutcome::DiskFull,
            _ => WriteOutcome::RollBack,
        }
    }

    fn send_reply(mut self: Box<Self>, commit: std::result::Result<(), CommitError>) {
        let reply = match (self.result.take(), commit) {
            (Some(Err(refused)), _) => Err(refused),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (_, Err(CommitError::DiskFull)) => Err(ApiError::DiskFull),
            (_, _) => Err(ApiError::NotWritten),
        };
        // The request may have been cancelled already.
        let _ = self.reply.send(reply);
    }
}

/// The handle that requests use.
pub struct Writer {
    queue: SyncSender<Box<dyn QueuedWrite>>,
}

impl Writer {
    /// Starts the thread. It calls `publish` after each commit and before the replies.
    pub fn start(
        connection: Connection,
        config: Arc<ClusterConfig>,
        database: PathBuf,
        publish: Publish,
    ) -> std::io::Result<(Writer, JoinHandle<()>)> {
        let (queue, queued_writes) = sync_channel(MAX_QUEUED_WRITES);
        let thread = std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || run_writer(connection, &config, &database, &queued_writes, &publish))?;
        Ok((Writer { queue }, thread))
    }

    /// Queues a write and waits for its commit. It blocks: call it from a blocking thread.
    pub fn write<T, F>(&self, work: F) -> Result<T>
    where
        F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let (reply, receiver) = channel();
        let write = Box::new(WriteRequest {
            work: Some(work),
            result: None,
            reply,
        });
        self.queue
            .try_send(write)
            .map_err(|refused| match refused {
                TrySendError::Full(_) => ApiError::Busy,
                TrySendError::Disconnected(_) => ApiError::Stopping,
            })?;
        receiver.recv().map_err(|_| ApiError::Stopping)?
    }
}

fn run_writer(
    mut connection: Connection,
    config: &ClusterConfig,
    database: &std::path::Path,
    queued_writes: &Receiver<Box<dyn QueuedWrite>>,
    publish: &Publish,
) {
    while let Ok(first) = queued_writes.recv() {
        let mut batch = vec![first];
        batch.extend(queued_writes.try_iter().take(MAX_BATCH_WRITES - 1));
        let outcome = commit_batch(&mut connection, config, &mut batch);
        let committed = match outcome {
            Ok(effects) => {
                publish(effects.events, effects.overrides);
                Ok(())
            }
            Err(failure) => {
                let full = failure.sqlite_error_code() == Some(rusqlite::ErrorCode::DiskFull);
                error!(database = %database.display(), error = %failure, writes = batch.len(),
                       "cannot commit a batch of writes; all of them are rolled back");
                Err(if full {
                    CommitError::DiskFull
                } else {
                    CommitError::Failed
                })
            }
        };
        for write in batch {
            write.send_reply(committed);
        }
    }
}

fn commit_batch(
    connection: &mut Connection,
    config: &ClusterConfig,
    batch: &mut [Box<dyn QueuedWrite>],
) -> rusqlite::Result<Effects> {
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    let mut effects = Effects::default();
    for write in batch.iter_mut() {
        transaction.execute_batch("SAVEPOINT one")?;
        let tx = Tx::new(&transaction, config);
        // A panic of one write must not end the writer thread.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write.run(&tx)));
        match outcome {
            Ok(WriteOutcome::Commit) => {
                effects.append(tx.into_effects());
                transaction.execute_batch("RELEASE one")?;
            }
            Ok(WriteOutcome::RollBack) => {
                transaction.execute_batch("ROLLBACK TO one; RELEASE one")?
            }
            Ok(WriteOutcome::DiskFull) => {
                let full = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL);
                return Err(rusqlite::Error::SqliteFailure(full, None));
            }
            Err(_) => {
                warn!("rolled back a write that panicked");
                transaction.execute_batch("ROLLBACK TO one; RELEASE one")?;
            }
        }
    }
    transaction.commit()?;
    Ok(effects)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::Identity;
    use crate::record::Record;
    use crate::schema::LINKS;

    /// A writer over a database with a limited number of pages.
    fn writer(directory: &std::path::Path, pages: u32) -> (Writer, JoinHandle<()>) {
        let database = directory.join("state.db");
        let connection = crate::db::open(&database).unwrap();
        connection
            .pragma_update(None, "max_page_count", pages)
            .unwrap();
        let config = ClusterConfig::for_tests();
        Writer::start(connection, Arc::new(config), database, Box::new(|_, _| ())).unwrap()
    }

    fn add(writer: &Writer, name: String) -> Result<String> {
        writer.write(move |tx| {
            let caller = Identity::system(tx.config.system_user());
            let link = Record::new().with("name", name).with("link_class", "test");
            Ok(tx.create(&LINKS, &caller, link)?.uuid().to_owned())
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
        let effects: i64 = writer
            .write(|tx| {
                Ok(tx
                    .conn
                    .query_row("SELECT count(*) FROM links", [], |row| row.get(0))?)
            })
            .unwrap();
        assert_eq!(effects, accepted.len() as i64);
        drop(writer);
        thread.join().unwrap();
    }

    #[test]
    fn a_refused_or_panicking_write_takes_nothing_else_with_it() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, thread) = writer(directory.path(), 10_000);
        let refused: Result<()> = writer.write(|tx| {
            tx.conn.execute("DELETE FROM links", [])?;
            Err(ApiError::denied("as a test"))
        });
        assert!(matches!(refused, Err(ApiError::Denied(_))));
        add(&writer, "kept".into()).unwrap();
        let broken: Result<()> = writer.write(|tx| {
            tx.conn.execute("DELETE FROM links", [])?;
            panic!("as a test")
        });
        assert!(matches!(broken, Err(ApiError::NotWritten)));
        let effects: i64 = writer
            .write(|tx| {
                Ok(tx
                    .conn
                    .query_row("SELECT count(*) FROM links", [], |row| row.get(0))?)
            })
            .unwrap();
        assert_eq!(effects, 1);
        drop(writer);
        thread.join().unwrap();
    }
}
