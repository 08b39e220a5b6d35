//! Owner label of a daemon's container: the crunch-run process it belongs to. A container whose
//! owner was killed is an orphan.

use std::fmt;
use std::fs;
use std::io;
use std::str::FromStr;

use host_state::{boot_id, start_time};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

pub const LABEL: &str = "crunch-run.owner";

/// Identity of a process, safe against reuse of the pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    boot_id: String,
    /// Namespace in which the pid is valid.
    pid_namespace: u64,
    pid: u32,
    /// Start of the process in ticks since boot.
    start_time: u64,
}

impl Owner {
    pub fn this_process() -> io::Result<Self> {
        let pid = std::process::id();
        Ok(Self {
            boot_id: boot_id()?,
            pid_namespace: pid_namespace()?,
            pid,
            start_time: start_time(pid).ok_or(io::ErrorKind::NotFound)?,
        })
    }

    /// False also if that is unknown.
    pub fn is_gone(&self) -> bool {
        let (Ok(boot_id), Ok(pid_namespace)) = (boot_id(), pid_namespace()) else {
            return false;
        };
        if self.boot_id != boot_id {
            return true;
        }
        if self.pid_namespace != pid_namespace {
            return false;
        }
        // Checked first: /proc may hide other users' processes, but this call does not.
        let pid = i32::try_from(self.pid).ok().and_then(Pid::from_raw);
        let exists = pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH));
        !exists || start_time(self.pid).is_some_and(|started| started != self.start_time)
    }
}

fn pid_namespace() -> io::Result<u64> {
    use std::os::unix::fs::MetadataExt;
    Ok(fs::metadata("/proc/self/ns/pid")?.ino())
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            boot_id,
            pid_namespace,
            pid,
            start_time,
        } = self;
        write!(f, "{boot_id} {pid_namespace} {pid} {start_time}")
    }
}

#[derive(Debug, thiserror::Error)]
#[error("it does not name a process")]
pub struct NoOwner;

impl FromStr for Owner {
    type Err = NoOwner;

    fn from_str(text: &str) -> Result<Self, NoOwner> {
        let words: Vec<&str> = text.split(' ').collect();
        let [boot_id, pid_namespace, pid, start_time] = words[..] else {
            return Err(NoOwner);
        };
        Ok(Self {
            boot_id: boot_id.to_owned(),
            pid_namespace: pid_namespace.parse().map_err(|_| NoOwner)?,
            pid: pid.parse().map_err(|_| NoOwner)?,
            start_time: start_time.parse().map_err(|_| NoOwner)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_surely_gone_is_gone() {
        let here = Owner::this_process().unwrap();
        assert_eq!(here.to_string().parse::<Owner>().unwrap(), here);
        // The first process is another user's for most.
        let first = Owner {
            pid: 1,
            start_time: start_time(1).unwrap(),
            ..here.clone()
        };
        let mut ended = std::process::Command::new("true").spawn().unwrap();
        let of_ended = Owner {
            pid: ended.id(),
            ..here.clone()
        };
        ended.wait().unwrap();
        let cases = [
            (here.clone(), false),
            (first, false),
            (of_ended.clone(), true),
            // A later process with the same number.
            (
                Owner {
                    start_time: 1,
                    ..here.clone()
                },
                true,
            ),
            // Before the machine was rebooted.
            (
                Owner {
                    boot_id: "another".to_owned(),
                    ..here.clone()
                },
                true,
            ),
            // A process inside another container, which is not visible here.
            (
                Owner {
                    pid_namespace: 1,
                    ..of_ended
                },
                false,
            ),
        ];
        for (owner, is_gone) in cases {
            assert_eq!(owner.is_gone(), is_gone, "{owner}");
        }
    }

    #[test]
    fn other_labels_name_nobody() {
        for text in ["", "a b c d", "id 1 2", "id 1 2 3 4", "id -1 2 3"] {
            assert!(text.parse::<Owner>().is_err(), "{text}");
        }
    }
}
