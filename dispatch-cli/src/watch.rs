//! Waits for changes of a few objects: by live events if the server has any, and by polling.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::Client;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::error::CliError;

/// Intervals of polling without events: the first, and the maximum to which it grows.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of polling with events, which may be lost.
const POLL_INTERVAL_WITH_EVENTS: Duration = Duration::from_secs(5);
/// Interval between two attempts to subscribe.
const RECONNECT_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum length of an outage for which a command continues to wait.
const MAX_OUTAGE: Duration = Duration::from_secs(600);

/// Outage of the server during a wait.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// Whether the last reply is older than the last question.
    pub fn lasts(&self) -> bool {
        self.since.is_some()
    }

    /// Returns a successful result, `None` during a tolerated outage, or the error that ends the
    /// wait.
    pub fn tolerate<T>(
        &mut self,
        refreshed: Result<T, CliError>,
        now: Instant,
        note: &dyn Fn(&str),
    ) -> Result<Option<T>, CliError> {
        match refreshed {
            Ok(answer) => {
                self.since = None;
                Ok(Some(answer))
            }
            Err(failure) if failure.is_outage() => {
                if self.since.is_none() {
                    note(&format!("dispatch: {failure}; still waiting"));
                }
                match now - *self.since.get_or_insert(now) < MAX_OUTAGE {
                    true => Ok(None),
                    false => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Tells when to poll next. An event only makes the next poll earlier.
#[derive(Debug)]
pub struct Watch {
    changed: mpsc::Receiver<String>,
    connected: Arc<AtomicBool>,
    was_connected: bool,
    interval: Duration,
    _listener: AbortOnDropHandle<()>,
}

impl Watch {
    /// Subscribes to events in the background. Until that succeeds, polling is used.
    pub fn new(client: &Client) -> Self {
        let (sender, changed) = mpsc::channel(256);
        let connected = Arc::new(AtomicBool::new(false));
        let listener = tokio::spawn(forward_events(client.clone(), sender, connected.clone()));
        Self {
            changed,
            connected,
            was_connected: false,
            interval: MIN_POLL_INTERVAL,
            _listener: AbortOnDropHandle::new(listener),
        }
    }

    /// Returns when one of `uuids` has changed, or the next poll is due.
    pub async fn wait_for_change(&mut self, uuids: &[String]) {
        let connected = self.connected.load(Ordering::Relaxed);
        // The last poll may be older than the subscription, so the first wait after subscribing is
        // short, too.
        let interval = match connected && self.was_connected {
            true => POLL_INTERVAL_WITH_EVENTS,
            false => self.interval,
        };
        self.was_connected = connected;
        self.interval = (self.interval * 3 / 2).min(MAX_POLL_INTERVAL);
        let until = Instant::now() + interval;
        loop {
            tokio::select! {
                event = self.changed.recv() => match event {
                    Some(uuid) if uuids.contains(&uuid) => return,
                    Some(_) => {}
                    None => return sleep_until(until).await,
                },
                () = sleep_until(until) => return,
            }
        }
    }
}

async fn forward_events(client: Client, sender: mpsc::Sender<String>, connected: Arc<AtomicBool>) {
    loop {
        if let Ok(mut events) = client.events(&[]).await {
            connected.store(true, Ordering::Relaxed);
            while let Ok(event) = events.next().await {
                if let Some(uuid) = event.object_uuid {
                    // A full channel means that a poll is due anyway.
                    let _ = sender.try_send(uuid);
                }
            }
            connected.store(false, Ordering::Relaxed);
        }
        sleep(RECONNECT_INTERVAL).await;
        if sender.is_closed() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arvados_client::error::{ApiError, StatusCode};

    fn refused(status: u16) -> Result<(), CliError> {
        let status = StatusCode::from_u16(status).unwrap();
        Err(CliError::Api(arvados_client::Error::Api(ApiError {
            status,
            messages: Vec::new(),
            request_id: String::new(),
            retry_after: None,
        })))
    }

    #[test]
    fn an_outage_is_borne_for_a_while_and_a_refusal_never() {
        let start = Instant::now();
        let mut outage = Outage::default();
        for status in [401, 404, 422] {
            let refused = outage.tolerate(refused(status), start, &|_| {});
            assert!(refused.is_err(), "{status}");
        }
        let mut tolerate = |refreshed, now| outage.tolerate(refreshed, now, &|_| {});
        for half in 0..3 {
            let now = start + MAX_OUTAGE / 2 * half;
            assert!(matches!(tolerate(refused(503), now), Ok(None)));
            let later = now + MAX_OUTAGE / 2;
            assert!(matches!(tolerate(refused(502), later), Ok(None)));
            // One success resets the outage.
            assert!(matches!(tolerate(Ok(()), later), Ok(Some(()))));
        }
        let now = start + MAX_OUTAGE * 2;
        assert!(matches!(tolerate(refused(503), now), Ok(None)));
        assert!(tolerate(refused(503), now + MAX_OUTAGE).is_err());
    }
}
