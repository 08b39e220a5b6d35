//! Writes decisions to the server's `logs` table, for people; no program depends on them.
//!
//! Input: decisions through a bounded queue. Output: notes ([`NewLog::note`]).
//!
//! One bulk call writes many entries where the server supports that. Otherwise a burst of work
//! would cause as many extra calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arvados_client::Error;
use arvados_client::api::NewLog;
use tokio::sync::mpsc;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use crate::act::is_unsupported_call;
use crate::api::Api;
use crate::model::decision::Decision;

/// Maximum number of queued entries. Further ones are dropped.
const QUEUE_CAPACITY: usize = 2048;
/// Time limit of one call, retries included.
const LOG_RETRY_BUDGET: Duration = Duration::from_secs(15);
/// Maximum number of tries for the same entries while the server is unreachable, and the interval
/// between these tries.
const MAX_TRIES: usize = 4;
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The sending side of the log queue.
#[derive(Debug)]
pub struct ApiLog {
    queue: mpsc::Sender<Decision>,
    /// Maximum number of entries in one call.
    most: Arc<AtomicUsize>,
}

/// The receiving side of the log queue. It makes one call at a time.
#[derive(Debug)]
pub struct ApiLogWriter<A> {
    api: A,
    queue: mpsc::Receiver<Decision>,
    most: Arc<AtomicUsize>,
}

/// Creates both sides of the log queue. The writer stops when the sender is dropped.
pub fn api_log_channel<A: Api>(api: A) -> (ApiLog, ApiLogWriter<A>) {
    let (sender, queue) = mpsc::channel(QUEUE_CAPACITY);
    let most = Arc::new(AtomicUsize::new(1));
    let log = ApiLog {
        queue: sender,
        most: most.clone(),
    };
    (log, ApiLogWriter { api, queue, most })
}

impl ApiLog {
    /// Queues a decision that belongs in the API log. Routine decisions are skipped if the server
    /// takes only one entry per call. They would cost two more calls per container, as many as its
    /// lock.
    pub fn enqueue(&self, event: Decision) {
        let many = self.most.load(Ordering::Relaxed) > 1;
        if event.goes_to_api_log() && (many || !event.is_routine()) {
            let _ = self.queue.try_send(event);
        }
    }

    /// Sets the maximum number of entries in one call; 1 means single calls.
    pub fn set_batch_size(&self, most: usize) {
        self.most.store(most, Ordering::Relaxed);
    }
}

impl<A: Api> ApiLogWriter<A> {
    /// Writes entries until the queue is closed and empty.
    pub async fn run(mut self) {
        let mut events = Vec::new();
        loop {
            let most = self.most.load(Ordering::Relaxed).max(1);
            if self.queue.recv_many(&mut events, most).await == 0 {
                return;
            }
            let entries: Vec<NewLog> = events.drain(..).map(|event| entry(&event)).collect();
            for _ in 0..MAX_TRIES {
                match self.write(&entries).await {
                    Ok(()) => break,
                    Err(error) => {
                        tracing::debug!(%error, "could not write log records to the API server");
                        if !error.is_certain() {
                            break;
                        }
                        tokio::time::sleep(RETRY_INTERVAL).await;
                    }
                }
            }
        }
    }

    async fn write(&self, entries: &[NewLog]) -> Result<(), LogWriteError> {
        if entries.len() > 1 {
            match timeout(LOG_RETRY_BUDGET, self.api.create_logs(entries)).await? {
                Err(error) if is_unsupported_call(&error) => self.most.store(1, Ordering::Relaxed),
                written => return Ok(written?.into_iter().collect::<Result<(), Error>>()?),
            }
        }
        for entry in entries {
            let written = self.api.create_logs(std::slice::from_ref(entry));
            let written = timeout(LOG_RETRY_BUDGET, written).await?;
            match written.and_then(|each| each.into_iter().collect()) {
                // The server may still accept the other entries.
                Err(error) if error.status().is_some() => {
                    tracing::debug!(container = entry.object_uuid, %error, "could not write a log record to the API server");
                }
                written => written?,
            }
        }
        Ok(())
    }
}

/// Why entries were not written, as far as that is known.
#[derive(Debug, thiserror::Error)]
enum LogWriteError {
    #[error("no answer within {} s", LOG_RETRY_BUDGET.as_secs())]
    TimedOut(#[from] Elapsed),
    #[error(transparent)]
    Api(#[from] Error),
}

impl LogWriteError {
    /// Whether certainly no entry was written, because the server was not reached.
    fn is_certain(&self) -> bool {
        matches!(self, Self::Api(error) if error.status().is_none() && !error.is_ambiguous())
    }
}

fn entry(event: &Decision) -> NewLog {
    NewLog::note(event.container(), event.name(), &event.text())
}

#[cfg(test)]
mod tests {
    use arvados_client::{ContainerUuid, TokenUuid};

    use super::*;

    #[test]
    fn a_server_that_takes_one_entry_a_call_gets_no_routine() {
        let (sender, mut queue) = mpsc::channel(9);
        let most = Arc::new(AtomicUsize::new(1));
        let api_log = ApiLog {
            queue: sender,
            most,
        };
        let container = ContainerUuid::generate("zzzzz");
        let routine = Decision::DecidedToRun {
            container: container.clone(),
            attempt: TokenUuid::generate("zzzzz"),
        };
        let refused = Decision::SubmitFailed {
            container,
            error: "no".into(),
        };
        for (at_once, kept) in [(1, 1), (500, 2)] {
            api_log.set_batch_size(at_once);
            api_log.enqueue(routine.clone());
            api_log.enqueue(refused.clone());
            let got = std::iter::from_fn(|| queue.try_recv().ok()).count();
            assert_eq!(got, kept, "{at_once}");
        }
    }
}
