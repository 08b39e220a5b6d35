//! What the fake scheduler remembers between calls.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fault::Rule;

/// Everything.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// How it behaves when nothing goes wrong.
    pub settings: Settings,
    /// The number of the last job.
    pub last_id: u64,
    /// Every job there ever was, in order of submission; in a file of their own.
    #[serde(skip)]
    pub jobs: Vec<Job>,
    /// How many those are.
    pub count: usize,
    /// What goes wrong.
    pub rules: Vec<Rule>,
    /// What was put off by [`super::Fault::DoneLater`] is done now.
    pub late: bool,
    /// The test is over: running jobs are ended.
    pub closing: bool,
}

/// How it behaves when nothing goes wrong.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// The PATH of a real scheduler's commands, which do the work in place of the fake's; the other settings are not for it.
    pub beneath: Option<String>,
    /// Submitted jobs are run as processes; else they stay as they are until somebody changes the table.
    pub run_jobs: bool,
    /// Seconds that an ended job stays in listings of ended jobs.
    pub min_job_age: f64,
    /// `sacct` has something to tell.
    pub accounting: bool,
    /// Of the one node.
    pub cpus: u64,
    /// MiB, of the one node.
    pub memory: u64,
    /// `condor_submit` takes none of a submission with a job that asks for more, as `SUBMIT_REQUIREMENTS` may have it.
    pub most_cpus: Option<i64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            beneath: None,
            run_jobs: false,
            min_job_age: 300.0,
            accounting: true,
            cpus: 4,
            memory: 16_000,
            most_cpus: None,
        }
    }
}

/// One job of either kind of scheduler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// As its scheduler writes it: `12`, `12.0`.
    pub id: String,
    /// Slurm's name; the container for our jobs.
    pub name: String,
    /// Slurm's comment.
    pub comment: Option<String>,
    /// Who submitted it.
    pub user: u32,
    /// The state in Slurm's words, also for an HTCondor job that was never told otherwise.
    pub state: String,
    /// Slurm's reason.
    pub reason: String,
    /// Slurm's nice value.
    pub nice: i64,
    /// Slurm's partition.
    pub partition: String,
    /// What the submission said, option by option.
    pub options: Map<String, Value>,
    /// HTCondor's job ad.
    pub ad: Map<String, Value>,
    /// Unix time.
    pub submitted: f64,
    /// Where it runs, or ran.
    pub node: Option<String>,
    /// Unix time; a process was started then.
    pub started: Option<f64>,
    /// Unix time.
    pub ended: Option<f64>,
    /// The program's exit status.
    pub exit: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Its process, while it runs.
    pub pid: Option<i32>,
    /// Unix time from which on its processes are killed.
    pub kill_at: Option<f64>,
}

/// HTCondor's numbers for the states.
pub mod condor {
    /// Waiting.
    pub const IDLE: i64 = 1;
    /// Running.
    pub const RUNNING: i64 = 2;
    /// Being removed, or removed.
    pub const REMOVED: i64 = 3;
    /// Ended by itself.
    pub const COMPLETED: i64 = 4;
}

impl Job {
    /// Whether it is an HTCondor job.
    pub fn is_condor(&self) -> bool {
        !self.ad.is_empty()
    }

    /// HTCondor's `JobStatus`.
    pub fn status(&self) -> i64 {
        self.ad
            .get("JobStatus")
            .and_then(Value::as_i64)
            .unwrap_or_default()
    }

    /// Sets HTCondor's `JobStatus`.
    pub fn set_status(&mut self, status: i64) {
        self.ad.insert("JobStatus".into(), status.into());
    }

    /// As Slurm shows it: exit status and signal.
    pub fn exit_code(&self) -> String {
        format!("{}:{}", self.exit.unwrap_or(0), self.signal.unwrap_or(0))
    }

    /// Waiting, in either scheduler's words.
    pub fn is_pending(&self) -> bool {
        match self.is_condor() {
            true => self.status() == condor::IDLE,
            false => self.state == "PENDING",
        }
    }
}

/// Now, as Unix time.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
