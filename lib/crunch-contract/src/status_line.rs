//! The status line: one line of JSON in which crunch-run says on stderr why it ends without a
//! recorded result.
//!
//! A dispatcher reads it from the end of the job's output. It counts also where the scheduler has
//! forgotten the exit code.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Prefix of a status line, at the start of the line.
const PREFIX: &str = "crunch-run-status: ";
/// Maximum length of a reason. Dispatchers read only the last 2000 bytes of the output.
const MAX_REASON_BYTES: usize = 1000;

/// Why crunch-run ended. Later lines replace earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ended", rename_all = "kebab-case")]
pub enum StatusLine {
    /// The command never ran (exit code 75).
    NeverRan {
        /// One sentence.
        reason: String,
    },
    /// The command never ran, and not even the log could be stored (exit code 75). Attempts on
    /// other nodes may meet the same file storage.
    StorageFailed {
        /// One sentence.
        reason: String,
    },
    /// The flags or the environment are wrong (exit code 78).
    Misconfigured {
        /// One sentence.
        reason: String,
    },
    /// The results are in `directory` on the node that ran the container (exit code 77).
    Undelivered {
        /// Absolute path of the job directory: the argument of `crunch-run resume`. Text, because a
        /// path that is no UTF-8 could not be written as JSON, and the line matters more than its
        /// exactness.
        directory: String,
    },
    /// The command ran, its results could not be delivered, and they are removed with the job.
    ResultsLost {
        /// One sentence.
        reason: String,
    },
    /// A signal stopped the command, and the record is still Running (exit code 79).
    Stopped {
        /// Name of the signal, without SIG.
        signal: String,
    },
    /// A status line of a newer crunch-run.
    #[serde(other)]
    Unknown,
}

impl StatusLine {
    /// Reads one line of output. `None` if it is not a status line.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.strip_prefix(PREFIX)?.trim_end()).ok()
    }

    /// The reason, where the line has one.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::NeverRan { reason }
            | Self::StorageFailed { reason }
            | Self::Misconfigured { reason }
            | Self::ResultsLost { reason } => Some(reason),
            Self::Undelivered { .. } | Self::Stopped { .. } | Self::Unknown => None,
        }
    }

    fn shortened(&self) -> Self {
        let cut = |reason: &str| reason[..reason.floor_char_boundary(MAX_REASON_BYTES)].to_owned();
        match self {
            Self::NeverRan { reason } => Self::NeverRan {
                reason: cut(reason),
            },
            Self::StorageFailed { reason } => Self::StorageFailed {
                reason: cut(reason),
            },
            Self::Misconfigured { reason } => Self::Misconfigured {
                reason: cut(reason),
            },
            Self::ResultsLost { reason } => Self::ResultsLost {
                reason: cut(reason),
            },
            other => other.clone(),
        }
    }
}

/// The line without its end of line.
impl fmt::Display for StatusLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(&self.shortened()).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{json}")
    }
}

/// Divides a job's output into the text for people and the last status line in it.
pub fn split_output(output: &str) -> (String, Option<StatusLine>) {
    let mut status = None;
    let mut text = String::new();
    for line in output.split_inclusive('\n') {
        match StatusLine::parse(line) {
            Some(found) => status = Some(found),
            None => text.push_str(line),
        }
    }
    (text, status)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn undelivered(directory: &str) -> StatusLine {
        StatusLine::Undelivered {
            directory: directory.into(),
        }
    }

    #[test]
    fn the_last_line_counts_and_people_do_not_see_it() {
        let lost = StatusLine::ResultsLost {
            reason: "cannot write to /y".to_owned(),
        };
        let line = undelivered("/x");
        for (output, text, status) in [
            (String::new(), "", None),
            ("u Complete\n".to_owned(), "u Complete\n", None),
            (format!("u a\n{line}\nu b\n"), "u a\nu b\n", Some(&line)),
            (format!("{line}\n{lost}\n"), "", Some(&lost)),
            (format!("{lost}\n{line}"), "", Some(&line)),
            (format!("quoted: {line}\n"), "quoted: ", None),
        ] {
            let (found, last) = split_output(&output);
            assert!(found.starts_with(text), "{output}");
            assert_eq!(last.as_ref(), status, "{output}");
        }
    }

    #[test]
    fn the_wire_format_is_stable() {
        let line = undelivered("/x").to_string();
        assert_eq!(
            line,
            r#"crunch-run-status: {"ended":"undelivered","directory":"/x"}"#
        );
        let newer = r#"crunch-run-status: {"ended":"paused","until":7}"#;
        assert_eq!(StatusLine::parse(newer), Some(StatusLine::Unknown));
        assert_eq!(StatusLine::parse("crunch-run-status: half a li"), None);
    }

    proptest! {
        #[test]
        fn any_reason_is_read_as_it_was_written(reason in ".*") {
            let line = StatusLine::NeverRan { reason: reason.clone() };
            let text = line.to_string();
            prop_assert_eq!(text.lines().count(), 1);
            let read = StatusLine::parse(&text).unwrap();
            prop_assert!(reason.starts_with(read.reason().unwrap()));
            prop_assert!(reason.len() > MAX_REASON_BYTES || read == line);
        }
    }
}
