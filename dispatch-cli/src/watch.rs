//! Waiting for something to happen to a few objects: by live events where there are any, and by looking again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arvados_client::Client;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::task::AbortOnDropHandle;

/// First look again when there are no events; grows to the longest.
const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);
/// Events may be lost, so we look now and then even with them.
const WITH_EVENTS: Duration = Duration::from_secs(5);
/// Between two attempts to subscribe.
const RECONNECT: Duration = Duration::from_secs(5);

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
        if let Ok(mut events) = client.events().await {
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
