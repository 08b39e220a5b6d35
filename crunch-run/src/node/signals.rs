//! Signal handlers: stop, save the logs now, or a notice that the node will be taken away.

use std::io;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

/// Name of the signal that announces the end of a job's time. No other signal has this meaning.
pub const TIME_LIMIT_SIGNAL: &str = "XCPU";

/// Number of stop requests, and the last signal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopRequests {
    pub count: u32,
    pub by: &'static str,
}

/// Stop requests. Clones receive the same ones.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<StopRequests>);

impl Stop {
    /// A channel for stop requests that are not signals.
    pub fn channel() -> (watch::Sender<StopRequests>, Self) {
        let (sender, receiver) = watch::channel(StopRequests::default());
        (sender, Self(receiver))
    }

    /// Waits for the first request; returns at once if there was one.
    pub async fn requested(&self) -> StopRequests {
        self.wait_for_count(1).await
    }

    /// Whether there was a request.
    pub fn is_requested(&self) -> bool {
        self.0.borrow().count > 0
    }

    /// Waits for a second request, which skips every grace period.
    pub async fn second_request(&self) -> StopRequests {
        self.wait_for_count(2).await
    }

    async fn wait_for_count(&self, count: u32) -> StopRequests {
        let mut receiver = self.0.clone();
        let received = receiver.wait_for(|request| request.count >= count).await;
        match received.map(|request| *request) {
            Ok(request) => request,
            // The sender is gone.
            Err(_) => std::future::pending().await,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Signals {
    pub stop: Stop,
    /// Notified by USR1.
    pub save: Arc<Notify>,
    /// Notified by USR2.
    pub preemption: Arc<Notify>,
}

/// Installs the signal handlers. Must be called inside the runtime.
pub fn listen() -> io::Result<Signals> {
    let (sender, stop) = Stop::channel();
    let sender = Arc::new(sender);
    for (kind, by) in [
        (SignalKind::terminate(), "TERM"),
        (SignalKind::interrupt(), "INT"),
        (SignalKind::quit(), "QUIT"),
        (
            SignalKind::from_raw(Signal::SIGXCPU as i32),
            TIME_LIMIT_SIGNAL,
        ),
    ] {
        let (mut received, sender) = (signal(kind)?, sender.clone());
        tokio::spawn(async move {
            while received.recv().await.is_some() {
                sender.send_modify(|request| {
                    *request = StopRequests {
                        count: request.count + 1,
                        by,
                    }
                });
            }
        });
    }
    let save = notified_of(SignalKind::user_defined1())?;
    let preemption = notified_of(SignalKind::user_defined2())?;
    // HUP is ignored: its default action would kill the run when a terminal closes.
    drop(signal(SignalKind::hangup())?);
    Ok(Signals {
        stop,
        save,
        preemption,
    })
}

fn notified_of(kind: SignalKind) -> io::Result<Arc<Notify>> {
    let notify = Arc::new(Notify::new());
    let (mut received, sender) = (signal(kind)?, notify.clone());
    tokio::spawn(async move {
        while received.recv().await.is_some() {
            sender.notify_one();
        }
    });
    Ok(notify)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn a_request_is_heard_by_all_and_kept() {
        let (sender, stop) = Stop::channel();
        let other = stop.clone();
        let waiting = tokio::spawn(async move { other.requested().await });
        let _ = sender.send(StopRequests {
            count: 1,
            by: "TERM",
        });
        assert_eq!(waiting.await.unwrap().by, "TERM");
        assert_eq!(stop.requested().await.count, 1);
        let again = tokio::time::timeout(Duration::from_millis(20), stop.second_request()).await;
        assert!(again.is_err());
    }
}
