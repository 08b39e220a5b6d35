//! The state of the Slurm scheduler and its calls of Slurm's commands.
//!
//! Input: settings and the state directory. The folders `submit`, `query` and `control` add
//! methods to [`Slurm`] that submit, query and change jobs; [`crate::scheduler`] puts them
//! together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::job_dir::token_file_for;
use dispatch_core::scheduler::SchedulerError;
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::rejections::Rejections;
use dispatch_core::scheduler::slurm_answer;
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::service::state_dir::StateDir;
use parking_lot::Mutex;

use crate::control::nice::PendingNice;
use crate::error::no_answer;
use crate::query::accounting::Accounting;
use crate::query::coalesce::Coalescer;
use crate::query::node_class_cache::NodeClassCache;
use crate::query::squeue::{JobIndex, Row, TIME_FORMAT};
use crate::settings::Settings;
use crate::submit::job_array::{ArrayLimit, ArrayTracker};
use crate::wakeup::epilog_watcher::EpilogWatcher;
use crate::wakeup::listing_burst::ListingBurst;

/// Slurm, as its client commands in PATH reach it.
#[derive(Debug)]
pub struct Slurm {
    pub(crate) settings: Settings,
    /// State directory, on a file system that every node mounts.
    pub(crate) state_dir: StateDir,
    /// Identifies the jobs of this dispatcher among those of other dispatchers of the same user.
    pub(crate) instance_id: String,
    pub(crate) command_timeout: Duration,
    pub(crate) accounting: Accounting,
    pub(crate) capacity: NodeClassCache,
    /// Lists of partitions that give jobs less time than the admin's setting says, as logged.
    pub(crate) cut_partitions: Mutex<BTreeSet<Vec<String>>>,
    pub(crate) rejections: Rejections,
    pub(crate) submit_host: Precondition,
    /// Rows of the newest listing.
    pub(crate) queue: Mutex<Vec<Row>>,
    pub(crate) pending_nice: Mutex<PendingNice>,
    /// Attempt and job id of each container; `sacct` may not report the attempt.
    pub(crate) job_ids: Mutex<BTreeMap<ContainerUuid, (TokenUuid, String)>>,
    pub(crate) epilog: EpilogWatcher,
    pub(crate) arrays: ArrayTracker,
    /// Pending array elements of submissions that were given up, as the newest listing shows them.
    pub(crate) abandoned_elements: Mutex<Vec<String>>,
    pub(crate) array_limit: Mutex<ArrayLimit>,
    /// Number of consecutive arrays whose elements could not be named.
    pub(crate) naming_failures: AtomicU32,
    pub(crate) burst: Mutex<ListingBurst>,
    /// Number of commands that the controller has not charged to its rate limit.
    pub(crate) extra_commands: AtomicU32,
    /// Exit queries by job id.
    pub(crate) by_id: Coalescer,
    /// Exit queries by job name.
    pub(crate) by_name: Coalescer,
    /// Pending jobs that this dispatcher cancelled, and when.
    pub(crate) cancelled: Mutex<BTreeMap<String, Instant>>,
}

impl Slurm {
    /// A scheduler that has not called any command yet.
    pub fn new(
        settings: Settings,
        state_dir: StateDir,
        instance_id: String,
        command_timeout: Duration,
    ) -> Self {
        let needs = state_dir.host_needs("sbatch", "--version");
        Self {
            submit_host: Precondition::submit_host(needs),
            capacity: NodeClassCache::new(&settings),
            cut_partitions: Mutex::default(),
            command_timeout,
            settings,
            epilog: EpilogWatcher::in_directory(state_dir.path()),
            state_dir,
            instance_id,
            accounting: Accounting::default(),
            rejections: Rejections::new("Slurm"),
            queue: Mutex::default(),
            pending_nice: Mutex::default(),
            job_ids: Mutex::default(),
            arrays: ArrayTracker::default(),
            abandoned_elements: Mutex::default(),
            array_limit: Mutex::new(ArrayLimit::Unused),
            naming_failures: AtomicU32::new(0),
            burst: Mutex::default(),
            extra_commands: AtomicU32::new(0),
            by_id: Coalescer::default(),
            by_name: Coalescer::default(),
            cancelled: Mutex::default(),
        }
    }

    pub(crate) fn attempt_dir(&self, container: &ContainerUuid) -> AttemptDir {
        AttemptDir::of(self.state_dir.path(), container)
    }

    /// A Slurm command with the cluster's arguments and the timeout.
    pub(crate) fn client(&self, program: &str) -> Command {
        self.settings.client(program).timeout(self.command_timeout)
    }

    /// Runs `squeue` for the jobs of this user, with `more` arguments, and returns its rows.
    pub(crate) async fn squeue(&self, more: &[&str]) -> Result<String, SchedulerError> {
        let user = rustix::process::getuid().as_raw().to_string();
        let arguments = ["--all", "--user", &user];
        let (variable, format) = TIME_FORMAT;
        let command = self
            .client("squeue")
            .envs([(variable.into(), format.into())])
            .args(arguments)
            .args(more);
        let answer = command
            .run_checked()
            .await
            .map_err(|e| no_answer(e.to_string()))?;
        match slurm_answer::squeue_rows(&answer) {
            Some(rows) => {
                let rows = rows.to_owned();
                answer.into_stdout("squeue");
                Ok(rows)
            }
            None => {
                let said = answer.said().unwrap_or("squeue printed nothing");
                Err(no_answer(said.to_owned()))
            }
        }
    }

    /// Charges `commands` to the rate limit of the controller.
    pub(crate) fn charge_commands(&self, commands: u32) {
        self.extra_commands.fetch_add(commands, Ordering::Relaxed);
    }

    /// Records the job id of an attempt.
    pub(crate) fn record_job_id(&self, container: ContainerUuid, attempt: TokenUuid, job: String) {
        self.job_ids.lock().insert(container, (attempt, job));
    }

    /// The job id of an attempt, if it was recorded.
    pub(crate) fn job_id_of(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> Option<String> {
        let job_ids = self.job_ids.lock();
        let (of, job) = job_ids.get(container)?;
        (of == attempt).then(|| job.clone())
    }
}

impl JobIndex for Slurm {
    /// Found by its recorded job, or by the token file of the attempt.
    fn container(&self, attempt: &TokenUuid) -> Option<ContainerUuid> {
        let job_ids = self.job_ids.lock();
        if let Some((container, _)) = job_ids.iter().find(|(_, (of, _))| of == attempt) {
            return Some(container.clone());
        }
        let dirs = std::fs::read_dir(self.state_dir.path()).ok()?.flatten();
        let mut dirs =
            dirs.filter(|dir| dir.path().join(token_file_for(attempt.as_str())).exists());
        ContainerUuid::parse(dirs.next()?.file_name().to_str()?).ok()
    }

    fn attempt(&self, container: &ContainerUuid, id: &str) -> Option<TokenUuid> {
        let job_ids = self.job_ids.lock();
        let (attempt, job) = job_ids.get(container)?;
        (job == id).then(|| attempt.clone())
    }
}
