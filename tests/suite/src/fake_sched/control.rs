//! The test's interface to the fake scheduler: sets it up, sets its faults, reads its jobs and
//! calls.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::fault::Rule;
use super::state::{Job, Settings, State, now};
use super::store::Version;
use super::{COMMANDS, Call, PROGRAM, Store, job_runner};

/// Timeout of the end of running jobs when the fake scheduler is dropped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// A fake scheduler; dropped, it ends its jobs.
#[derive(Debug)]
pub struct FakeSched {
    store: Store,
    /// The jobs of a version of the state: tests that wait read them again and again.
    known_jobs: Mutex<(Option<Version>, Vec<Job>)>,
}

impl FakeSched {
    /// Creates the fake in the new directory `dir`, with `program` (fake-sched) under all its names
    /// in `dir/bin`.
    pub fn new(dir: &Path, program: &Path, settings: Settings) -> Self {
        let bin = dir.join("bin");
        fs::create_dir_all(&bin).expect("a directory for the fake scheduler");
        let own = dir.join(PROGRAM);
        if fs::hard_link(program, &own).is_err() {
            // Another process copies the program: a file that this process writes may be busy
            // ("text file busy") while another thread forks.
            let copied = Command::new("cp").args([program, &own]).status();
            assert!(
                copied.is_ok_and(|status| status.success()),
                "fake-sched in its directory"
            );
        }
        for name in COMMANDS {
            symlink(&own, bin.join(name)).expect("a name for fake-sched");
        }
        // The dispatcher checks that this file exists, and its path identifies the fake.
        fs::write(dir.join("slurm.conf"), "").expect("a file of the fake scheduler");
        let fake = Self {
            store: Store::new(dir),
            known_jobs: Mutex::default(),
        };
        // The dispatcher may run as any user.
        for file in Store::FILES {
            let file = OpenOptions::new()
                .create(true)
                .append(true)
                .open(dir.join(file));
            let open = Permissions::from_mode(0o666);
            file.and_then(|file| file.set_permissions(open))
                .expect("a file for everybody");
        }
        fake.change(|state| state.settings = settings);
        fake
    }

    /// The variables of a dispatcher that is to find it, and no real scheduler where one of its
    /// commands is missing.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let dir = self.store.dir();
        [
            ("PATH", text(self.bin())),
            ("SLURM_CONF", text(dir.join("slurm.conf"))),
            ("CONDOR_CONFIG", text(dir.join("condor_config"))),
        ]
    }

    /// The directory of the fake's commands.
    pub fn bin(&self) -> PathBuf {
        self.store.dir().join("bin")
    }

    /// Changes anything.
    pub fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        self.store.change(change).expect("the fake's state")
    }

    /// Replaces all faults from now on.
    pub fn faults(&self, rules: impl IntoIterator<Item = Rule>) {
        let rules = rules.into_iter().collect();
        let changed = self.store.change_rest(|state| state.rules = rules);
        changed.expect("the fake's state");
    }

    /// All jobs so far.
    pub fn jobs(&self) -> Vec<Job> {
        let version = self.store.version().expect("the fake's state");
        let mut known = self
            .known_jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.0 != Some(version) {
            *known = (
                Some(version),
                self.store.read().expect("the fake's state").jobs,
            );
        }
        known.1.clone()
    }

    /// All jobs so far with this name, which is a container's uuid.
    pub fn jobs_of(&self, name: &str) -> Vec<Job> {
        let mut jobs = self.jobs();
        jobs.retain(|job| job.name == name);
        jobs
    }

    /// Adds a job that was not submitted by a command.
    pub fn add_foreign_job(&self, job: Job) {
        self.change(|state| state.jobs.push(job));
    }

    /// Sets the state of a Slurm job that is not run.
    pub fn set_state(&self, id: &str, word: &str, ended: bool) {
        self.change_job(id, |job| {
            job.state = word.to_owned();
            job.ended = ended.then(now);
        });
    }

    /// Sets the state of an HTCondor job that is not run.
    pub fn set_status(&self, id: &str, status: i64, ended: bool) {
        self.change_job(id, |job| {
            job.set_status(status);
            job.ended = ended.then(now);
        });
    }

    /// Marks a waiting job as running on the node, though it is not run.
    pub fn mark_running(&self, id: &str) {
        self.change_job(id, job_runner::mark_running);
    }

    /// Ends a job that is not run, as if its program had ended with this status.
    pub fn end_job(&self, id: &str, exit: i32) {
        self.change_job(id, |job| job_runner::mark_ended(job, Some(exit), None));
    }

    /// Runs jobs from now on, also those that wait.
    pub fn release(&self) {
        let waiting = self.change(|state| {
            state.settings.run_jobs = true;
            let waiting = state
                .jobs
                .iter()
                .filter(|job| job.is_pending() && job.ended.is_none());
            waiting.map(|job| job.id.clone()).collect::<Vec<_>>()
        });
        for job in waiting {
            self.start_job(&job);
        }
    }

    /// Starts a waiting job.
    pub fn start_job(&self, id: &str) {
        job_runner::start(&self.store, id).expect("the process that runs the job");
    }

    fn change_job(&self, id: &str, change: impl FnOnce(&mut Job)) {
        self.change(|state| {
            let job = state.jobs.iter_mut().rfind(|job| job.id == id);
            change(job.unwrap_or_else(|| panic!("there is no job {id}")));
        });
    }

    /// Every call so far.
    pub fn calls(&self) -> Vec<Call> {
        self.store.calls().expect("the fake's call log")
    }

    /// Number of calls of a command so far.
    pub fn count(&self, command: &str) -> usize {
        let calls = self.calls();
        calls.iter().filter(|call| call.name == command).count()
    }

    /// Removes a command, or installs it again.
    pub fn install(&self, command: &str, there: bool) {
        let bin = self.bin();
        let (name, aside) = (bin.join(command), bin.join(format!(".{command}")));
        let (from, to) = match there {
            true => (aside, name),
            false => (name, aside),
        };
        fs::rename(from, to).expect("a command that is there");
    }
}

impl Drop for FakeSched {
    /// Ends the running jobs. Killed jobs leave the table shortly after.
    fn drop(&mut self) {
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        if self.store.change(|state| state.closing = true).is_err() {
            return;
        }
        let runs = |state: State| state.jobs.iter().any(|job| job.pid.is_some());
        while self.store.read().is_ok_and(runs) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
