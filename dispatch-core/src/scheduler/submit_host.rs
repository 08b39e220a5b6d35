//! What every start needs: a host that can submit jobs, and file storage that takes data.
//!
//! The host: its directories can be written to, and the submit command can be started. Input: a
//! trial of both every few seconds, and submissions that failed on this host. The storage: a block
//! can be stored. Input: reports of attempts that could not, and trials. One is made after a
//! report, and before starts if no attempt stored anything lately: attempts that reach no storage
//! at all wait, and report nothing. Output: the fault that holds all starts until it has passed. No
//! container loses a lock because of it.

use std::ffi::OsString;
use std::fs::File;
use std::future::Future;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::Duration;

use arvados_client::ContainerUuid;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::scheduler::SchedulerError;
use crate::scheduler::command::{Command, CommandError};
pub use crate::scheduler::host_fault::TrialFailure;
use crate::scheduler::host_fault::{Fault, Report};

/// Interval between two trials.
const TRIAL_INTERVAL: Duration = Duration::from_secs(5);
/// Age at which the last sign that storage takes data is too old to start containers on it.
const EVIDENCE_LASTS: Duration = Duration::from_secs(20);
/// The interval after a report: each further attempt may cost a lock.
const SUSPICION_INTERVAL: Duration = Duration::from_secs(1);
/// Time for which [`Precondition::check`] waits for a trial, which then goes on in the background.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Time after which a trial that goes on counts as failed: a file server does not answer.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the file that says that storage was reached.
const REMEMBER_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout of the trial start of a command. What it answers does not matter.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the trial file. The files of a batch of jobs are smaller.
const TRIAL_BYTES: usize = 64 << 10;

type TrialResult = Result<(), TrialFailure>;
type TrialFuture = Pin<Box<dyn Future<Output = TrialResult> + Send>>;

/// A trial. Its argument says whether it starts the command, too, and not only looks for it.
type Trial = Box<dyn Fn(bool) -> TrialFuture + Send + Sync>;

/// One of the things without which nothing is started.
pub struct Precondition {
    /// What a trial waits for, for its error.
    what: String,
    trial: Trial,
    needs: Option<HostNeeds>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    /// Start of the newest trial.
    tried: Option<Instant>,
    /// When a submission, an attempt or a trial last succeeded.
    succeeded: Option<Instant>,
    running: Option<JoinHandle<TrialResult>>,
    /// Whether the newest trial goes on. [`Precondition::check`] may have it.
    is_trying: bool,
    /// Whether a trial has ended, or a submission or an attempt has succeeded.
    is_known: bool,
}

impl State {
    /// Whether a slow trial goes on without which nothing says that there is no fault.
    fn is_awaited(&self) -> bool {
        let is_old = |at: Instant| at.elapsed() >= EVIDENCE_LASTS;
        // The failure of a trial that is not trusted would say nothing about the nodes.
        let is_unknown = self.fault.is_trial_trusted() && self.succeeded.is_none_or(is_old);
        let is_slow = |began: Instant| began.elapsed() >= CHECK_TIMEOUT;
        let goes_on = self.is_trying && self.tried.is_some_and(is_slow);
        goes_on && (is_unknown || !self.is_known)
    }
}

impl std::fmt::Debug for Precondition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.state.lock().fmt(f)
    }
}

/// What a trial checks.
#[derive(Debug, Clone)]
pub struct HostNeeds {
    /// Directories that must be writable.
    pub directories: Vec<PathBuf>,
    /// Name of the trial's directory in each of them.
    pub trial: String,
    /// A file and its content, which show that the right file system is mounted.
    pub identity: Option<(PathBuf, String)>,
    /// The submit command, and an argument with which it does nothing.
    pub command: (OsString, &'static str),
}

impl HostNeeds {
    async fn try_all(self, is_thorough: bool) -> Result<(), String> {
        let command = Command::new(&self.command.0).args([self.command.1]);
        let writing = tokio::task::spawn_blocking(move || self.try_directories());
        writing.await.map_err(|error| error.to_string())??;
        if !is_thorough && command.is_installed() {
            return Ok(());
        }
        match command.timeout(COMMAND_TIMEOUT).run().await {
            Err(error @ CommandError::NotStarted { .. }) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    fn try_directories(&self) -> Result<(), String> {
        for path in &self.directories {
            let tried = try_directory(path, &self.trial);
            tried.map_err(|error| describe_directory(path, &error))?;
        }
        self.try_identity()
    }

    /// Fails if the directory is not the dispatcher's: its file system is not mounted.
    fn try_identity(&self) -> Result<(), String> {
        let Some((file, content)) = &self.identity else {
            return Ok(());
        };
        match std::fs::read_to_string(file) {
            Ok(found) if found == *content => Ok(()),
            Ok(_) => Err(format!("{} is another dispatcher's", file.display())),
            Err(error) => Err(format!(
                "cannot read {}: {error}; see that the right file system is mounted there",
                file.display()
            )),
        }
    }
}

/// Creates a directory with a file, syncs it and removes both, as a submission does.
pub(crate) fn try_directory(path: &Path, name: &str) -> io::Result<()> {
    let trial = path.join(name);
    // A killed trial left it.
    host_state::file::remove_tree(&trial)?;
    std::fs::create_dir(&trial)?;
    let written = std::fs::File::create_new(trial.join("file")).and_then(|mut file| {
        file.write_all(&[0; TRIAL_BYTES])?;
        file.sync_all()
    });
    let removed = host_state::file::remove_tree(&trial);
    written.and(removed)
}

/// A failed write in a directory, and what to do.
pub(crate) fn describe_directory(path: &Path, error: &io::Error) -> String {
    let remedy = directory_remedy(error);
    let remedy = remedy.map_or(String::new(), |remedy| format!("; {remedy}"));
    format!("cannot write to {}: {error}{remedy}", path.display())
}

/// The error for a job whose directory cannot be made.
pub fn job_directory_error(
    container: &ContainerUuid,
    path: &Path,
    error: &io::Error,
) -> SchedulerError {
    let (container, detail) = (container.clone(), describe_directory(path, error));
    match is_of_one_directory(error) {
        true => SchedulerError::JobDirectory { container, detail },
        false => SchedulerError::HostFault { container, detail },
    }
}

/// Whether an error is about one directory. A trial finds it where it is about all of them.
fn is_of_one_directory(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::PermissionDenied
            | Kind::DirectoryNotEmpty
            | Kind::ResourceBusy
            | Kind::AlreadyExists
            | Kind::NotADirectory
            | Kind::IsADirectory
    )
}

/// What to do after a failed write in a directory.
pub(crate) fn directory_remedy(error: &io::Error) -> Option<&'static str> {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => Some("free space there"),
        Kind::ReadOnlyFilesystem => Some("make its file system writable again"),
        Kind::NotFound | Kind::StaleNetworkFileHandle | Kind::NotConnected | Kind::TimedOut => {
            Some("see that its file system is mounted and its server answers")
        }
        Kind::PermissionDenied => Some("give it to the user of the dispatcher"),
        _ => None,
    }
}

impl Precondition {
    /// A host that was not tried yet.
    pub fn submit_host(needs: HostNeeds) -> Self {
        let directories = needs
            .directories
            .iter()
            .map(|path| path.display().to_string());
        let what = directories.collect::<Vec<_>>().join(" and ");
        let own = needs.clone();
        Self {
            needs: Some(own),
            ..Self::with_trial(what, move |is_thorough| needs.clone().try_all(is_thorough))
        }
    }

    /// A host with another trial, which waits for `what`.
    pub fn with_trial<F>(what: String, trial: impl Fn(bool) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self {
            what,
            trial: Box::new(move |is_thorough| {
                let tried = trial(is_thorough);
                Box::pin(async { Ok(tried.await?) })
            }),
            needs: None,
            state: Mutex::default(),
        }
    }

    /// File storage that was not tried yet. `trial` stores a block. `reached` is a file that exists
    /// once this host has stored one. Then a trial that fails is believed, also after a restart.
    pub fn file_storage<F>(
        reached: Option<PathBuf>,
        trial: impl Fn() -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = TrialResult> + Send + 'static,
    {
        let was_reached = reached.as_ref().is_some_and(|file| file.exists());
        let fault = Fault::of_storage(was_reached);
        let remember = move |tried: F| {
            let reached = reached.clone();
            async move {
                tried.await?;
                if let Some(file) = reached {
                    // It is there, or the next start knows less. A disk that hangs is not Keep's
                    // fault.
                    let made = tokio::task::spawn_blocking(|| File::create_new(file));
                    let _ = tokio::time::timeout(REMEMBER_TIMEOUT, made).await;
                }
                Ok(())
            }
        };
        Self {
            what: "Keep".into(),
            trial: Box::new(move |_| Box::pin(remember(trial()))),
            needs: None,
            state: Mutex::new(State {
                fault,
                ..State::default()
            }),
        }
    }

    /// The directory of the dispatcher's own files.
    pub fn state_dir(&self) -> Option<&Path> {
        let needs = self.needs.as_ref()?;
        needs.directories.first().map(PathBuf::as_path)
    }

    /// Tries the storage if an attempt reported a fault, or if containers wait for a start and no
    /// trial and no attempt has shown lately that it takes data. Never called twice at once.
    pub async fn check_if_due(&self, containers_wait: bool) {
        let is_due = {
            let state = self.state.lock();
            // What attempts store does not show that a trial from here can be trusted.
            let stored = state.succeeded.filter(|_| state.fault.is_trial_trusted());
            let evidence = state.tried.max(stored);
            let is_old = evidence.is_none_or(|at| at.elapsed() >= EVIDENCE_LASTS);
            state.fault.is_suspect() || state.running.is_some() || (containers_wait && is_old)
        };
        if is_due {
            self.check(true).await;
        }
    }

    /// Why nothing can be started, if that is so, or is not known before the trial has ended.
    pub fn fault(&self) -> Option<String> {
        let state = self.state.lock();
        let awaited = || format!("{} has not answered yet", self.what);
        let reason = state.fault.reason().map(str::to_owned);
        reason.or_else(|| state.is_awaited().then(awaited))
    }

    /// Whether the end of a trial is waited for.
    pub fn is_awaited(&self) -> bool {
        let state = self.state.lock();
        state.fault.reason().is_none() && state.is_awaited()
    }

    /// Tries the host if that is due. `suspects` says that another command could not be run. Never
    /// called twice at once.
    pub async fn check(&self, suspects: bool) {
        let Some((began, mut running)) = self.due_trial(suspects) else {
            return;
        };
        let ended = tokio::time::timeout(CHECK_TIMEOUT, &mut running).await;
        let now = Instant::now();
        let mut state = self.state.lock();
        match ended {
            Ok(result) => {
                let result = result.unwrap_or_else(|error| Err(error.to_string().into()));
                (state.is_known, state.is_trying) = (true, false);
                state.succeeded = state.succeeded.max(result.as_ref().ok().map(|()| began));
                state.fault.tried(now, result);
            }
            Err(_) => {
                let waited = now.duration_since(began);
                if waited >= TRIAL_TIMEOUT {
                    state.is_known = true;
                    let error = self.silence(waited);
                    state.fault.tried(now, Err(error.into()));
                }
                state.running = Some(running);
            }
        }
    }

    /// The trial that still runs, or a new one if that is due.
    fn due_trial(&self, suspects: bool) -> Option<(Instant, JoinHandle<TrialResult>)> {
        let mut state = self.state.lock();
        if let (Some(began), Some(running)) = (state.tried, state.running.take()) {
            return Some((began, running));
        }
        let now = Instant::now();
        let interval = match state.fault.is_new_suspicion() {
            true => SUSPICION_INTERVAL,
            false => TRIAL_INTERVAL,
        };
        let is_early = |at| now.duration_since(at) < interval;
        if state.tried.is_some_and(is_early) {
            return None;
        }
        (state.tried, state.is_trying) = (Some(now), true);
        let is_thorough = suspects || state.fault.reason().is_some();
        Some((now, tokio::spawn((self.trial)(is_thorough))))
    }

    /// Fails if the state directory is not there. Called before each submission: files in another
    /// directory of that name would be found by no node.
    pub async fn confirm_directory(&self) -> Result<(), String> {
        let Some(needs) = self.needs.clone() else {
            return Ok(());
        };
        let reading = tokio::task::spawn_blocking(move || needs.try_identity());
        match tokio::time::timeout(TRIAL_TIMEOUT, reading).await {
            Ok(read) => read.map_err(|error| error.to_string())?,
            Err(_) => Err(self.silence(TRIAL_TIMEOUT)),
        }
    }

    fn silence(&self, waited: Duration) -> String {
        format!(
            "{} has not answered for {} s; see that its server does",
            self.what,
            waited.as_secs()
        )
    }

    /// Records that a submission failed on this host, before anything was sent to the scheduler.
    pub fn submission_failed(&self, reason: &str) {
        self.state
            .lock()
            .fault
            .submission_failed(Instant::now(), reason);
    }

    /// Records that an attempt could store nothing. A trial decides whether that is the storage's
    /// fault or its node's.
    pub(crate) fn reported(&self, report: Report) {
        self.state.lock().fault.reported(Instant::now(), report);
    }

    /// Removes and returns the reports that were the fault of their nodes.
    pub(crate) fn take_refuted(&self) -> Vec<Report> {
        self.state.lock().fault.take_refuted()
    }

    /// Records that the scheduler was asked about a submission, or that an attempt stored its
    /// results.
    pub fn submission_sent(&self) {
        let mut state = self.state.lock();
        state.succeeded = Some(Instant::now());
        state.is_known = true;
        state.fault.succeeded();
    }
}

#[cfg(test)]
mod tests;
