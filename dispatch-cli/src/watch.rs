//! Waiting for something to happen to a few objects: by live events where there are any, and by looking again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::Client;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

use crate::failure::Failure;
use crate::output::note;

/// First look again when there are no events; grows to the longest.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// Events may be lost, so we look now and then even with them.
const WITH_EVENTS: Duration = Duration::from_secs(5);
/// Between two attempts to subscribe.
const RECONNECT: Duration = Duration::from_secs(5);

/// Who waits for hours bears a server that is away for minutes.
const OUTAGE: Duration = Duration::from_secs(600);

/// How long the server has been away while we wait.
#[derive(Debug, Default)]
pub struct Outage {
    since: Option<Instant>,
}

impl Outage {
    /// What a look gave: its answer, none while an outage is being borne, or the failure that ends the waiting.
    pub fn bear<T>(
        &mut self,
        looked: Result<T, Failure>,
        now: Instant,
    ) -> Result<Option<T>, Failure> {
        match looked {
            Ok(answer) => {
                self.since = None;
                Ok(Some(answer))
            }
            Err(failure) if failure.is_outage() => {
                if self.since.is_none() {
                    note(&format!("dispatch: {failure}; still waiting"));
                }
                match now - *self.since.get_or_insert(now) < OUTAGE {
                    true => Ok(None),
                    false => Err(failure),
                }
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Tells when to look again. An event says only that.
#[derive(Debug)]
pub struct Watch {
    happened: mpsc::Receiver<String>,
    connected: Arc<AtomicBool>,
    was_connected: bool,
    interval: Duration,
    _listener: AbortOnDropHandle<()>,
}

impl Watch {
    /// Subscribes in the background; until that works, looking again does.
    pub fn new(client: &Client) -> Self {
        let (tell, happened) = mpsc::channel(256);
        let connected = Arc::new(AtomicBool::new(false));
        let listener = tokio::spawn(listen(client.clone(), tell, connected.clone()));
        Self {
            happened,
            connected,
            was_connected: false,
            interval: SHORTEST,
            _listener: AbortOnDropHandle::new(listener),
        }
    }

    /// Returns when one of `uuids` has changed, or it is time to look anyway.
    pub async fn pause(&mut self, uuids: &[String]) {
        let connected = self.connected.load(Ordering::Relaxed);
        // The look before this pause may be older than the subscription, so the first pause after it is short too.
        let pause = match connected && self.was_connected {
            true => WITH_EVENTS,
            false => self.interval,
        };
        self.was_connected = connected;
        self.interval = (self.interval * 3 / 2).min(LONGEST);
        let until = Instant::now() + pause;
        loop {
            tokio::select! {
                event = self.happened.recv() => match event {
                    Some(uuid) if uuids.contains(&uuid) => return,
                    Some(_) => {}
                    None => return sleep_until(until).await,
                },
                () = sleep_until(until) => return,
            }
        }
    }
}

async fn listen(client: Client, tell: mpsc::Sender<String>, connected: Arc<AtomicBool>) {
    loop {
        if let Ok(mut events) = client.events(&[]).await {
            connected.store(true, Ordering::Relaxed);
            while let Ok(event) = events.next().await {
                if let Some(uuid) = event.object_uuid {
                    // Full means that looking is behind, and it looks soon anyway.
                    let _ = tell.try_send(uuid);
                }
            }
            connected.store(false, Ordering::Relaxed);
        }
        sleep(RECONNECT).await;
        if tell.is_closed() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arvados_client::error::{ApiError, StatusCode};

    fn refused(status: u16) -> Result<(), Failure> {
        let status = StatusCode::from_u16(status).unwrap();
        Err(Failure::Api(arvados_client::Error::Api(ApiError {
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
            assert!(outage.bear(refused(status), start).is_err(), "{status}");
        }
        for half in 0..3 {
            let now = start + OUTAGE / 2 * half;
            assert!(matches!(outage.bear(refused(503), now), Ok(None)));
            let later = now + OUTAGE / 2;
            assert!(matches!(outage.bear(refused(502), later), Ok(None)));
            // One answer, and the patience is whole again.
            assert!(matches!(outage.bear(Ok(()), later), Ok(Some(()))));
        }
        let now = start + OUTAGE * 2;
        assert!(matches!(outage.bear(refused(503), now), Ok(None)));
        assert!(outage.bear(refused(503), now + OUTAGE).is_err());
    }
}
