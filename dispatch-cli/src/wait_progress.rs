//! Shows on standard error how a job goes on while a command waits for it. On a terminal: one line
//! that follows state and reason. Elsewhere: a note for each reason that lasts, or that is final.
//! `wait`, `run`, and `submit --wait` use it.

use std::io::{self, IsTerminal};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tokio::time::Instant;

use crate::job::{Job, JobState};
use crate::pending_reason::{PendingReason, PendingReasons, ReasonKind};
use crate::printer::eprint_note;
use crate::session::Session;
use arvados_client::visible::visible;

/// Interval at which the line is drawn; a job that ends before has none.
const DRAW_INTERVAL: Duration = Duration::from_millis(200);

/// Time at the begin of a wait in which what the job waits for is looked for often, and the
/// interval.
const FIRST_LOOKS: Duration = Duration::from_secs(10);
const FIRST_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How far a command is that waits for several jobs, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub begun: Instant,
    /// Jobs that the command has seen end.
    pub ended: usize,
    /// Jobs in all.
    pub jobs: usize,
}

impl Progress {
    /// Of a command that waits for one job from now on.
    pub fn of_one() -> Self {
        Self {
            begun: Instant::now(),
            ended: 0,
            jobs: 1,
        }
    }

    /// The begin of the line, such as "34 of 180 ended; ".
    fn prefix(self) -> String {
        match self.jobs {
            0 | 1 => String::new(),
            jobs => format!("{} of {jobs} ended; ", self.ended),
        }
    }
}

#[derive(Debug)]
pub struct WaitProgress {
    /// `None` if standard error is no terminal.
    line: Option<ProgressBar>,
    progress: Progress,
    reasons: PendingReasons,
}

impl WaitProgress {
    pub fn new(progress: Progress) -> Self {
        let line = io::stderr().is_terminal().then(|| {
            let line = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let line = line.with_elapsed(progress.begun.elapsed());
            let style = ProgressStyle::with_template("{elapsed:>4} {wide_msg}");
            line.set_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()));
            line
        });
        Self {
            line,
            progress,
            reasons: PendingReasons::default(),
        }
    }

    /// Without a line, also on a terminal: for a command that prints lines of the job.
    pub fn of_notes() -> Self {
        Self {
            line: None,
            progress: Progress::of_one(),
            reasons: PendingReasons::default(),
        }
    }

    /// Shows the job as it is now.
    pub async fn show(&mut self, session: &Session, job: &Job, now: Instant) {
        let reason = self.reasons.current(session, job, now).await;
        match (&self.line, reason) {
            (Some(line), reason) => {
                let place = self
                    .reasons
                    .place()
                    .filter(|_| job.state() == JobState::Queued);
                let text = match place {
                    Some(place) => format!("{place}; {}", sentence(job, reason.as_ref())),
                    None => sentence(job, reason.as_ref()),
                };
                self.draw(line, &text);
                // In full: the line is cut at the width of the terminal.
                let lasting = reason.filter(|reason| reason.kind != ReasonKind::Passing);
                if let Some(reason) = lasting {
                    self.tell(job, reason, now);
                }
            }
            (None, Some(reason)) => self.tell(job, reason, now),
            (None, None) => {}
        }
    }

    /// Shows the last known state of the job, while the server does not answer.
    pub fn show_outage(&self, job: &Job) {
        if let Some(line) = &self.line {
            let (name, state) = (job.name(), job.state().as_str());
            self.draw(line, &format!("no answer; job {name} was {state}"));
        }
    }

    fn draw(&self, line: &ProgressBar, text: &str) {
        let text = self.progress.prefix() + text;
        line.set_message(visible(&text).replace(['\n', '\t'], " "));
        line.enable_steady_tick(DRAW_INTERVAL);
    }

    /// Prints a note with the reason, if it is due.
    fn tell(&mut self, job: &Job, reason: PendingReason, now: Instant) {
        if let Some(reason) = self.reasons.take_new(reason, now) {
            self.note(&format!("dispatch: {}", sentence(job, Some(&reason))));
        }
    }

    /// When to look again at the latest: soon, as long as nothing was said of a job that waits.
    pub fn next_look(&self) -> Option<Duration> {
        let is_new = self.progress.begun.elapsed() < FIRST_LOOKS;
        (is_new && !self.reasons.has_reported()).then_some(FIRST_LOOK_INTERVAL)
    }

    /// What the job waits for at the end of a wait, unless that was printed.
    pub fn last_reason(&self) -> Option<String> {
        Some(self.reasons.not_reported()?.text.clone())
    }

    /// Prints a note above the line.
    pub fn note(&self, text: &str) {
        match &self.line {
            Some(line) => line.suspend(|| eprint_note(text)),
            None => eprint_note(text),
        }
    }
}

impl Drop for WaitProgress {
    fn drop(&mut self) {
        if let Some(line) = &self.line {
            line.finish_and_clear();
        }
    }
}

/// The state, and the reason or the activity.
fn sentence(job: &Job, reason: Option<&PendingReason>) -> String {
    let (name, state) = (job.name(), job.state());
    let status = job.container.as_ref().map(|c| &c.runtime_status);
    let activity = status.and_then(|status| status.activity.as_deref());
    let activity = activity.filter(|_| state == JobState::Running);
    let (never, advice) = match reason {
        Some(reason) if reason.kind == ReasonKind::Final => (
            " and cannot start as it is",
            format!("; end it with: dispatch kill {name}"),
        ),
        _ => ("", String::new()),
    };
    let state = match state {
        JobState::Locked => "being started",
        state => state.as_str(),
    };
    match reason.map(|reason| reason.text.as_str()).or(activity) {
        Some(text) => format!("job {name} is {state}{never}: {text}{advice}"),
        None => format!("job {name} is {state}"),
    }
}
