//! The state of the HTCondor scheduler, and what its parts share: queries of job ads and
//! directories of attempts.
//!
//! The folders `submit`, `query` and `control` add methods to [`Condor`]; `scheduler.rs` offers
//! them to dispatch-core.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arvados_client::ContainerUuid;
use dispatch_core::model::world::Job;
use dispatch_core::scheduler::SchedulerError;
use dispatch_core::scheduler::attempt_dir::AttemptDir;
use dispatch_core::scheduler::class_ads;
use dispatch_core::scheduler::command::{Command, CommandOutput};
use dispatch_core::scheduler::rejections::Rejections;
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::service::state_dir::StateDir;
use parking_lot::Mutex;

use crate::error::no_answer;
use crate::query::condor_q::{self, JOB_ATTRIBUTES, JobAd};
use crate::query::match_analysis::MatchAnalysis;
use crate::query::partition_slots::PartitionSlots;
use crate::query::slot_class_cache::SlotClassCache;
use crate::submit::description::Settings;
use crate::submit::suspect_groups::SuspectGroups;
use crate::wakeup::job_event_log::JobEventLog;

/// Maximum number of jobs in one submission, and in one change of JobPrio.
pub const MAX_BATCH_JOBS: usize = 500;

/// The HTCondor pool that the commands in PATH reach.
#[derive(Debug)]
pub struct Condor {
    pub(crate) settings: Settings,
    pub(crate) state_dir: StateDir,
    /// Distinguishes our jobs from those of another dispatcher of the same user.
    pub(crate) instance_id: String,
    pub(crate) command_timeout: Duration,
    pub(crate) suspect_groups: Mutex<SuspectGroups>,
    pub(crate) rejections: Rejections,
    pub(crate) submit_host: Precondition,
    /// Commands that were run and not yet charged to the rate limit.
    pub(crate) extra_commands: AtomicU32,
    pub(crate) event_log: JobEventLog,
    pub(crate) capacity: SlotClassCache,
    pub(crate) partition_slots: PartitionSlots,
    /// Whether upkeep also reports lost execute nodes and probes unmatched jobs.
    pub(crate) monitors: bool,
    pub(crate) match_analysis: MatchAnalysis,
    /// Running jobs that were logged as having lost their execute node.
    pub(crate) reported_disconnected: Mutex<BTreeSet<String>>,
    /// The newest listing of the queue.
    pub(crate) queue: Mutex<QueueListing>,
}

/// The answer of `condor_q` about this dispatcher's jobs.
#[derive(Debug, Default)]
pub struct QueueListing {
    /// The jobs.
    pub ads: Vec<JobAd>,
    /// Time that `condor_q` took.
    pub took: Duration,
}

impl QueueListing {
    /// The jobs of containers among them.
    pub fn jobs(&self) -> Vec<Job> {
        self.ads.iter().filter_map(JobAd::to_job).collect()
    }
}

impl Condor {
    /// A scheduler for one command; `state_dir` holds a directory for each job.
    pub fn new(
        settings: Settings,
        state_dir: StateDir,
        instance_id: String,
        command_timeout: Duration,
    ) -> Self {
        let needs = state_dir.host_needs("condor_submit", "-version");
        Self {
            submit_host: Precondition::submit_host(needs),
            command_timeout,
            event_log: JobEventLog::in_directory(state_dir.path()),
            state_dir,
            instance_id,
            suspect_groups: Mutex::default(),
            rejections: Rejections::new("HTCondor"),
            extra_commands: AtomicU32::default(),
            capacity: SlotClassCache::new(settings.pool_grows),
            partition_slots: PartitionSlots::default(),
            settings,
            monitors: false,
            match_analysis: MatchAnalysis::default(),
            reported_disconnected: Mutex::default(),
            queue: Mutex::default(),
        }
    }

    /// The scheduler of a service: its upkeep also reports lost execute nodes and probes unmatched
    /// jobs.
    pub fn with_monitoring(self) -> Self {
        self.remove_test_jobs_dir();
        Self {
            monitors: true,
            ..self
        }
    }

    /// The directory of a container's job on this machine; it may not exist.
    pub(crate) fn attempt_dir(&self, container: &ContainerUuid) -> AttemptDir {
        AttemptDir::of(self.state_dir.path(), container)
    }

    /// Charges `commands` to the rate limit of the controller.
    pub(crate) fn charge_commands(&self, commands: u32) {
        self.extra_commands.fetch_add(commands, Ordering::Relaxed);
    }

    /// The job ads that `program` (condor_q or condor_history) prints for `constraint`.
    pub(crate) async fn query_ads(
        &self,
        program: &str,
        constraint: &str,
        more: &[&str],
    ) -> Result<Vec<JobAd>, SchedulerError> {
        let ask = || {
            let options = [
                "-json",
                "-attributes",
                JOB_ATTRIBUTES,
                "-constraint",
                constraint,
            ];
            let command = Command::new(program).timeout(self.command_timeout);
            command.args(options).args(more).run_checked()
        };
        let is_queue = program == "condor_q";
        let prints_none = |answer: &CommandOutput| {
            class_ads::has_no_answer(answer) || is_queue && answer.stdout.trim().is_empty()
        };
        let mut answer = ask().await.map_err(|e| no_answer(e.to_string()))?;
        if is_queue && prints_none(&answer) {
            if self.is_queue_empty(constraint).await {
                answer.into_stdout(program);
                return Ok(Vec::new());
            }
            // A job may have been submitted between the two.
            self.charge_commands(1);
            answer = ask().await.map_err(|e| no_answer(e.to_string()))?;
        }
        if prints_none(&answer) {
            let said = answer
                .said()
                .unwrap_or("it printed neither jobs nor their number");
            return Err(no_answer(said.to_owned()));
        }
        condor_q::parse(&answer.into_stdout(program))
            .map_err(|error| no_answer(format!("cannot parse the output of {program}: {error}")))
    }

    /// Whether the schedd answers now.
    pub(crate) async fn answers(&self) -> bool {
        self.is_queue_empty("ClusterId == 0").await
    }

    /// Whether the schedd itself says that it has no such jobs: without jobs, `condor_q -json`
    /// prints nothing, and a site may print greetings and errors of its own.
    async fn is_queue_empty(&self, constraint: &str) -> bool {
        self.charge_commands(1);
        let command = Command::new("condor_q").timeout(self.command_timeout);
        let totals = command.args(["-totals", "-constraint", constraint]);
        let answer = totals.run_checked().await;
        answer.is_ok_and(|answer| answer.stdout.contains("Total for query: 0 jobs;"))
    }
}
