//! The state of the local scheduler: this machine, its job directories and the running crunch-runs.
//!
//! `scan.rs` and `start.rs` add methods to [`Shared`]; `scheduler.rs` offers them to dispatch-core.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arvados_client::ContainerUuid;
use dispatch_core::model::world::{Job, JobId};
use dispatch_core::scheduler::submit_host::Precondition;
use dispatch_core::service::state_dir::StateDir;
use host_state::trash::{self, TrashWorker};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backfill::Running;
use crate::crunch_run::CrunchRun;
use crate::crunch_run_process::CrunchRunProcess;
use crate::fairness::Head;
use crate::job_dir::{CrunchRunExit, JobDir, JobRecord};
use crate::machine::{Machine, ResourceCaps, free_space};
use crate::machine_claims::{HeldByOther, MachineClaims, WANT_TTL, Want};
use crate::redelivery::Redeliveries;
use crate::reservation::machine_beside;
use crate::resources::{ResourceKind, ResourceVector};

/// Name of this scheduler in errors, logs and labels.
pub const NAME: &str = "local";

/// This machine as a scheduler.
#[derive(Debug)]
pub struct Local {
    pub(crate) shared: Arc<Shared>,
    /// Whether no other dispatcher takes containers from the server.
    pub only_dispatcher: bool,
}

/// State shared by the scheduler's methods and the tasks that they spawn.
#[derive(Debug)]
pub struct Shared {
    pub(crate) state_dir: StateDir,
    pub(crate) scratch: PathBuf,
    pub(crate) caps: ResourceCaps,
    pub(crate) crunch_run: CrunchRun,
    pub(crate) submit_host: Precondition,
    /// None if the machine is not shared with other dispatchers.
    pub(crate) claims: Option<MachineClaims>,
    pub(crate) redeliveries: Arc<Redeliveries>,
    /// Removes the files of jobs that ended.
    pub(crate) trash: TrashWorker,
    pub(crate) state: Mutex<State>,
    /// Notified when a followed worker exits.
    pub(crate) worker_exited: Notify,
}

/// The machine and the jobs on it.
#[derive(Debug, Default)]
pub struct State {
    pub(crate) machine: Machine,
    /// What the jobs of other dispatchers on this machine hold.
    pub(crate) others: Vec<HeldByOther>,
    /// What other dispatchers' first jobs wait for.
    pub(crate) wants: Vec<Want>,
    /// Our own first job that waits.
    pub(crate) head: Option<Head>,
    /// What was last said of it, and when.
    pub(crate) said: Option<(Want, Instant)>,
    pub(crate) jobs: BTreeMap<ContainerUuid, TrackedJob>,
    /// Containers that this process is starting right now.
    pub(crate) starting: BTreeSet<ContainerUuid>,
    /// Containers that were locked and then found their room taken, and what they wait for.
    pub(crate) without_room: BTreeMap<ContainerUuid, String>,
    /// The last scan of the job directories, until upkeep acts on it.
    pub(crate) last_scan: Option<Scan>,
}

/// The jobs that one scan of the job directories found.
#[derive(Debug)]
pub struct Scan {
    pub(crate) started: Instant,
    pub(crate) jobs: Vec<Job>,
    pub(crate) alive: BTreeMap<ContainerUuid, TrackedJob>,
    pub(crate) ended: Vec<(JobDir, CrunchRunExit)>,
    /// Directories of jobs that recorded their final state some time ago.
    pub(crate) finished: Vec<JobDir>,
}

/// A job that holds resources.
#[derive(Debug, Clone)]
pub struct TrackedJob {
    pub(crate) record: Option<JobRecord>,
    pub(crate) worker: Option<Arc<CrunchRunProcess>>,
    /// Time when this process started it; a scan that began earlier may have missed it.
    pub(crate) started: Option<Instant>,
}

impl State {
    /// This machine without what other dispatchers' jobs hold.
    pub(crate) fn machine_left(&self) -> Machine {
        machine_beside(
            &self.machine,
            self.others.iter().map(|held| &held.reservation),
        )
    }

    /// Whether this process has been starting the container's job since `scan_started`, so that the
    /// scan may be wrong.
    pub(crate) fn is_newer(&self, container: &ContainerUuid, scan_started: Instant) -> bool {
        let started = self.jobs.get(container).and_then(|job| job.started);
        self.starting.contains(container) || started.is_some_and(|at| at >= scan_started)
    }
}

impl Local {
    /// This machine, with job directories in `state_dir` and scratch space in `scratch`.
    pub fn new(
        state_dir: StateDir,
        scratch: PathBuf,
        caps: ResourceCaps,
        crunch_run: CrunchRun,
        claims: Option<MachineClaims>,
    ) -> io::Result<Self> {
        let machine = Machine::probe(&scratch, &caps)?;
        for excess in machine.unmet(&caps) {
            tracing::warn!("{excess}");
        }
        tracing::info!(
            cpus = machine.cpu_quota,
            ram = %ResourceKind::Ram.format_amount(machine.ram),
            scratch = %ResourceKind::Scratch.format_amount(machine.scratch),
            gpus = machine.gpus.len(),
            "resources of this machine for containers"
        );
        let state = State {
            machine,
            ..State::default()
        };
        let program = &crunch_run.program;
        let mut needs = state_dir.host_needs(program, "--version");
        needs.directories.push(scratch.clone());
        let trash = TrashWorker::start(vec![state_dir.path().to_owned(), scratch.clone()])?;
        Ok(Self {
            shared: Arc::new(Shared {
                trash,
                submit_host: Precondition::submit_host(needs),
                claims,
                state_dir,
                scratch,
                caps,
                crunch_run,
                redeliveries: Arc::default(),
                state: Mutex::new(state),
                worker_exited: Notify::new(),
            }),
            only_dispatcher: false,
        })
    }
}

impl Shared {
    /// Whether files of jobs that ended still take disk space.
    pub(crate) fn has_trash(&self) -> bool {
        !(trash::is_empty(&self.scratch) && trash::is_empty(self.state_dir.path()))
    }

    /// The disk space that the trash takes, as a job that has no limit. It is an upper limit: what
    /// running jobs have written counts here and in their own reservations.
    pub(crate) fn trash_load(&self, machine: &Machine) -> Option<Running> {
        let load = scratch(self.taken_since_idle(machine));
        self.has_trash().then_some(Running { load, ends: None })
    }

    /// The disk space that nobody's job here has reserved, and that is not free any more. While
    /// there is trash, it is not known.
    pub(crate) fn taken_by_others(
        &self,
        machine: &Machine,
        reserved: ResourceVector,
    ) -> ResourceVector {
        match self.has_trash() {
            true => ResourceVector::default(),
            false => scratch(self.taken_since_idle(machine)).minus(reserved),
        }
    }

    /// Bytes of the disk that were free when the machine was idle, and are not now.
    fn taken_since_idle(&self, machine: &Machine) -> u64 {
        let free = free_space(&self.scratch);
        free.map_or(0, |free| machine.scratch.saturating_sub(free))
    }

    /// Reads what other dispatchers' jobs hold.
    pub(crate) fn read_claims(&self) {
        if let Some(claims) = &self.claims {
            let (others, wants) = (claims.others(), claims.wants_of_others());
            let mut state = self.state.lock();
            (state.others, state.wants) = (others, wants);
        }
    }

    /// Says to other dispatchers what the first job here waits for.
    pub(crate) fn say_want(&self, want: Option<Want>) {
        let Some(claims) = &self.claims else {
            return;
        };
        let now = Instant::now();
        {
            let mut state = self.state.lock();
            let is_said = match (&state.said, &want) {
                (Some((said, at)), Some(want)) => said == want && now - *at < WANT_TTL / 4,
                (None, None) => true,
                _ => false,
            };
            if is_said {
                return;
            }
            state.said = want.clone().map(|want| (want, now));
        }
        claims.set_want(want.as_ref());
    }

    /// Says to other dispatchers what the jobs here hold.
    pub(crate) fn write_claims(&self) {
        let Some(claims) = &self.claims else {
            return;
        };
        let own = std::process::id();
        let _writing = claims.writing();
        let jobs = {
            let state = self.state.lock();
            let held = state.jobs.iter().filter_map(|(container, job)| {
                let reservation = job.record.as_ref()?.reservation.clone();
                // Until its crunch-run is known, this process stands for it.
                let pid = job.worker.as_ref().map_or(own, |worker| worker.pid());
                Some((container.clone(), (reservation, pid)))
            });
            held.collect()
        };
        claims.keep_only(&jobs);
    }

    pub(crate) fn job_dir(&self, container: &ContainerUuid) -> JobDir {
        JobDir::of(self.state_dir.path(), container)
    }
}

/// The id of a job: the pid of its worker, or its container if there is no worker.
pub fn job_id(container: &ContainerUuid, worker: Option<&CrunchRunProcess>) -> JobId {
    JobId(worker.map_or_else(|| container.to_string(), |w| w.pid().to_string()))
}

/// Milliseconds since the machine was started, on a clock that nobody sets.
pub fn uptime_milliseconds() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec as u64 * 1000 + time.tv_nsec as u64 / 1_000_000
}

/// The Unix time in seconds.
pub fn unix_time() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

fn scratch(bytes: u64) -> ResourceVector {
    ResourceVector::new(0, 0, bytes, 0, 0)
}
