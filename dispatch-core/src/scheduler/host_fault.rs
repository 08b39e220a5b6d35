//! A fault that stops all starts, as a state: of the submit host, or of the file storage. Pure.
//!
//! Input: trials, submissions, and reports of attempts that could store nothing. Output: the reason
//! for which nothing is started, and its log lines.

use std::time::Duration;

use arvados_client::ContainerUuid;
use exp_backoff::Backoff;
use tokio::time::Instant;

/// Minimum time for which a failed submission holds the starts. Each further one doubles it: what
/// fails there may be something that a trial does not find.
const INITIAL_HOLD: Duration = Duration::from_secs(2);
/// See [`INITIAL_HOLD`].
const MAX_HOLD: Duration = Duration::from_secs(60);
/// Time after which a fault ends that no trial has ever confirmed, and after which a report no
/// longer counts.
const REPORTS_COUNT_FOR: Duration = Duration::from_secs(600);

/// Maximum number of reports. Two may be enough.
const MAX_REPORTS: usize = 32;

/// Which part has the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    SubmitHost,
    FileStorage,
}

/// An attempt that could store nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub container: ContainerUuid,
    /// None if the scheduler does not tell.
    pub node: Option<String>,
    pub reason: String,
}

/// Why a trial failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialFailure {
    pub reason: String,
    /// Whether the part itself said that it takes nothing. It was reached then.
    pub is_certain: bool,
}

impl From<String> for TrialFailure {
    fn from(reason: String) -> Self {
        Self {
            reason,
            is_certain: false,
        }
    }
}

/// Whether a part has a fault.
#[derive(Debug)]
pub(crate) struct Fault {
    part: Part,
    /// What the fault is, and since when it holds.
    found: Option<(String, Instant)>,
    /// A successful trial before this time ends no fault.
    held_until: Option<Instant>,
    /// Time of the next hold. It grows with the faults in a row that were found without a trial.
    hold: Backoff,
    /// Whether a failed trial is believed, whatever its reason.
    is_trial_trusted: bool,
    /// The newest report of each container, newest first.
    reports: Vec<(Instant, Report)>,
    /// Whether a report is newer than the last trial.
    is_suspect: bool,
    /// Reports that no trial has confirmed or refuted yet.
    undecided: Vec<Report>,
    /// Reports that a trial refuted: the nodes were at fault.
    refuted: Vec<Report>,
}

impl Default for Fault {
    /// The submit host, without a fault.
    fn default() -> Self {
        Self {
            part: Part::SubmitHost,
            found: None,
            held_until: None,
            hold: Backoff::new(INITIAL_HOLD, MAX_HOLD),
            is_trial_trusted: true,
            reports: Vec::new(),
            is_suspect: false,
            undecided: Vec::new(),
            refuted: Vec::new(),
        }
    }
}

impl Fault {
    /// The file storage, without a fault. A trial from this host proves nothing about the nodes
    /// before one has succeeded.
    pub(crate) fn of_storage(is_trial_trusted: bool) -> Self {
        Self {
            part: Part::FileStorage,
            is_trial_trusted,
            ..Self::default()
        }
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.found.as_ref().map(|(reason, _)| reason.as_str())
    }

    /// Whether a failed trial is believed, whatever its reason.
    pub(crate) fn is_trial_trusted(&self) -> bool {
        self.is_trial_trusted
    }

    /// Whether a trial should tell what a report means, or whether a fault has passed.
    pub(crate) fn is_suspect(&self) -> bool {
        self.is_suspect || self.found.is_some()
    }

    /// Whether only a report says that there is a fault.
    pub(crate) fn is_new_suspicion(&self) -> bool {
        self.is_suspect && self.found.is_none()
    }

    /// Records the result of a trial.
    pub(crate) fn tried(&mut self, now: Instant, result: Result<(), TrialFailure>) {
        self.is_suspect = false;
        let undecided = std::mem::take(&mut self.undecided);
        match result {
            Err(failure) => {
                tracing::debug!(part = ?self.part, reason = failure.reason, "a trial failed");
                self.trial_failed(now, failure);
            }
            Ok(()) => {
                self.is_trial_trusted = true;
                if self.found.is_none() {
                    self.refuted.extend(undecided);
                    self.refuted.truncate(MAX_REPORTS);
                }
                if self.held_until.is_none_or(|until| until <= now) {
                    self.clear();
                }
            }
        }
    }

    /// Removes and returns the reports that a trial refuted.
    pub(crate) fn take_refuted(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.refuted)
    }

    fn trial_failed(&mut self, now: Instant, failure: TrialFailure) {
        let TrialFailure { reason, is_certain } = failure;
        // An answer shows that this host reaches the part.
        self.is_trial_trusted |= is_certain;
        if self.is_trial_trusted {
            return self.set(now, reason);
        }
        match &self.found {
            // The nodes may reach storage that this host does not.
            Some((_, since)) if now.duration_since(*since) >= REPORTS_COUNT_FOR => self.clear(),
            Some(_) => {}
            None if self.reporting(now, |report| Some(report.container.as_str())) >= 2 => {
                self.set(now, reason);
            }
            None => {}
        }
    }

    /// Records an attempt that could store nothing. One report makes a trial due: the container or
    /// its node may be at fault. Attempts of several containers on several nodes are believed.
    pub(crate) fn reported(&mut self, now: Instant, report: Report) {
        self.is_suspect = true;
        let reason = report.reason.clone();
        self.reports
            .retain(|(_, old)| old.container != report.container);
        self.reports.truncate(MAX_REPORTS - 1);
        self.reports.insert(0, (now, report.clone()));
        self.undecided.truncate(MAX_REPORTS - 1);
        self.undecided.push(report);
        if self.reporting(now, |report| report.node.as_deref()) >= 2 {
            self.failed_without_trial(now, &reason);
        }
    }

    /// Number of different values among the reports that count.
    fn reporting<'a>(&'a self, now: Instant, of: impl Fn(&'a Report) -> Option<&'a str>) -> usize {
        let counts = |at: &Instant| now.duration_since(*at) < REPORTS_COUNT_FOR;
        let reports = self.reports.iter().filter(|(at, _)| counts(at));
        let values = reports.filter_map(|(_, report)| of(report));
        values.collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Records a submission that failed on this host.
    pub(crate) fn submission_failed(&mut self, now: Instant, reason: &str) {
        self.failed_without_trial(now, reason);
    }

    fn failed_without_trial(&mut self, now: Instant, reason: &str) {
        // The failures of one moment count once.
        if self.found.is_none() {
            self.held_until = Some(now + self.hold.next_delay());
        }
        self.set(now, reason.to_owned());
    }

    /// Records a submission that reached the scheduler, or an attempt that stored its results.
    pub(crate) fn succeeded(&mut self) {
        self.hold.reset();
        self.reports.clear();
    }

    fn clear(&mut self) {
        if self.found.take().is_none() {
            return;
        }
        self.reports.clear();
        let log = "containers are started again";
        match self.part {
            Part::SubmitHost => tracing::info!(
                event = "submit_host_mended",
                "jobs can be submitted from this host again; {log}"
            ),
            Part::FileStorage => tracing::info!(
                event = "file_storage_mended",
                "the file storage is tried again; {log}"
            ),
        }
    }

    fn set(&mut self, now: Instant, reason: String) {
        let reason = match self.part {
            Part::SubmitHost => reason,
            Part::FileStorage if reason.starts_with(STORAGE_FAILS) => reason,
            Part::FileStorage => format!("{STORAGE_FAILS}: {reason}"),
        };
        let since = self.found.as_ref().map(|(_, since)| *since);
        match (since, self.part) {
            (Some(_), _) => {}
            (None, Part::SubmitHost) => tracing::error!(
                event = "submit_host_failed",
                "no job can be submitted from this host, so no container is started: {reason}"
            ),
            (None, Part::FileStorage) => tracing::error!(
                event = "file_storage_failed",
                "no container is started before a block can be stored: {reason}"
            ),
        }
        self.found = Some((reason, since.unwrap_or(now)));
    }
}

/// First words of a reason.
const STORAGE_FAILS: &str = "the file storage (Keep) takes no data";

#[cfg(test)]
mod tests;
