//! How a container ended.

use cgroup::{GroupMemory, Processes, SharedKills};
use serde::{Deserialize, Serialize};

/// How the container's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub status: ExitStatus,
    /// Whether the kernel's out-of-memory killer killed a process of this container, whatever
    /// `status` says. Read from the cgroup, never inferred from a status of 137. Also true if
    /// `killed_for_memory`.
    pub oom_killed: bool,
    /// Whether crunch-run killed the container because it measured more memory than the limit,
    /// which nothing else enforces here.
    #[serde(default)]
    pub killed_for_memory: bool,
    /// Number of these kills.
    pub oom_kills: u64,
    /// Peak memory use in bytes, by the kernel's count.
    pub peak_memory: Option<u64>,
    /// The job's control group, if kills and peak are those of the job, not of the container.
    #[serde(default)]
    pub job_group: Option<GroupMemory>,
    /// Highest resident memory of one process in bytes, if the kernel keeps no peak of all.
    #[serde(default)]
    pub largest_process: Option<u64>,
    /// Process limit of its own control group at the end.
    #[serde(default)]
    pub processes: Processes,
}

impl Exit {
    /// Adds the kernel's counts of a control group that the container shares with its job. A kill
    /// there counts for this container if its command was killed, or if nothing else runs there.
    pub fn with_job_group(self, found: Option<SharedKills>) -> Self {
        let was_killed = self.status.code() == 128 + libc::SIGKILL;
        match found {
            Some(found) if was_killed || found.is_alone => Self {
                oom_killed: true,
                oom_kills: found.kills,
                peak_memory: found.memory.peak,
                job_group: Some(found.memory),
                ..self
            },
            _ => self,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    Code(i32),
    Signal(i32),
}

impl ExitStatus {
    /// From the wait status of a process.
    pub fn of(status: rustix::process::WaitStatus) -> Self {
        match status.terminating_signal() {
            Some(signal) => Self::Signal(signal),
            None => Self::Code(status.exit_status().unwrap_or(255)),
        }
    }

    /// The number in the container record: the exit code, or 128 + the signal.
    pub fn code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}
