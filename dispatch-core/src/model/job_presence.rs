//! Decides from the listings of the scheduler whether a container's job is there, is lost, or
//! whether that is not known.
//!
//! Input: a [`ContainerView`] with the two newest complete listings. Output: [`JobPresence`]. Two
//! listings must lack a job before it counts as lost: one may be older than it looks. So it takes
//! as long as two listings take. `observe/poll_schedule.rs` says when they are due: at most
//! `--poll-interval` apart, and sooner once the first lacks a job.

use crate::model::container_view::{ContainerView, live};
use crate::model::world::{Job, MonotonicTime, Phase};

/// Presence of a container's job, as far as the scheduler's listings prove it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobPresence<'a> {
    /// The newest listing shows the job.
    Present(&'a Job),
    /// Two complete listings do not show the job. Both began after the last moment at which it
    /// could have been submitted.
    Absent,
    /// The listings prove neither presence nor absence.
    Unknown,
}

impl<'a> ContainerView<'a> {
    /// Presence of the container's job. `Unknown` must never be treated as `Absent`.
    pub fn job_presence(&self) -> JobPresence<'a> {
        let (Some(newest), previous) = (self.newest, self.previous) else {
            return JobPresence::Unknown;
        };
        if let Some(job) = live(newest.1).next() {
            return JobPresence::Present(job);
        }
        let since = match self.attempt.map(|attempt| attempt.phase) {
            Some(Phase::Submitted(at) | Phase::Adopted(at) | Phase::LockUnknown(at)) => at,
            // The attempt is not submitted yet, so no listing can prove anything about its job.
            Some(Phase::Locked | Phase::Submitting) => return JobPresence::Unknown,
            Some(Phase::Revoking | Phase::Undelivered(_)) | None => MonotonicTime::default(),
        };
        let lacks_job = |(began, jobs): (MonotonicTime, &'a [Job])| {
            began > since && live(jobs).next().is_none()
        };
        match previous {
            Some(previous) if lacks_job(previous) && lacks_job(newest) => JobPresence::Absent,
            _ => JobPresence::Unknown,
        }
    }
}
