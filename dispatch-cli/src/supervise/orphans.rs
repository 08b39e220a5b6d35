//! Stops orphaned programs of a `dispatch up` that was killed, before new ones start. Running
//! containers are not affected.

use std::time::Duration;

use host_state::live_start_time;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::UpError;
use crate::printer::eprint_note;
use crate::state_dir::ChildRecord;

/// Timeout after SIGTERM, and then again after SIGKILL.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);

/// Stops the programs of `children` that still run.
pub async fn stop_all(children: &[ChildRecord]) -> Result<(), UpError> {
    for child in children.iter().filter(|child| is_alive(child)) {
        eprint_note(&format!(
            "dispatch: stopping {} (process {}), left over from an earlier 'dispatch up'",
            child.name, child.pid
        ));
        for signal in [Signal::TERM, Signal::KILL] {
            signal_process(child.pid, signal);
            if wait_until_gone(child).await {
                break;
            }
        }
        if is_alive(child) {
            return Err(UpError::Orphan {
                name: child.name.clone(),
                pid: child.pid,
            });
        }
    }
    Ok(())
}

async fn wait_until_gone(child: &ChildRecord) -> bool {
    let until = Instant::now() + STOP_TIMEOUT;
    while is_alive(child) && Instant::now() < until {
        sleep(Duration::from_millis(50)).await;
    }
    !is_alive(child)
}

/// Sends a signal, unless the process has ended.
pub fn signal_process(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // The call fails only if the process has ended or belongs to another user: nothing to do in
        // both cases.
        let _ = kill_process(pid, signal);
    }
}

fn is_alive(child: &ChildRecord) -> bool {
    live_start_time(child.pid) == Some(child.start_time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_process_that_was_recorded_is_ended() {
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = other.id();
        let record = |start_time| ChildRecord {
            name: "sleep".into(),
            pid,
            start_time,
        };
        let own = live_start_time(pid).unwrap();
        stop_all(&[record(own + 1)]).await.unwrap();
        assert!(
            other.try_wait().unwrap().is_none(),
            "another process was ended"
        );
        stop_all(&[record(own)]).await.unwrap();
        assert!(!other.wait().unwrap().success());
    }
}
