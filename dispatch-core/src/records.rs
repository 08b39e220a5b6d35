//! The decisions in the server's `logs`: for people, and nothing depends on them. Many go in one call where the server
//! has that, or a burst of work would be as many calls again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arvados_client::Error;
use arvados_client::api::NewLog;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::act::is_no_such_call;
use crate::api::Api;
use crate::events::Event;

/// What kind of entry they are.
pub const EVENT_TYPE: &str = "dispatch";
/// Records waiting to be written; more are dropped.
const WAITING: usize = 2048;
/// How long a call may take with its repetitions.
const BUDGET: Duration = Duration::from_secs(15);
/// Calls for the same records while the server cannot be reached, and the time between them.
const TRIES: usize = 4;
const PAUSE: Duration = Duration::from_secs(5);

/// Where events go that are for the record.
#[derive(Debug)]
pub struct Records {
    queue: mpsc::Sender<Event>,
    /// How many the server takes in one call.
    most: Arc<AtomicUsize>,
}

/// Writes them, one call after the other.
#[derive(Debug)]
pub struct Writer<A> {
    api: A,
    queue: mpsc::Receiver<Event>,
    most: Arc<AtomicUsize>,
}

/// Records and what writes them, until the former is dropped.
pub fn records<A: Api>(api: A) -> (Records, Writer<A>) {
    let (sender, queue) = mpsc::channel(WAITING);
    let most = Arc::new(AtomicUsize::new(1));
    let records = Records {
        queue: sender,
        most: most.clone(),
    };
    (records, Writer { api, queue, most })
}

impl Records {
    /// Has it written, if it is for the record. A server that takes one entry a call is spared those of every
    /// container's usual course: two more calls for each container would be as many as its lock takes.
    pub fn keep(&self, event: Event) {
        let many = self.most.load(Ordering::Relaxed) > 1;
        if event.is_for_the_record() && (many || !event.is_routine()) {
            let _ = self.queue.try_send(event);
        }
    }

    /// The server takes so many in one call; 1: each by itself.
    pub fn at_once(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }
}

impl<A: Api> Writer<A> {
    /// Writes what there is until there will be no more.
    pub async fn run(mut self) {
        let mut events = Vec::new();
        loop {
            let most = self.most.load(Ordering::Relaxed).max(1);
            if self.queue.recv_many(&mut events, most).await == 0 {
                return;
            }
            let entries: Vec<NewLog> = events.drain(..).map(|event| entry(&event)).collect();
            for _ in 0..TRIES {
                match self.write(&entries).await {
                    Ok(()) => break,
                    Err(error) => {
                        tracing::debug!(%error, "the API did not take log records");
                        if !error.is_certain() {
                            break;
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    async fn write(&self, entries: &[NewLog]) -> Result<(), RecordError> {
        if entries.len() > 1 {
            match timeout(BUDGET, self.api.note_all(entries)).await? {
                Err(error) if is_no_such_call(&error) => self.most.store(1, Ordering::Relaxed),
                written => return Ok(written?.into_iter().collect::<Result<(), Error>>()?),
            }
        }
        for entry in entries {
            match timeout(BUDGET, self.api.note(entry)).await? {
                // One that is refused says nothing of the others.
                Err(error) if error.status().is_some() => {
                    tracing::debug!(container = entry.object_uuid, %error, "the API did not take a log record");
                }
                written => written?,
            }
        }
        Ok(())
    }
}

/// Why records were not written, as far as is known.
#[derive(Debug, thiserror::Error)]
enum RecordError {
    #[error("no answer within {} s", BUDGET.as_secs())]
    TimedOut(#[from] Elapsed),
    #[error(transparent)]
    Api(#[from] Error),
}

impl RecordError {
    /// Nothing of them is written: the server was not reached.
    fn is_certain(&self) -> bool {
        matches!(self, Self::Api(error) if error.status().is_none() && !error.is_ambiguous())
    }
}

fn entry(event: &Event) -> NewLog {
    NewLog {
        object_uuid: event.container().to_string(),
        event_type: EVENT_TYPE,
        properties: json!({"text": event.sentence(), "dispatch_event": event.name()}),
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::{ContainerUuid, TokenUuid};

    use super::*;

    #[test]
    fn a_server_that_takes_one_entry_a_call_gets_no_routine() {
        let (sender, mut queue) = mpsc::channel(9);
        let most = Arc::new(AtomicUsize::new(1));
        let records = Records {
            queue: sender,
            most,
        };
        let container = ContainerUuid::generate("zzzzz");
        let routine = Event::DecidedToRun {
            container: container.clone(),
            attempt: TokenUuid::generate("zzzzz"),
        };
        let refused = Event::SubmitFailed {
            container,
            error: "no".into(),
        };
        for (at_once, kept) in [(1, 1), (500, 2)] {
            records.at_once(at_once);
            records.keep(routine.clone());
            records.keep(refused.clone());
            let got = std::iter::from_fn(|| queue.try_recv().ok()).count();
            assert_eq!(got, kept, "{at_once}");
        }
    }
}
