//! Errors of reading and storing blocks and files.

use std::fmt;
use std::io;
use std::time::Duration;

use crate::manifest::ManifestError;

/// Why a block or a file could not be read or stored. Blocks are named without their signatures.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The list of services is empty.
    #[error("there is no Keep service: the API server lists none that can be reached from here")]
    NoService,
    /// Every service is read-only.
    #[error("there is no Keep service to store blocks in: all of them are read-only")]
    NoWritableService,
    /// Keep has no blocks of this size.
    #[error("block {block} is larger than the {limit} bytes a block may have")]
    TooLarge {
        /// The block.
        block: String,
        /// The limit.
        limit: usize,
    },
    /// No service has the block.
    #[error("block {block} does not exist in Keep (services asked: {services})")]
    NotFound {
        /// The block.
        block: String,
        /// Number of services without it.
        services: usize,
    },
    /// A service refused the request; a retry does not help.
    #[error("Keep refused block {block}: {failure}")]
    Refused {
        /// The block.
        block: String,
        /// The answer.
        failure: Box<Failure>,
    },
    /// Only damaged copies were found.
    #[error("block {block} is damaged: {failure}")]
    Corrupt {
        /// The block.
        block: String,
        /// What was wrong with the last copy.
        failure: Box<Failure>,
    },
    /// The services are unreachable or overloaded.
    #[error("Keep is not available for block {block} after {tries} tries in {} s: {failure}", waited.as_secs())]
    Unavailable {
        /// The block.
        block: String,
        /// Requests made.
        tries: u32,
        /// Time spent.
        waited: Duration,
        /// The last one.
        failure: Box<Failure>,
    },
    /// Fewer copies were stored than requested.
    #[error(
        "only {stored} of {wanted} copies of block {block} were stored{}",
        because(failure)
    )]
    InsufficientReplicas {
        /// The block.
        block: String,
        /// Copies confirmed.
        stored: u32,
        /// Number of requested copies.
        wanted: u32,
        /// The last failure, if a service failed (there may just be too few services).
        failure: Option<Box<Failure>>,
    },
    /// Enough copies were stored, but not in every storage class.
    #[error("block {block} was not stored in storage class {}{}", classes.join(", "), because(failure))]
    ClassesUnconfirmed {
        /// The block.
        block: String,
        /// The classes without enough confirmed copies.
        classes: Vec<String>,
        /// The last failure, if a service failed.
        failure: Option<Box<Failure>>,
    },
    /// A store on this machine failed.
    #[error("the local store failed for block {block}: {source}")]
    LocalStore {
        /// The block.
        block: String,
        /// Why.
        source: io::Error,
    },
    /// The data to be stored could not be read.
    #[error("cannot read the data for {path:?}: {source}")]
    Input {
        /// Path in the collection.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// The path or piece cannot be part of a collection.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// A range is beyond the end of the file.
    #[error("bytes {from} to {to} were requested, but the file has only {size}")]
    OutsideFile {
        /// First byte.
        from: u64,
        /// First byte after the range.
        to: u64,
        /// Size of the file.
        size: u64,
    },
    /// A file was to be read into memory and is too large for that.
    #[error("the file has {size} bytes, and no more than {limit} can be read at once")]
    FileTooLarge {
        /// Size of the file.
        size: u64,
        /// The limit.
        limit: usize,
    },
    /// Data was written before a file was started.
    #[error("data was written to a collection outside of any file")]
    NoOpenFile,
    /// An earlier block could not be stored, so the collection cannot be finished.
    #[error("an earlier block of this collection could not be stored")]
    WriterFailed,
    /// The program is shutting down.
    #[error("the transfer of a block was interrupted")]
    Interrupted,
}

fn because(failure: &Option<Box<Failure>>) -> String {
    failure
        .as_ref()
        .map(|f| format!(": {f}"))
        .unwrap_or_default()
}

impl KeepError {
    /// Whether the same call may succeed later by itself.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::InsufficientReplicas { failure, .. }
            | Self::ClassesUnconfirmed { failure, .. } => {
                failure.as_ref().is_some_and(|f| f.cause.is_retryable())
            }
            _ => false,
        }
    }

    /// Whether a service refused the token, perhaps only for a while.
    pub fn is_token_refused(&self) -> bool {
        let Self::Refused { failure, .. } = self else {
            return false;
        };
        let status = failure.cause.status();
        matches!(status, Some(401 | 403))
    }

    /// What the last service answered, if one was asked.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Refused { failure, .. } | Self::Unavailable { failure, .. } => Some(failure),
            Self::InsufficientReplicas { failure, .. }
            | Self::ClassesUnconfirmed { failure, .. } => failure.as_deref(),
            _ => None,
        }
    }

    /// Whether a service was reached and has a fault (5xx): it is full, or its volume is away.
    pub fn is_fault_of_service(&self) -> bool {
        let status = self.failure().and_then(|failure| failure.cause.status());
        status.is_some_and(|status| status >= 500)
    }

    /// Whether the block certainly does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. })
    }
}

/// One failed request to one service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The service, as a URL.
    pub service: String,
    /// What happened.
    pub cause: Cause,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.service, self.cause)
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// An answer other than success.
    #[error("answered {status}{}", message(text))]
    Status {
        /// HTTP status.
        status: u16,
        /// First line of the body.
        text: String,
        /// Wait that the service asked for.
        retry_after: Option<Duration>,
    },
    /// The connection could not be made or broke.
    #[error("could not be reached: {0}")]
    Transport(String),
    /// No progress for too long.
    #[error("did not answer for {} s", .0.as_secs())]
    Stalled(Duration),
    /// The content does not have the hash or size it should have.
    #[error("sent {got} instead")]
    WrongContent {
        /// Hash and size of the content, or the limit it exceeded.
        got: String,
    },
    /// A PUT was answered with something that is not a locator of the block.
    #[error("confirmed the block with {text:?}, which is not its locator")]
    WrongReply {
        /// The answer, shortened.
        text: String,
    },
}

fn message(text: &str) -> String {
    match text {
        "" => String::new(),
        text => format!(" ({text})"),
    }
}

impl Cause {
    /// Whether a retry with the same service may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Status { status, .. } => {
                // A retry does not help with a full disk (507).
                matches!(status, 408 | 425 | 429)
                    || (*status >= 500 && !matches!(status, 501 | 507))
            }
            Self::Transport(_) | Self::Stalled(_) => true,
            Self::WrongContent { .. } | Self::WrongReply { .. } => false,
        }
    }

    /// Whether the service was unreachable, possibly because it moved.
    pub(crate) fn is_connection_failure(&self) -> bool {
        matches!(self, Self::Transport(_) | Self::Stalled(_))
    }

    /// Whether the service does not have the block.
    pub(crate) fn is_not_found(&self) -> bool {
        matches!(self.status(), Some(404 | 410))
    }

    /// The HTTP status of an answer other than success.
    fn status(&self) -> Option<u16> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_the_service_is_told_from_one_about_the_token_and_from_none() {
        let status = |status| Cause::Status {
            status,
            text: String::new(),
            retry_after: None,
        };
        let away = Cause::Transport("connection refused".to_owned());
        for (cause, expected) in [
            (status(507), true),
            (status(503), true),
            (status(403), false),
            (away, false),
        ] {
            let error = KeepError::Refused {
                block: "x".to_owned(),
                failure: Box::new(Failure {
                    service: "http://keep0".to_owned(),
                    cause,
                }),
            };
            assert_eq!(error.is_fault_of_service(), expected, "{error}");
        }
    }
}
