//! Identity of a process: its pid with its start time and the boot, which no later process shares.

use std::{fs, io};

use procfs::process::{Process, Stat};
use serde::{Deserialize, Serialize};

/// A process, distinguished from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessIdentity {
    pub pid: u32,
    /// In clock ticks since boot: field 22 of `/proc/PID/stat`.
    pub start_time: u64,
    pub boot_id: String,
}

impl ProcessIdentity {
    /// Identifies a running process, or one that was not reaped.
    pub fn of(pid: u32) -> io::Result<Self> {
        Ok(Self {
            pid,
            start_time: start_time(pid).ok_or(io::ErrorKind::NotFound)?,
            boot_id: boot_id()?,
        })
    }
}

/// Start time of a process that was not reaped.
pub fn start_time(pid: u32) -> Option<u64> {
    Some(stat(pid)?.starttime)
}

/// Start time of a process that has not ended.
pub fn live_start_time(pid: u32) -> Option<u64> {
    let stat = stat(pid)?;
    (!matches!(stat.state, 'Z' | 'X')).then_some(stat.starttime)
}

/// The user who started the process. A process that hides its memory has files of root in /proc,
/// and still says this.
pub fn real_uid(pid: u32) -> Option<u32> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    Some(process.status().ok()?.ruid)
}

fn stat(pid: u32) -> Option<Stat> {
    let process = Process::new(i32::try_from(pid).ok()?).ok()?;
    process.stat().ok()
}

/// Host name of this node.
pub fn node_name() -> String {
    let uname = rustix::system::uname();
    uname.nodename().to_string_lossy().into_owned()
}

/// The id of this boot. Pids and start times of another boot mean nothing.
pub fn boot_id() -> io::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_process_has_a_start_time_until_it_is_reaped() {
        let own = std::process::id();
        assert_eq!(ProcessIdentity::of(own).ok().map(|one| one.pid), Some(own));
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let started = start_time(child.id());
        assert!(started.is_some() && live_start_time(child.id()) == started);
        drop(child.stdin.take());
        while live_start_time(child.id()).is_some() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(start_time(child.id()), started);
        child.wait().unwrap();
        assert_eq!(start_time(child.id()), None);
    }
}
