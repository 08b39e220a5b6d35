//! Which jobs a command is for: numbers, ranges of numbers, uuids, or all of a kind.
//!
//! Input: arguments of a command. Output: the jobs, each once, in the order of the arguments or, by
//! name and kind, the oldest first.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use arvados_client::Client;
use arvados_client::filter::Query;
use clap::Args;
use jiff::Timestamp;

use crate::completion;
use crate::error::CliError;
use crate::exit::Exit;
use crate::job::Job;
use crate::job_id::{JobId, JobIdError};
use crate::jobs;
use crate::printer::eprint_note;
use crate::text::plural;

/// Maximum number of numbers in a range.
const MAX_RANGE: u64 = 100_000;

/// Some jobs of the user.
#[derive(Debug, Args)]
pub struct Selection {
    /// Numbers, ranges of numbers (150-160) or uuids of jobs
    #[arg(value_name = "ID", add = completion::job_numbers())]
    pub jobs: Vec<JobSpan>,
    /// My jobs with this name; % stands for any text. As with --failed and --all, the steps of a
    /// workflow are left out: they end with it
    #[arg(long, value_name = "NAME", conflicts_with = "jobs")]
    pub name: Option<String>,
    /// My jobs that were cancelled, or ended with an exit code other than 0
    #[arg(long, conflicts_with = "jobs")]
    pub failed: bool,
    /// All my jobs, whatever program submitted them
    #[arg(long, conflicts_with_all = ["jobs", "name", "failed"])]
    pub all: bool,
    /// With --name, --failed or --all: only jobs that were submitted within this time, such as 2h
    /// or 3d
    #[arg(long, value_name = "TIME", value_parser = units::parse_whole_seconds, conflicts_with = "jobs")]
    pub since: Option<Duration>,
}

/// The jobs that a command can change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Of a kind: those that have not ended.
    Open,
    /// All.
    Any,
}

/// One job, or a range of numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobSpan {
    /// One job.
    One(JobId),
    /// The jobs with these numbers, as far as they exist.
    Range(u64, u64),
}

impl FromStr for JobSpan {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let number = |text: &str| match text.parse() {
            Ok(JobId::Number(number)) => Some(number),
            _ => None,
        };
        let range = text.split_once('-');
        if let Some((Some(first), Some(last))) =
            range.map(|(first, last)| (number(first), number(last)))
        {
            return match first <= last && last - first < MAX_RANGE {
                true => Ok(JobSpan::Range(first, last)),
                false => Err(JobIdError::new(text)),
            };
        }
        text.parse().map(JobSpan::One)
    }
}

impl fmt::Display for JobSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobSpan::One(id) => id.fmt(f),
            JobSpan::Range(first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl Selection {
    /// Says that a command does nothing to a job in this state. If the job is only one of a kind,
    /// it says nothing, and that is no failure.
    pub fn leave_alone(&self, job: &Job) -> Exit {
        if self.jobs.is_empty() {
            return Exit::Ok;
        }
        let (name, state) = (job.name(), job.state().as_str());
        eprint_note(&format!("job {name} is left alone: it is {state}"));
        Exit::Failure
    }

    /// Says how many jobs of a kind a command left alone.
    pub fn sum_up(&self, left_alone: u64) {
        if self.jobs.is_empty() && left_alone > 0 {
            let jobs = plural(left_alone, "job");
            eprint_note(&format!("{jobs} left alone, in other states"));
        }
    }

    /// Finds the jobs. An id or a name without a job is an error; no job of a kind is none.
    pub async fn find(&self, client: &Client, scope: Scope) -> Result<Vec<Job>, CliError> {
        let mut found = Vec::new();
        for span in &self.jobs {
            let of_span = match span {
                JobSpan::One(id) => jobs::find(client, id).await.map(|job| vec![job]),
                JobSpan::Range(first, last) => match jobs::in_range(client, *first, *last).await {
                    Ok(none) if none.is_empty() => Err(CliError::NoJob(span.to_string())),
                    range => range,
                },
            };
            found.extend(of_span.map_err(|error| match error {
                CliError::NoJob(id) if self.jobs.len() > 1 => CliError::NoJobAmong(id),
                error => error,
            })?);
        }
        if self.jobs.is_empty() {
            if self.name.is_none() && !self.failed && !self.all {
                return Err(CliError::NoSelection);
            }
            found = self.by_kind(client, scope).await?;
            if found.is_empty() {
                self.say_none(client, scope).await?;
            }
        }
        let mut seen = HashSet::new();
        found.retain(|job| seen.insert(job.request.uuid.clone()));
        Ok(found)
    }

    /// Says why no job was found. A name that no job has is an error: it may be misspelt.
    async fn say_none(&self, client: &Client, scope: Scope) -> Result<(), CliError> {
        let mut ended = 0;
        if let Some(name) = &self.name {
            let named = jobs::own(client, top_level().like("name", name)).await?;
            if named.is_empty() {
                return Err(CliError::NoJobNamed(name.clone()));
            }
            if scope == Scope::Open {
                ended = self.by_kind(client, Scope::Any).await?.len();
            }
        }
        eprint_note(&match ended {
            0 => "no such jobs".to_owned(),
            1 => "the only such job has ended".to_owned(),
            ended => format!("the {ended} such jobs have ended"),
        });
        Ok(())
    }

    async fn by_kind(&self, client: &Client, scope: Scope) -> Result<Vec<Job>, CliError> {
        let mut query = top_level();
        if let Some(name) = &self.name {
            query = query.like("name", name);
        }
        if let Some(since) = self.since {
            let now = Timestamp::now();
            let from = now.saturating_sub(since).unwrap_or(now);
            query = query.filter("created_at", ">=", from.to_string());
        }
        if scope == Scope::Open {
            query = query.filter("state", "=", "Committed");
        }
        let mut found = jobs::own(client, query).await?;
        found.retain(|job| !self.failed || job.has_failed());
        // A job that was killed before it started stays Committed.
        found.retain(|job| scope == Scope::Any || self.failed || !job.state().has_ended());
        Ok(found)
    }
}

/// Requests that no container made.
fn top_level() -> Query {
    Query::new().filter("requesting_container_uuid", "=", None::<&str>)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_and_a_uuid_is_none() {
        let request = "zzzzz-xvhdp-0123456789abcde";
        for (text, span) in [
            ("7", Some(JobSpan::One(JobId::Number(7)))),
            ("150-160", Some(JobSpan::Range(150, 160))),
            ("7-7", Some(JobSpan::Range(7, 7))),
            (request, Some(JobSpan::One(request.parse().unwrap()))),
            ("9-7", None),
            ("1-100001", None),
            ("0-3", None),
            ("3-", None),
            ("-3", None),
            ("1-2-3", None),
        ] {
            assert_eq!(text.parse().ok(), span, "{text}");
        }
    }
}
