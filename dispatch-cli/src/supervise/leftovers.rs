//! Programs that an `up` which was killed left behind: they are ended before new ones take their place. Running
//! containers are none of these; they go on.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

use super::UpError;
use crate::output::note;
use crate::state_dir::ChildRecord;

/// How long one may take to end by itself, and then to be gone.
const GRACE: Duration = Duration::from_secs(15);

/// Ends those that are still there.
pub async fn end(children: &[ChildRecord]) -> Result<(), UpError> {
    for child in children.iter().filter(|child| is_alive(child)) {
        note(&format!(
            "dispatch: ending {} (process {}), left over from an earlier 'dispatch up'",
            child.name, child.pid
        ));
        for signal in [Signal::TERM, Signal::KILL] {
            send(child.pid, signal);
            if gone(child).await {
                break;
            }
        }
        if is_alive(child) {
            return Err(UpError::LeftOver {
                name: child.name.clone(),
                pid: child.pid,
            });
        }
    }
    Ok(())
}

async fn gone(child: &ChildRecord) -> bool {
    let until = Instant::now() + GRACE;
    while is_alive(child) && Instant::now() < until {
        sleep(Duration::from_millis(50)).await;
    }
    !is_alive(child)
}

/// Sends a signal; a process that is gone does not mind.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // It fails only if the process is gone or not ours, and in both cases there is nothing to do.
        let _ = kill_process(pid, signal);
    }
}

fn is_alive(child: &ChildRecord) -> bool {
    start_time(child.pid).is_some_and(|time| time == child.start_time)
}

/// Field 22 of `/proc/PID/stat`; none for a process that is gone or only waits to be collected.
pub fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse_stat(&stat)
}

fn parse_stat(stat: &str) -> Option<u64> {
    // The name in parentheses may contain anything; what follows its end is field 3.
    let rest = &stat[stat.rfind(')')? + 1..];
    let mut fields = rest.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let stat = "42 (a) b (c) S 1 42 42 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 0 0";
        assert_eq!(parse_stat(stat), Some(777));
        assert_eq!(parse_stat(&stat.replace(" S ", " Z ")), None);
        assert_eq!(parse_stat("nonsense"), None);
        assert!(start_time(std::process::id()).is_some());
    }

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
        let own = start_time(pid).unwrap();
        end(&[record(own + 1)]).await.unwrap();
        assert!(
            other.try_wait().unwrap().is_none(),
            "another process was ended"
        );
        end(&[record(own)]).await.unwrap();
        assert!(!other.wait().unwrap().success());
    }
}
