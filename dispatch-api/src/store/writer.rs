//! The writer thread: queued writes share a transaction, and each gets its reply after the commit.
//!
//! Clients get the same time in it ([`FairQueue`]), and no write may take long.

use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode, Transaction};
use tracing::{error, warn};

use crate::container::follow_up;
use crate::db::deadline::Deadline;
use crate::error::{ApiError, Result};
use crate::events::event::Event;
use crate::limits::ClientKey;
use crate::store::cluster_config::ClusterConfig;
use crate::store::fair_queue::{FairQueue, QueueLimits, Refused};
use crate::store::transaction::{Effects, Tx};

/// Maximum numbers of waiting writes; more are rejected as "busy".
const MAX_QUEUED_WRITES: QueueLimits = QueueLimits {
    all: 1024,
    of_one: 256,
};
/// Maximum number of writes that share a commit, and time after which no more are added. They bound
/// the wait of the first.
const MAX_BATCH_WRITES: usize = 128;
const MAX_BATCH_TIME: Duration = Duration::from_millis(5);
/// Time after which a write is ended. All others wait meanwhile.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);

/// For whom a write is done.
#[derive(Clone)]
pub struct WriteOrigin {
    /// None: the server itself.
    client: Option<ClientKey>,
    /// Exists while the client waits. Nothing is written for one that is gone.
    request: Weak<()>,
}

impl WriteOrigin {
    /// A request of a client, as long as `request` exists.
    pub fn client(key: ClientKey, request: Weak<()>) -> Self {
        Self {
            client: Some(key),
            request,
        }
    }

    /// The server's own work, which has no deadline.
    pub fn server() -> Self {
        Self {
            client: None,
            request: Weak::new(),
        }
    }

    fn is_gone(&self) -> bool {
        self.client.is_some() && self.request.strong_count() == 0
    }
}

type Queue = FairQueue<Option<ClientKey>, Box<dyn QueuedWrite>>;
type Publish = Box<dyn Fn(Vec<Event>, Vec<crate::auth::attempt_token::ExpiryOverride>) + Send>;

/// A queued write, as the writer thread uses it.
trait QueuedWrite: Send {
    fn run(&mut self, tx: &Tx<'_>) -> WriteOutcome;
    /// Whether it may not take long.
    fn is_timed(&self) -> bool;
    /// Sends the result to the waiting request.
    fn send_reply(self: Box<Self>, commit: std::result::Result<(), CommitError>);
}

/// What happens to one write of a batch.
enum WriteOutcome {
    Commit,
    RollBack,
    /// SQLite may have rolled back the whole transaction; the batch is lost.
    DiskFull,
    /// Nobody waits for it any more.
    Gone,
}

/// The reason why a whole batch was lost.
#[derive(Clone, Copy)]
enum CommitError {
    DiskFull,
    Failed,
    /// One of its writes was ended because it took too long.
    TooSlow,
}

struct WriteRequest<F, T> {
    origin: WriteOrigin,
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
        if self.origin.is_gone() {
            return WriteOutcome::Gone;
        }
        let done = self.work.take().map(|work| work(tx));
        self.result = done.map(|done| done.and_then(|value| follow_up::run(tx).map(|()| value)));
        match self.result {
            Some(Ok(_)) => WriteOutcome::Commit,
            Some(Err(ApiError::DiskFull)) => WriteOutcome::DiskFull,
            _ => WriteOutcome::RollBack,
        }
    }

    fn is_timed(&self) -> bool {
        self.origin.client.is_some()
    }

    fn send_reply(mut self: Box<Self>, commit: std::result::Result<(), CommitError>) {
        let reply = match (self.result.take(), commit) {
            (Some(Err(refused)), _) => Err(refused),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (_, Err(CommitError::DiskFull)) => Err(ApiError::DiskFull),
            (_, Err(CommitError::TooSlow)) => Err(ApiError::Busy),
            (_, _) => Err(ApiError::NotWritten),
        };
        // The request may have been cancelled already.
        let _ = self.reply.send(reply);
    }
}

/// The handle that requests use.
pub struct Writer {
    queue: Arc<Queue>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Writer {
    /// Starts the thread. It calls `publish` after each commit and before the replies.
    pub fn start(
        mut connection: Connection,
        config: Arc<ClusterConfig>,
        database: PathBuf,
        publish: Publish,
    ) -> std::io::Result<(Writer, JoinHandle<()>)> {
        let deadline = Deadline::of(&mut connection).map_err(std::io::Error::other)?;
        let queue = Arc::new(Queue::new(MAX_QUEUED_WRITES));
        let queued = queue.clone();
        let thread = std::thread::Builder::new()
            .name("writer".into())
            .spawn(move || {
                run_writer(connection, &config, &database, &queued, &deadline, &publish)
            })?;
        Ok((Writer { queue }, thread))
    }

    /// Queues a write and waits for its commit. It blocks: call it from a blocking thread.
    pub fn write<T, F>(&self, origin: WriteOrigin, work: F) -> Result<T>
    where
        F: FnOnce(&Tx<'_>) -> Result<T> + Send + 'static,
        T: Send + 'static,
    {
        let (reply, receiver) = channel();
        let client = origin.client.clone();
        let write = Box::new(WriteRequest {
            origin,
            work: Some(work),
            result: None,
            reply,
        });
        self.queue
            .push(client, write)
            .map_err(|refused| match refused {
                Refused::Full => ApiError::Busy,
                Refused::Closed => ApiError::Stopping,
            })?;
        receiver.recv().map_err(|_| ApiError::Stopping)?
    }
}

fn run_writer(
    mut connection: Connection,
    config: &ClusterConfig,
    database: &std::path::Path,
    queue: &Queue,
    deadline: &Deadline,
    publish: &Publish,
) {
    // Has a second owner while follow-ups wait in the queue.
    let follow_ups = Arc::new(());
    while let Some(first) = queue.pop() {
        let mut batch = Vec::new();
        let outcome = commit_batch(
            &mut connection,
            config,
            (first, queue),
            deadline,
            &mut batch,
        );
        deadline.set(None);
        let committed = match outcome {
            Ok(effects) => {
                if effects.is_unfinished && Arc::strong_count(&follow_ups) == 1 {
                    // If the queue is full or closed, the next periodic run does them.
                    let _ = queue.push(None, follow_up_write(follow_ups.clone()));
                }
                publish(effects.events, effects.overrides);
                Ok(())
            }
            Err(failure) => {
                error!(database = %database.display(), error = %failure, writes = batch.len(),
                       "cannot commit a batch of writes; all of them are rolled back");
                Err(match failure.sqlite_error_code() {
                    Some(ErrorCode::DiskFull) => CommitError::DiskFull,
                    Some(ErrorCode::OperationInterrupted) => CommitError::TooSlow,
                    _ => CommitError::Failed,
                })
            }
        };
        for write in batch {
            write.send_reply(committed);
        }
    }
}

/// The write that goes on with what other writes have begun. Nobody waits for it.
fn follow_up_write(queued: Arc<()>) -> Box<dyn QueuedWrite> {
    let work = move |tx: &Tx<'_>| {
        drop(queued);
        follow_up::run_batch(tx)
    };
    Box::new(WriteRequest {
        origin: WriteOrigin::server(),
        work: Some(work),
        result: None,
        reply: channel().0,
    })
}

/// Runs the first write, and others that wait, in one transaction. All of them are in `batch` then,
/// whatever the result.
fn commit_batch(
    connection: &mut Connection,
    config: &ClusterConfig,
    (first, queue): ((Option<ClientKey>, Box<dyn QueuedWrite>), &Queue),
    deadline: &Deadline,
    batch: &mut Vec<Box<dyn QueuedWrite>>,
) -> rusqlite::Result<Effects> {
    let began = Instant::now();
    let mut effects = Effects::default();
    let mut next = Some(first);
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate);
    let transaction = match transaction {
        Ok(transaction) => transaction,
        Err(error) => {
            batch.extend(next.map(|(_, write)| write));
            return Err(error);
        }
    };
    while let Some((client, mut write)) = next {
        let started = Instant::now();
        let done = run_write(&transaction, config, write.as_mut(), deadline, started);
        batch.push(write);
        queue.charge(&client, started.elapsed());
        effects.append(done?);
        let has_room = batch.len() < MAX_BATCH_WRITES && began.elapsed() < MAX_BATCH_TIME;
        next = if has_room { queue.try_pop() } else { None };
    }
    transaction.commit()?;
    Ok(effects)
}

/// Runs one write. An error costs the whole batch.
fn run_write(
    transaction: &Transaction<'_>,
    config: &ClusterConfig,
    write: &mut dyn QueuedWrite,
    deadline: &Deadline,
    started: Instant,
) -> rusqlite::Result<Effects> {
    let failed = |code| rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
    transaction.execute_batch("SAVEPOINT one")?;
    let tx = Tx::new(transaction, config);
    deadline.set(write.is_timed().then(|| started + WRITE_TIMEOUT));
    // A panic of one write must not end the writer thread.
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write.run(&tx)));
    deadline.set(None);
    // SQLite rolls everything back where it interrupts a statement that writes.
    if transaction.is_autocommit() {
        return Err(failed(rusqlite::ffi::SQLITE_INTERRUPT));
    }
    match outcome {
        Ok(WriteOutcome::Commit) => {
            let effects = tx.into_effects();
            transaction.execute_batch("RELEASE one")?;
            return Ok(effects);
        }
        Ok(WriteOutcome::RollBack | WriteOutcome::Gone) => {}
        Ok(WriteOutcome::DiskFull) => return Err(failed(rusqlite::ffi::SQLITE_FULL)),
        Err(_) => warn!("rolled back a write that panicked"),
    }
    transaction.execute_batch("ROLLBACK TO one; RELEASE one")?;
    Ok(Effects::default())
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
        writer.write(WriteOrigin::server(), move |tx| {
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
            .write(WriteOrigin::server(), |tx| {
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
        let refused: Result<()> = writer.write(WriteOrigin::server(), |tx| {
            tx.conn.execute("DELETE FROM links", [])?;
            Err(ApiError::denied("as a test"))
        });
        assert!(matches!(refused, Err(ApiError::Denied(_))));
        add(&writer, "kept".into()).unwrap();
        let broken: Result<()> = writer.write(WriteOrigin::server(), |tx| {
            tx.conn.execute("DELETE FROM links", [])?;
            panic!("as a test")
        });
        assert!(matches!(broken, Err(ApiError::NotWritten)));
        let effects: i64 = writer
            .write(WriteOrigin::server(), |tx| {
                Ok(tx
                    .conn
                    .query_row("SELECT count(*) FROM links", [], |row| row.get(0))?)
            })
            .unwrap();
        assert_eq!(effects, 1);
        drop(writer);
        thread.join().unwrap();
    }

    fn of(user: &str, request: &Arc<()>) -> WriteOrigin {
        WriteOrigin::client(ClientKey::User(user.to_owned()), Arc::downgrade(request))
    }

    #[test]
    fn a_write_that_takes_too_long_is_ended_and_another_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, thread) = writer(directory.path(), 10_000);
        let request = Arc::new(());
        let endless =
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n";
        let (slow, quick) = std::thread::scope(|scope| {
            let slow = scope.spawn(|| {
                writer.write(of("a", &request), move |tx| {
                    Ok(tx.conn.query_row(endless, [], |row| row.get::<_, i64>(0))?)
                })
            });
            let quick = scope.spawn(|| add(&writer, "kept".into()));
            (slow.join().unwrap(), quick.join().unwrap())
        });
        assert!(matches!(slow, Err(ApiError::SlowQuery)), "{slow:?}");
        quick.unwrap();
        drop(writer);
        thread.join().unwrap();
    }

    #[test]
    fn nothing_is_written_for_a_client_that_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let (writer, thread) = writer(directory.path(), 10_000);
        let gone = of("a", &Arc::new(()));
        let refused: Result<()> = writer.write(gone, |_| panic!("it must not run"));
        assert!(matches!(refused, Err(ApiError::NotWritten)), "{refused:?}");
        drop(writer);
        thread.join().unwrap();
    }
}
