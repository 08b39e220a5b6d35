//! Parses the id of a job: its number, the uuid of its request, or the uuid of its container; and,
//! for commands that only read, its name.

use std::fmt;
use std::str::FromStr;

use arvados_client::{ContainerRequestUuid, ContainerUuid};

/// A job id from the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum JobId {
    /// `7`.
    Number(u64),
    /// `…-xvhdp-…`.
    Request(ContainerRequestUuid),
    /// `…-dz642-…`.
    Container(ContainerUuid),
    /// The newest job with this name.
    Name(String),
}

/// A text that is not a job id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a job: write its number (see: dispatch list), a range where several may be named (150-160: the smaller number first, at most 100,000 jobs), or the uuid of a container request (-xvhdp-) or a container (-dz642-); for all jobs of a name: --name {0}"
)]
pub struct JobIdError(String);

impl JobIdError {
    /// The error for this text.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromStr for JobId {
    type Err = JobIdError;

    fn from_str(text: &str) -> Result<Self, JobIdError> {
        let text = text.trim();
        if let Ok(uuid) = ContainerRequestUuid::parse(text) {
            return Ok(JobId::Request(uuid));
        }
        if let Ok(uuid) = ContainerUuid::parse(text) {
            return Ok(JobId::Container(uuid));
        }
        let digits = text.strip_prefix('#').unwrap_or(text);
        match digits.parse::<u64>() {
            Ok(number) if number > 0 && digits.bytes().all(|b| b.is_ascii_digit()) => {
                Ok(JobId::Number(number))
            }
            _ => Err(JobIdError::new(text)),
        }
    }
}

impl JobId {
    /// Parses an id, or else takes the text as a name. For commands that change nothing: the newest
    /// job of a name is another one from one moment to the next.
    pub fn or_name(text: &str) -> Result<Self, JobIdError> {
        text.parse().or_else(|error| {
            let name = text.trim();
            let is_number = name.bytes().all(|b| b.is_ascii_digit());
            match is_number || name.starts_with('-') {
                true => Err(error),
                false => Ok(JobId::Name(name.to_owned())),
            }
        })
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobId::Number(number) => write!(f, "{number}"),
            JobId::Request(uuid) => write!(f, "{uuid}"),
            JobId::Container(uuid) => write!(f, "{uuid}"),
            JobId::Name(name) => write!(f, "with the name {name:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_a_number_or_one_of_two_uuids() {
        let request = "zzzzz-xvhdp-0123456789abcde";
        let container = "zzzzz-dz642-0123456789abcde";
        let rows = [
            ("7", JobId::Number(7)),
            ("#7", JobId::Number(7)),
            (
                request,
                JobId::Request(ContainerRequestUuid::parse(request).unwrap()),
            ),
            (
                container,
                JobId::Container(ContainerUuid::parse(container).unwrap()),
            ),
        ];
        for (text, id) in rows {
            assert_eq!(text.parse(), Ok(id), "{text}");
        }
        for bad in [
            "",
            "0",
            "-1",
            "+1",
            "7a",
            "zzzzz-4zz18-0123456789abcde",
            "zzzzz-xvhdp-",
        ] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
        for (text, id) in [
            ("7", Some(JobId::Number(7))),
            (request, Some(request.parse().unwrap())),
            ("7a", Some(JobId::Name("7a".to_owned()))),
            ("0", None),
            ("", None),
            ("-1", None),
        ] {
            assert_eq!(JobId::or_name(text).ok(), id, "{text}");
        }
    }
}
