//! Finds out what a job waits for while a command waits for the job.
//!
//! The reason comes from the disk of `dispatch up` if it is full. For a pending job it comes from
//! the status page of the dispatcher on this machine, from the record of the container, or from the
//! last log entry of a dispatcher on the server.

use std::time::Duration;

use arvados_client::Client;
use arvados_client::client::Call;
use serde_json::Value;
use tokio::time::Instant;

use crate::disk_usage;
use crate::job::{Job, JobState};
use crate::local_status::{self, QueuePlace, StatusReply};
use crate::session::Session;

/// Minimum age of the first reason before it is printed, and of another one after it.
const MIN_FIRST_REASON_AGE: Duration = Duration::from_secs(2);
const MIN_REASON_AGE: Duration = Duration::from_secs(10);
/// Interval between two reads of the status page of this machine.
const LOCAL_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between two queries of the log entries on the server.
const LOG_QUERY_INTERVAL: Duration = Duration::from_secs(10);
/// When the first one is: most jobs start earlier.
const FIRST_LOG_QUERY: Duration = Duration::from_secs(1);

/// What a job waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingReason {
    pub text: String,
    pub kind: ReasonKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReasonKind {
    /// It passes by itself.
    Passing,
    /// The disk is full: somebody must make room.
    FullDisk,
    /// The job can never start as it is.
    Final,
}

impl PendingReason {
    /// Whether it is the other one at most with other numbers, such as the free space of a disk.
    fn differs_by_numbers(&self, other: &Self) -> bool {
        let words = |text: &str| text.replace(|c: char| c.is_ascii_digit() || c == '.', "");
        self.kind == other.kind && words(&self.text) == words(&other.text)
    }
}

/// Pending reasons of one job.
#[derive(Debug, Default)]
pub struct PendingReasons {
    /// The current reason, and since when.
    current: Option<(PendingReason, Instant)>,
    reported: Option<PendingReason>,
    local: Option<(PendingReason, Instant)>,
    /// Its place in the queue of this machine, as last read.
    place: Option<QueuePlace>,
    /// What the server last said, and the state of the job then.
    last_note: Option<(String, JobState)>,
    next_query: Option<Instant>,
}

impl PendingReasons {
    /// What the job waits for, if it is known.
    pub async fn current(
        &mut self,
        session: &Session,
        job: &Job,
        now: Instant,
    ) -> Option<PendingReason> {
        let is_pending = matches!(job.state(), JobState::Queued | JobState::Locked);
        let local = match is_pending {
            true => self.of_local_dispatcher(session, job, now).await,
            false => None,
        };
        // Room on the disk does not help a job that can never start.
        let is_final = |reason: &PendingReason| reason.kind == ReasonKind::Final;
        if !local.as_ref().is_some_and(is_final)
            && let Some(text) = session.local.as_ref().and_then(disk_usage::shortage)
        {
            let kind = ReasonKind::FullDisk;
            return Some(PendingReason { text, kind });
        }
        if !is_pending || local.is_some() {
            return local;
        }
        let text = match reason_in_record(job) {
            Some(text) => Some(text),
            None => self.latest_note(&session.client, job, now).await,
        };
        text.map(|text| PendingReason {
            text,
            kind: ReasonKind::Passing,
        })
    }

    /// The reason on the status page of this machine's dispatcher, read at an interval.
    async fn of_local_dispatcher(
        &mut self,
        session: &Session,
        job: &Job,
        now: Instant,
    ) -> Option<PendingReason> {
        session.local.as_ref()?;
        if let Some((reason, read_at)) = &self.local
            && now.duration_since(*read_at) < LOCAL_INTERVAL
        {
            return Some(reason.clone());
        }
        (self.local, self.place) = (None, None);
        let status = match local_status::fetch_for(session, job).await {
            StatusReply::Reply(status) => status,
            StatusReply::NotLocal => return None,
            StatusReply::NoReply => {
                return Some(PendingReason {
                    text: local_status::NO_REPLY.to_owned(),
                    kind: ReasonKind::Passing,
                });
            }
        };
        let container = job.request.container_uuid.as_ref()?;
        self.place = status.place(container.as_str());
        let row = status.container(container.as_str())?;
        let reason = PendingReason {
            text: row.waits.clone()?,
            kind: match row.never_fits {
                true => ReasonKind::Final,
                false => ReasonKind::Passing,
            },
        };
        self.local = Some((reason.clone(), now));
        Some(reason)
    }

    /// The current reason, unless it was reported.
    pub fn not_reported(&self) -> Option<&PendingReason> {
        let (current, _) = self.current.as_ref()?;
        (self.reported.as_ref() != Some(current)).then_some(current)
    }

    /// Whether something was reported.
    pub fn has_reported(&self) -> bool {
        self.reported.is_some()
    }

    /// The place of the job in the queue of this machine, if it waits behind or before others.
    pub fn place(&self) -> Option<QueuePlace> {
        self.place
    }

    /// Whether the log entries are to be queried now.
    fn is_query_due(&mut self, now: Instant) -> bool {
        let is_due = now >= *self.next_query.get_or_insert(now + FIRST_LOG_QUERY);
        if is_due {
            self.next_query = Some(now + LOG_QUERY_INTERVAL);
        }
        is_due
    }

    /// The last log entry of a dispatcher, else the scheduling status of the server, queried at an
    /// interval.
    async fn latest_note(&mut self, client: &Client, job: &Job, now: Instant) -> Option<String> {
        let container = job.request.container_uuid.as_ref()?;
        if self.is_query_due(now) {
            // An error is ignored: the reason is only a hint.
            let notes = client.last_notes(container, 1).await;
            let note = match notes.unwrap_or_default().pop() {
                Some(note) => Some(note.text),
                None => of_server(client, job).await,
            };
            self.last_note = note.map(|note| (note, job.state()));
        }
        let last = self.last_note.as_ref();
        last.filter(|(_, state)| *state == job.state())
            .map(|(note, _)| note.clone())
    }

    /// Returns the reason if it is not the last one reported, and old enough or lasting.
    pub fn take_new(&mut self, reason: PendingReason, now: Instant) -> Option<PendingReason> {
        let since = match &self.current {
            Some((current, since)) if *current == reason => *since,
            _ => {
                self.current = Some((reason.clone(), now));
                now
            }
        };
        let is_new = !self
            .reported
            .as_ref()
            .is_some_and(|last| last.differs_by_numbers(&reason));
        let min_age = match self.reported {
            Some(_) => MIN_REASON_AGE,
            None => MIN_FIRST_REASON_AGE,
        };
        let is_due = reason.kind != ReasonKind::Passing || now.duration_since(since) >= min_age;
        (is_due && is_new).then(|| {
            self.reported = Some(reason.clone());
            reason
        })
    }
}

/// The scheduling status of the server, which not every server has. Errors are ignored: it is only
/// a hint.
pub async fn of_server(client: &Client, job: &Job) -> Option<String> {
    let path = format!("container_requests/{}/container_status", job.request.uuid);
    let answer: Value = client.send(Call::get(path)).await.ok()?;
    let text = answer.get("scheduling_status")?.as_str()?.trim().to_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// The reason in the record of the container.
fn reason_in_record(job: &Job) -> Option<String> {
    let status = &job.container.as_ref()?.runtime_status;
    let texts = [&status.error, &status.warning, &status.activity];
    texts.into_iter().flatten().next().cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notes_of_dispatchers_elsewhere_are_read_early_and_then_seldom() {
        let start = Instant::now();
        let mut reasons = PendingReasons::default();
        for (second, is_due) in [(0, false), (1, true), (2, false), (10, false), (11, true)] {
            let now = start + Duration::from_secs(second);
            assert_eq!(reasons.is_query_due(now), is_due, "{second}");
        }
    }

    #[test]
    fn a_reason_is_told_once_when_it_lasts_and_again_when_it_changes() {
        // second, reason, whether it is reported
        let rows = [
            (0, "no node has 64 CPUs", false),
            (1, "no node has 64 CPUs", false),
            (2, "no node has 64 CPUs", true),
            (60, "no node has 64 CPUs", false),
            (61, "fetching image", false),
            (62, "no node has 64 CPUs", false),
            (80, "no node has 64 CPUs", false),
            (81, "the partition is down", false),
            (95, "the partition is down", true),
            (96, "3.5 GiB are free", false),
            (120, "3.5 GiB are free", true),
            (121, "3.4 GiB are free", false),
            (150, "3.4 GiB are free", false),
        ];
        let start = Instant::now();
        let mut reasons = PendingReasons::default();
        for (second, reason, reported) in rows {
            let pending = PendingReason {
                text: reason.to_owned(),
                kind: ReasonKind::Passing,
            };
            let reason_to_print = reasons.take_new(pending, start + Duration::from_secs(second));
            assert_eq!(reason_to_print.is_some(), reported, "{second} {reason}");
        }
        let never = PendingReason {
            text: "no node has 64 CPUs".to_owned(),
            kind: ReasonKind::Final,
        };
        assert!(reasons.take_new(never.clone(), start).is_some());
        assert!(reasons.take_new(never, start).is_none());
    }
}
