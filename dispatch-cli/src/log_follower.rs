//! Follows the log of a job until the job has ended.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::CliError;
use crate::job::{Job, JobState};
use crate::jobs;
use crate::log_files::LogFiles;
use crate::log_line::Line;
use crate::log_printer::LinePrinter;
use crate::printer::eprint_note;
use crate::session::Session;
use crate::wait_progress::{Progress, WaitProgress};
use crate::watch::{Outage, Watch};

/// Intervals between two reads of a live log: after new lines, and the maximum while there are
/// none.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1500);

/// How the state of the job is shown beside its log.
pub struct LogProgress {
    mode: Mode,
    waiting: WaitProgress,
    /// The last state and activity, as they were noted.
    last_activity: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// A note for each state, activity and lasting reason.
    Notes,
    /// As while waiting, until the job runs.
    UntilRunning,
    /// The lines of the job alone, and a note if the disk is full.
    WhileRunning,
}

/// Prints the log of a job while it grows.
pub struct LogFollower<'a> {
    pub session: &'a Session,
    pub files: &'a mut LogFiles,
    pub printer: &'a mut LinePrinter,
    pub progress: LogProgress,
}

impl LogFollower<'_> {
    /// Prints new lines until the job has ended. Lines without an end are not printed yet.
    pub async fn until_end(&mut self, mut job: Job, watch: &mut Watch) -> Result<Job, CliError> {
        let mut outage = Outage::default();
        let mut interval = POLL_INTERVAL;
        let client = &self.session.client;
        // Of a job that reuses the result of another one.
        if job.verdict().is_some() {
            let printer = &mut *self.printer;
            let print = |name: &str, line: Line<'_>| printer.print(name, line);
            self.files.read(&job, print).await?;
        }
        while job.verdict().is_none() {
            self.show_progress(&job).await;
            let uuids: Vec<String> = job.uuids().map(str::to_owned).collect();
            let mut pause = pin!(watch.wait_for_change(&uuids));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    () = sleep(interval) => {}
                }
                let (printer, progress) = (&mut *self.printer, &mut self.progress);
                let is_new = self
                    .files
                    .read_live(&job, |name, line| {
                        // Its lines may be here before its state is.
                        progress.end();
                        printer.print(name, line)
                    })
                    .await?;
                let is_pending = matches!(job.state(), JobState::Queued | JobState::Locked);
                if is_pending && self.progress.is_new() {
                    self.show_progress(&job).await;
                }
                interval = match is_new {
                    true => POLL_INTERVAL,
                    false => (interval * 3 / 2).min(MAX_POLL_INTERVAL),
                };
            }
            let refreshed = jobs::refresh(client, &job).await;
            let fresh = outage.tolerate(refreshed, Instant::now(), &|text| {
                self.progress.waiting.note(text)
            })?;
            let Some(fresh) = fresh else {
                continue;
            };
            job = fresh;
            self.progress.end_before_lines(&job);
            let (printer, progress) = (&mut *self.printer, &mut self.progress);
            self.files
                .read(&job, |name, line| {
                    progress.end();
                    printer.print(name, line)
                })
                .await?;
        }
        Ok(job)
    }

    async fn show_progress(&mut self, job: &Job) {
        let progress = &mut self.progress;
        if progress.mode == Mode::Notes {
            print_activity(job, &mut progress.last_activity);
        }
        let now = Instant::now();
        progress.waiting.show(self.session, job, now).await;
    }
}

impl LogProgress {
    /// For a log that is followed: a note for each state, activity and lasting reason.
    pub fn notes() -> Self {
        Self::new(Mode::Notes, WaitProgress::of_notes())
    }

    /// For a job that was just submitted: as while waiting, until the job runs.
    pub fn until_running() -> Self {
        Self::new(Mode::UntilRunning, WaitProgress::new(Progress::of_one()))
    }

    fn new(mode: Mode, waiting: WaitProgress) -> Self {
        Self {
            mode,
            waiting,
            last_activity: None,
        }
    }

    /// Whether nothing was said yet of what a job waits for.
    fn is_new(&self) -> bool {
        self.mode != Mode::WhileRunning && self.waiting.next_look().is_some()
    }

    /// Removes the line before the first line of the log.
    fn end_before_lines(&mut self, job: &Job) {
        if !matches!(job.state(), JobState::Queued | JobState::Locked) {
            self.end();
        }
    }

    /// Removes the line at once.
    fn end(&mut self) {
        if self.mode == Mode::UntilRunning {
            *self = Self::new(Mode::WhileRunning, WaitProgress::of_notes());
        }
    }
}

/// Prints the state and activity of the job when they change.
fn print_activity(job: &Job, last: &mut Option<String>) {
    let activity = job
        .container
        .as_ref()
        .and_then(|c| c.runtime_status.activity.clone());
    let (name, state) = (job.name(), job.state().as_str());
    let now = match activity {
        Some(activity) => format!("dispatch: job {name} is {state}: {activity}"),
        None => format!("dispatch: job {name} is {state}"),
    };
    if last.as_ref() != Some(&now) {
        eprint_note(&now);
        *last = Some(now);
    }
}
