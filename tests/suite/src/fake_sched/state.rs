//! The state of the fake scheduler between calls: settings, faults and jobs.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::fault::Rule;

/// The whole state.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct State {
    /// Behaviour of calls without a fault.
    pub settings: Settings,
    /// The number of the last job.
    pub last_id: u64,
    /// All jobs in the order of submission; stored in a file of their own.
    #[serde(skip)]
    pub jobs: Vec<Job>,
    /// Number of jobs in that file.
    pub count: usize,
    /// The rules that select the calls that fail.
    pub rules: Vec<Rule>,
    /// Calls delayed by [`super::Fault::DoneLater`] take effect now.
    pub late: bool,
    /// Whether the test is over, so that running jobs are ended.
    pub closing: bool,
}

/// Behaviour of calls without a fault.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    /// PATH of a real scheduler's commands, which then do the work; the other settings do not
    /// apply.
    pub real_path: Option<String>,
    /// Whether submitted jobs are run as processes; otherwise a test changes their state.
    pub run_jobs: bool,
    /// Seconds that an ended job stays in listings of ended jobs.
    pub min_job_age: f64,
    /// Whether `sacct` lists jobs.
    pub accounting: bool,
    /// CPUs of the one node.
    pub cpus: u64,
    /// Memory of the one node in MiB.
    pub memory: u64,
    /// `condor_submit` refuses a whole submission if one of its jobs requests more CPUs, like
    /// `SUBMIT_REQUIREMENTS`.
    pub max_cpus: Option<i64>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            real_path: None,
            run_jobs: false,
            min_job_age: 300.0,
            accounting: true,
            cpus: 4,
            memory: 16_000,
            max_cpus: None,
        }
    }
}

/// A job of either kind of scheduler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Job id in the scheduler's format: `12`, `12.0`.
    pub id: String,
    /// Slurm's job name; for our jobs the container.
    pub name: String,
    /// Slurm's comment.
    pub comment: Option<String>,
    /// Uid of the submitter.
    pub user: u32,
    /// The state in Slurm's terms, also for HTCondor jobs.
    pub state: String,
    /// Slurm's reason.
    pub reason: String,
    /// Slurm's nice value.
    pub nice: i64,
    /// Slurm's partition.
    pub partition: String,
    /// The options of the submission.
    pub options: Map<String, Value>,
    /// HTCondor's job ad.
    pub ad: Map<String, Value>,
    /// Time of submission, as Unix time.
    pub submitted: f64,
    /// The node of a running or ended job.
    pub node: Option<String>,
    /// Unix time of the start; a process exists since then.
    pub started: Option<f64>,
    /// Unix time of the end.
    pub ended: Option<f64>,
    /// The program's exit status.
    pub exit: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Pid of a running job.
    pub pid: Option<i32>,
    /// Unix time from which on its processes are killed.
    pub kill_at: Option<f64>,
}

/// HTCondor's numbers of job states.
pub mod condor {
    /// The job is pending.
    pub const IDLE: i64 = 1;
    /// The job runs.
    pub const RUNNING: i64 = 2;
    /// The job is being removed, or removed.
    pub const REMOVED: i64 = 3;
    /// The job has ended by itself.
    pub const COMPLETED: i64 = 4;
    /// The job is on hold.
    pub const HELD: i64 = 5;
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

    /// The exit code in Slurm's format: exit status and signal.
    pub fn exit_code(&self) -> String {
        format!("{}:{}", self.exit.unwrap_or(0), self.signal.unwrap_or(0))
    }

    /// Whether the job is pending.
    pub fn is_pending(&self) -> bool {
        match self.is_condor() {
            true => self.status() == condor::IDLE,
            false => self.state == "PENDING",
        }
    }
}

/// The current Unix time.
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}
