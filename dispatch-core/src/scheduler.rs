//! The seam to a scheduler: a few verbs, and errors that say whether anything may have happened.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use futures_util::future::join_all;

use crate::credentials::Credentials;
use crate::needs::{Fit, Needs, Room};
use crate::world::{Job, JobId};

/// What of a dispatcher's environment its jobs get. No token: that is in a file.
pub const JOB_ENVIRONMENT: [&str; 4] = [
    "ARVADOS_API_HOST",
    "ARVADOS_API_HOST_INSECURE",
    "ARVADOS_KEEP_SERVICES",
    "SSL_CERT_FILE",
];

/// A container that may start, or that has started: what admission is decided from.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// The container.
    pub container: ContainerUuid,
    /// What it takes.
    pub needs: Needs,
}

/// One attempt to be handed over.
#[derive(Debug, Clone)]
pub struct Order {
    /// The container.
    pub container: ContainerUuid,
    /// The attempt's name.
    pub attempt: TokenUuid,
    /// The attempt's token and the secret of its gateway, for crunch-run only.
    pub credentials: Credentials,
    /// What it takes.
    pub needs: Needs,
    /// Nodes on which it must not run, where the scheduler can be told so.
    pub avoid: Vec<String>,
}

/// How a stop is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Ask crunch-run to stop the container and save what there is.
    Ask,
    /// It was asked and given its time.
    Force,
}

/// A command to the scheduler did not do what it should.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SchedulerError {
    /// It cannot be asked, or its answer is not complete: nothing is known.
    #[error("the {scheduler} scheduler did not answer: {detail}")]
    NoAnswer {
        /// Which.
        scheduler: &'static str,
        /// What was seen.
        detail: String,
    },
    /// The job was not accepted, for certain.
    #[error("{scheduler} refused the job of {container}: {detail}")]
    Refused {
        /// Which.
        scheduler: &'static str,
        /// Whose job.
        container: ContainerUuid,
        /// What was seen.
        detail: String,
    },
    /// It was not accepted together with others, for certain; by itself it may be. The attempt goes on.
    #[error("{scheduler} did not take {container} together with others: {detail}")]
    NotTogether {
        /// Which.
        scheduler: &'static str,
        /// Whose job.
        container: ContainerUuid,
        /// What was seen.
        detail: String,
    },
    /// The job may or may not have been accepted.
    #[error("it is not known whether {scheduler} accepted the job of {container}: {detail}")]
    Ambiguous {
        /// Which.
        scheduler: &'static str,
        /// Whose job.
        container: ContainerUuid,
        /// What was seen.
        detail: String,
    },
}

/// Why it is not certain that a job has ended, or how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doubt {
    /// It has not ended at all: the listings that missed it were wrong.
    Alive,
    /// The scheduler, asked for it by name, did not answer, and this is why.
    MayBeAlive(String),
    /// It has ended, and whether it left results on its node could not be asked, and this is why. Nothing is lost for a
    /// container that never ran.
    MayHaveResults(String),
}

/// How a job ended, as far as the scheduler can tell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// One sentence.
    pub reason: String,
    /// The evidence: last words, exit status.
    pub detail: String,
    /// The node it was on, where the scheduler tells.
    pub node: Option<String>,
    /// What speaks against acting on it; then it is asked for again.
    pub doubt: Option<Doubt>,
    /// The job was never started on any node, for certain: no executor ran.
    pub never_began: bool,
    /// The container ran, and its results are on the node, to be delivered later (crunch-run's exit status 77).
    pub undelivered: bool,
}

impl Ending {
    /// Nothing is to be done on it.
    pub fn doubtful(doubt: Doubt) -> Self {
        Self {
            doubt: Some(doubt),
            ..Self::default()
        }
    }

    /// The reason, or that there is none.
    pub fn sentence(&self) -> &str {
        match self.reason.is_empty() {
            true => {
                "crunch-run ended without recording a final state, and the scheduler does not tell why"
            }
            false => &self.reason,
        }
    }

    /// The same, with what crunch-run said of it where it ran nothing: its directory is gone afterwards.
    pub fn story(&self) -> String {
        const REFUSALS: [&str; 2] = ["Nothing was run here: ", "crunch-run: "];
        let refusal = |line: &str| {
            REFUSALS
                .iter()
                .find_map(|m| Some(line.split_once(m)?.1.to_owned()))
        };
        // A crunch-run that is not set up rightly says why and ends, with the container's name before its words.
        let unusable = || {
            let last = self.detail.lines().rfind(|line| !line.trim().is_empty())?;
            let (name, said) = last.split_once(' ')?;
            let is_name = ContainerUuid::parse(name).is_ok();
            (is_name && self.reason.contains("exit code 78")).then(|| said.to_owned())
        };
        match self
            .detail
            .lines()
            .rev()
            .find_map(refusal)
            .or_else(unusable)
        {
            Some(said) => format!("{}: {}", self.sentence(), said.trim()),
            None => self.sentence().to_owned(),
        }
    }
}

/// What a job waits for in its scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Whether it will start.
    pub outlook: Outlook,
    /// What it waits for, in words for the user, with the expected start where the scheduler tells.
    pub words: String,
}

/// Whether a job that waits will start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Yes, when its turn comes.
    Passes,
    /// When somebody has done something about it: released it, raised a limit, repaired a node.
    NeedsSomebody,
    /// No: nothing in this scheduler could run it as it is.
    Never,
}

/// What the order of the queue should be: a container whose job waits, and its priority.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// The container.
    pub container: ContainerUuid,
    /// Its priority at the API server, above 0; up to 60 bits.
    pub priority: i64,
}

/// A process still works with what is left of a job: it cannot be removed yet.
#[derive(Debug, thiserror::Error)]
#[error("a process still works with what is left of its job")]
pub struct StillInUse;

/// What a scheduler takes together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batching {
    /// So many at most.
    pub most: usize,
    /// Only those of equal needs, and from so many on; none: any.
    pub alike: Option<usize>,
    /// As [`Scheduler::stops`] says.
    pub stops: usize,
    /// As [`Scheduler::counts_endings`] says.
    pub counts_endings: bool,
}

impl Batching {
    /// One by one.
    pub const SINGLE: Self = Self {
        most: 1,
        alike: None,
        stops: 1,
        counts_endings: false,
    };
}

/// A scheduler.
pub trait Scheduler: Send + Sync + 'static {
    /// Its name in logs and labels.
    fn name(&self) -> &'static str;

    /// Which of the candidates, highest priority first, may start beside those already started. One answer each.
    fn admit(&self, candidates: &[Candidate], started: &[Candidate]) -> Vec<Fit>;

    /// What there is and what is free, where the scheduler is one machine; for the status page.
    fn room(&self) -> Option<Room> {
        None
    }

    /// Between two listings at least, however much happens: a scheduler that others use too is not to be asked all the
    /// time. One look without events asks each poll interval.
    fn listing_gap(&self) -> Duration {
        Duration::from_secs(2)
    }

    /// Every job of ours. Complete, or an error.
    fn list(&self) -> impl Future<Output = Result<Vec<Job>, SchedulerError>> + Send;

    /// Hands one attempt over.
    fn submit(&self, order: Order) -> impl Future<Output = Result<JobId, SchedulerError>> + Send;

    /// How many attempts can be handed over at once; more than 1 where that is cheaper than one by one.
    fn batch(&self) -> usize {
        1
    }

    /// From how many on attempts go together where they must have equal needs for that; none: any may.
    fn alike(&self) -> Option<usize> {
        None
    }

    /// Both, as one rule.
    fn batching(&self) -> Batching {
        Batching {
            most: self.batch(),
            alike: self.alike(),
            stops: self.stops(),
            counts_endings: self.counts_endings(),
        }
    }

    /// Hands several attempts over, at most [`batch`](Self::batch) and of equal needs where [`alike`](Self::alike) says so. One
    /// answer each, in their order.
    fn submit_all(
        &self,
        orders: Vec<Order>,
    ) -> impl Future<Output = Vec<Result<JobId, SchedulerError>>> + Send {
        async {
            let mut answers = Vec::with_capacity(orders.len());
            for order in orders {
                answers.push(self.submit(order).await);
            }
            answers
        }
    }

    /// Commands that it ran since it was last asked, beside the listings and one for each thing it was told to do.
    fn unpaced(&self) -> u32 {
        0
    }

    /// What the jobs of the newest listing wait for, where the scheduler tells.
    fn waiting(&self) -> BTreeMap<ContainerUuid, Waiting> {
        BTreeMap::new()
    }

    /// Puts the waiting jobs in the order of their containers' priorities, as far as the newest listing shows that they are
    /// not. Called after every look, never twice at once; what fails is tried again by the next call.
    fn arrange(
        &self,
        _wanted: Vec<Wanted>,
    ) -> impl Future<Output = Result<(), SchedulerError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Ends a job. A job that is gone already is success.
    fn stop(
        &self,
        job: &JobId,
        urgency: Urgency,
    ) -> impl Future<Output = Result<(), SchedulerError>> + Send;

    /// How many jobs one command ends, of those that wait or are ended by force.
    fn stops(&self) -> usize {
        1
    }

    /// Ends several such jobs, at most [`stops`](Self::stops). One answer each, in their order: an error means that it is
    /// asked for again.
    fn stop_all(
        &self,
        jobs: &[JobId],
        urgency: Urgency,
    ) -> impl Future<Output = Vec<Result<(), SchedulerError>>> + Send {
        join_all(jobs.iter().map(move |job| self.stop(job, urgency)))
    }

    /// Whether it counts the commands of [`ending`](Self::ending) itself, in [`unpaced`](Self::unpaced), because one command
    /// tells of several jobs.
    fn counts_endings(&self) -> bool {
        false
    }

    /// How the job of an attempt ended.
    fn ending(
        &self,
        container: &ContainerUuid,
        attempt: &TokenUuid,
    ) -> impl Future<Output = Ending> + Send;

    /// The container needs nothing of us any more: remove what is left of its job.
    fn forget(
        &self,
        container: &ContainerUuid,
    ) -> impl Future<Output = Result<(), StillInUse>> + Send;

    /// Resolves when a job may have ended, so that the next look comes sooner. May never resolve.
    fn wake(&self) -> impl Future<Output = ()> + Send;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_story_has_what_crunch_run_said_when_it_ran_nothing() {
        let ended = "Slurm job 7 ended with exit code 75";
        for (detail, expected) in [
            ("", ended.to_owned()),
            ("u starting\nu its command ended with 0\n", ended.to_owned()),
            (
                "u fetching\nu Nothing was run here: GPU 0 cannot be given\nu The log could not be saved\n",
                format!("{ended}: GPU 0 cannot be given"),
            ),
            (
                "crunch-run: --engine=x is not one of docker, podman\n",
                format!("{ended}: --engine=x is not one of docker, podman"),
            ),
        ] {
            let ending = Ending {
                reason: ended.to_owned(),
                detail: detail.to_owned(),
                ..Ending::default()
            };
            assert_eq!(ending.story(), expected, "{detail}");
        }
        let words = "cannot read certificates from /x/ca.pem: Permission denied (os error 13)";
        let unusable = Ending {
            reason: "HTCondor job 6.0 ended with exit code 78".to_owned(),
            detail: format!("local-dz642-0123456789abcde {words}\n"),
            ..Ending::default()
        };
        assert!(unusable.story().ends_with(&format!(": {words}")));
    }
}
