//! What other processes ask of this one by signals: stop, save the logs now, or know that the node will be taken away.

use std::io;
use std::sync::Arc;

use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

/// A scheduler sends it before the time of a job is over; no other tells that from a wish to end the job.
pub const TIME_OVER: &str = "XCPU";

/// How often, and last by which signal, we were asked to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Asked {
    pub times: u32,
    pub by: &'static str,
}

/// Requests to stop. Clones hear the same.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Asked>);

impl Stop {
    /// One that is asked by other means than signals.
    pub fn channel() -> (watch::Sender<Asked>, Self) {
        let (tell, hear) = watch::channel(Asked::default());
        (tell, Self(hear))
    }

    /// Waits for the first request; returns at once if there was one.
    pub async fn asked(&self) -> Asked {
        self.times(1).await
    }

    /// Whether there was a request.
    pub fn is_asked(&self) -> bool {
        self.0.borrow().times > 0
    }

    /// Waits for a second one: whoever asks twice does not want to wait.
    pub async fn asked_again(&self) -> Asked {
        self.times(2).await
    }

    async fn times(&self, times: u32) -> Asked {
        let mut hear = self.0.clone();
        let heard = hear.wait_for(|asked| asked.times >= times).await;
        match heard.map(|asked| *asked) {
            Ok(asked) => asked,
            // Nobody is left who could ask.
            Err(_) => std::future::pending().await,
        }
    }
}

#[derive(Debug, Clone)]
pub struct Signals {
    pub stop: Stop,
    /// USR1 was heard.
    pub save: Arc<Notify>,
    /// USR2 was heard.
    pub preemption: Arc<Notify>,
}

/// Takes over the signals. Must be called inside the runtime.
pub fn listen() -> io::Result<Signals> {
    let (tell, stop) = Stop::channel();
    let tell = Arc::new(tell);
    for (kind, by) in [
        (SignalKind::terminate(), "TERM"),
        (SignalKind::interrupt(), "INT"),
        (SignalKind::quit(), "QUIT"),
        (SignalKind::from_raw(Signal::SIGXCPU as i32), TIME_OVER),
    ] {
        let (mut heard, tell) = (signal(kind)?, tell.clone());
        tokio::spawn(async move {
            while heard.recv().await.is_some() {
                tell.send_modify(|asked| {
                    *asked = Asked {
                        times: asked.times + 1,
                        by,
                    }
                });
            }
        });
    }
    let save = notified_of(SignalKind::user_defined1())?;
    let preemption = notified_of(SignalKind::user_defined2())?;
    // Its default is to kill, and a closed terminal is no reason.
    drop(signal(SignalKind::hangup())?);
    Ok(Signals {
        stop,
        save,
        preemption,
    })
}

fn notified_of(kind: SignalKind) -> io::Result<Arc<Notify>> {
    let notify = Arc::new(Notify::new());
    let (mut heard, tell) = (signal(kind)?, notify.clone());
    tokio::spawn(async move {
        while heard.recv().await.is_some() {
            tell.notify_one();
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
        let (tell, stop) = Stop::channel();
        let other = stop.clone();
        let waiting = tokio::spawn(async move { other.asked().await });
        let _ = tell.send(Asked {
            times: 1,
            by: "TERM",
        });
        assert_eq!(waiting.await.unwrap().by, "TERM");
        assert_eq!(stop.asked().await.times, 1);
        let again = tokio::time::timeout(Duration::from_millis(20), stop.asked_again()).await;
        assert!(again.is_err());
    }
}
