//! What happened, put into the words of the record: final state, exit code, and the reason where it is not the
//! container's own exit. Pure.

use std::time::Duration;

use arvados_client::Pdh;
use arvados_client::records::{ContainerState, RuntimeStatus};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engine::{Exit, ExitStatus};

/// How the command's run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// By itself, or by the kernel's hand.
    Exited(Exit),
    /// We stopped it.
    Stopped { cause: Cause, exit: Option<Exit> },
    /// The record said Running, and then the command did not start.
    NotStarted { reason: String },
    /// Nobody knows how; it does not run any more.
    Lost { reason: String },
}

impl Ending {
    /// How the first process ended, where that was seen.
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Stopped { exit, .. } => exit.as_ref(),
            Self::NotStarted { .. } | Self::Lost { .. } => None,
        }
    }
}

/// Why we stopped it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    Signal(&'static str),
    MaxRunTime(Duration),
    PriorityZero,
}

/// What became of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Saved(Pdh),
    /// It cannot be saved, and the container is to blame.
    Wrong(String),
    /// We were told to stop while it was being saved.
    Interrupted(Cause),
    /// There was no reason to save it.
    Unwanted,
}

/// The end of the story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Complete or Cancelled.
    pub state: ContainerState,
    pub exit_code: Option<i32>,
    pub output: Option<Pdh>,
    pub error: Option<Reason>,
    pub warning: Option<Reason>,
}

/// One sentence, and the evidence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    pub sentence: String,
    pub detail: String,
}

impl Reason {
    pub fn new(sentence: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            sentence: sentence.into(),
            detail: detail.into(),
        }
    }
}

/// Judges a container whose record is Running.
pub fn judge(ending: &Ending, output: Output, memory_limit: Option<u64>) -> Verdict {
    let exit = ending.exit();
    let cancelled = |error: Reason| Verdict {
        state: ContainerState::Cancelled,
        exit_code: exit.map(|exit| exit.status.code()),
        output: None,
        error: Some(error),
        warning: None,
    };
    let exited = match ending {
        Ending::Exited(exit) => exit,
        Ending::Stopped { cause, exit } => {
            let how = exit.map_or("it was not seen to end".to_owned(), |exit| how(&exit));
            return cancelled(Reason::new(cause.sentence("it was"), how));
        }
        Ending::NotStarted { reason } => {
            return cancelled(Reason::new(
                format!("the command could not be started: {reason}"),
                "the engine refused it after everything was in place",
            ));
        }
        Ending::Lost { reason } => {
            return cancelled(Reason::new(
                format!("the container was lost: {reason}"),
                "its command was killed, and how far it came is not known",
            ));
        }
    };
    let oom = oom(exited, memory_limit);
    let ended_well = exited.status == ExitStatus::Code(0);
    match output {
        Output::Saved(pdh) => Verdict {
            state: ContainerState::Complete,
            exit_code: Some(exited.status.code()),
            output: Some(pdh),
            error: oom.clone().filter(|_| !ended_well),
            warning: oom.filter(|_| ended_well),
        },
        // The reason that explains the other one goes first.
        Output::Wrong(reason) => cancelled(match oom {
            Some(oom) => Reason::new(
                oom.sentence,
                format!(
                    "{}; then its output could not be saved: {reason}",
                    oom.detail
                ),
            ),
            None => Reason::new(format!("its output cannot be saved: {reason}"), how(exited)),
        }),
        Output::Interrupted(cause) => cancelled(Reason::new(
            cause.sentence("saving its output was"),
            how(exited),
        )),
        Output::Unwanted => cancelled(Reason::new("its output was not saved", how(exited))),
    }
}

/// The kernel's killing, in words that say what to do.
fn oom(exit: &Exit, limit: Option<u64>) -> Option<Reason> {
    if !exit.oom_killed {
        return None;
    }
    let used = match (exit.peak_memory, limit) {
        (Some(peak), Some(limit)) => format!("used {} of {}", size(peak), size(limit)),
        (Some(peak), None) => format!("used {}", size(peak)),
        (None, Some(limit)) => format!("its limit is {}", size(limit)),
        (None, None) => "how much it used is not known".to_owned(),
    };
    let who = match exit.status {
        ExitStatus::Code(0) => "a process of it was killed by its memory limit",
        _ => "killed by its memory limit",
    };
    let bytes = |n: Option<u64>| n.map_or("unknown".to_owned(), |n| format!("{n} bytes"));
    Some(Reason::new(
        format!("{who}: {used}; ask for more with --mem"),
        format!(
            "its control group counts {} out-of-memory kill{}; highest use {}, limit {}; {}",
            exit.oom_kills,
            if exit.oom_kills == 1 { "" } else { "s" },
            bytes(exit.peak_memory),
            bytes(limit),
            how(exit)
        ),
    ))
}

fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}

/// As upstream says it in the log.
pub fn how(exit: &Exit) -> String {
    match exit.status {
        ExitStatus::Code(code) => format!("Container exited with status code {code}"),
        ExitStatus::Signal(number) => {
            let name = nix::sys::signal::Signal::try_from(number)
                .map_or(String::new(), |signal| format!(", {signal}"));
            format!(
                "Container exited with status code {} (signal {number}{name})",
                exit.status.code()
            )
        }
    }
}

impl Cause {
    fn sentence(self, what: &str) -> String {
        match self {
            Self::Signal(name) => format!("{what} stopped on request (signal {name})"),
            Self::MaxRunTime(time) => format!(
                "maximum run time exceeded: {what} stopped after {} s; ask for more with --time",
                time.as_secs()
            ),
            Self::PriorityZero => format!("{what} stopped because its priority was set to 0"),
        }
    }
}

impl Verdict {
    /// The final update of a Running record. `status` is what `runtime_status` holds without the verdict.
    pub fn update(&self, status: RuntimeStatus, log: Option<&Pdh>) -> Value {
        let mut attributes = json!({
            "state": self.state.as_str(),
            "runtime_status": self.status(status),
        });
        for (name, value) in [
            ("exit_code", self.exit_code.map(Value::from)),
            ("output", self.output.as_ref().map(|pdh| json!(pdh))),
            ("log", log.map(|pdh| json!(pdh))),
        ] {
            if let Some(value) = value {
                attributes[name] = value;
            }
        }
        attributes
    }

    fn status(&self, mut status: RuntimeStatus) -> RuntimeStatus {
        status.activity = None;
        if let Some(error) = &self.error {
            status.error = Some(error.sentence.clone());
            status.error_detail = Some(error.detail.clone());
        }
        if let Some(warning) = &self.warning {
            let others = [status.warning.take(), status.warning_detail.take()];
            let details: Vec<String> = std::iter::once(warning.detail.clone())
                .chain(others.into_iter().flatten())
                .collect();
            status.warning = Some(warning.sentence.clone());
            status.warning_detail = Some(details.join("\n"));
        }
        status
    }
}

/// The update that cancels a Locked record for a mistake in the request.
pub fn refusal(reason: &Reason, status: RuntimeStatus, log: Option<&Pdh>) -> Value {
    let verdict = Verdict {
        state: ContainerState::Cancelled,
        exit_code: None,
        output: None,
        error: Some(reason.clone()),
        warning: None,
    };
    verdict.update(status, log)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn exit(status: ExitStatus, oom_kills: u64) -> Exit {
        Exit {
            status,
            oom_killed: oom_kills > 0,
            oom_kills,
            peak_memory: Some(64 * MIB),
        }
    }

    fn saved() -> Output {
        Output::Saved(Pdh::parse(Pdh::EMPTY).unwrap())
    }

    #[test]
    fn endings_and_their_verdicts() {
        use ContainerState::{Cancelled, Complete};
        let code = |n| Ending::Exited(exit(ExitStatus::Code(n), 0));
        let killed = exit(ExitStatus::Signal(9), 0);
        let stopped = |cause| Ending::Stopped {
            cause,
            exit: Some(killed),
        };
        let cases: Vec<(Ending, Output, ContainerState, Option<i32>, &str)> = vec![
            (code(0), saved(), Complete, Some(0), ""),
            (code(3), saved(), Complete, Some(3), ""),
            (Ending::Exited(killed), saved(), Complete, Some(137), ""),
            (
                Ending::Exited(exit(ExitStatus::Signal(9), 1)),
                saved(),
                Complete,
                Some(137),
                "killed by its memory limit: used 64.0 MiB of 64.0 MiB; ask for more with --mem",
            ),
            (
                code(0),
                Output::Wrong("link x leads out".into()),
                Cancelled,
                Some(0),
                "its output cannot be saved: link x leads out",
            ),
            (
                code(0),
                Output::Interrupted(Cause::PriorityZero),
                Cancelled,
                Some(0),
                "saving its output was stopped because its priority was set to 0",
            ),
            (
                stopped(Cause::Signal("TERM")),
                Output::Unwanted,
                Cancelled,
                Some(137),
                "it was stopped on request (signal TERM)",
            ),
            (
                stopped(Cause::MaxRunTime(Duration::from_secs(5))),
                Output::Unwanted,
                Cancelled,
                Some(137),
                "maximum run time exceeded: it was stopped after 5 s; ask for more with --time",
            ),
            (
                Ending::NotStarted {
                    reason: "no loader".into(),
                },
                Output::Unwanted,
                Cancelled,
                None,
                "the command could not be started: no loader",
            ),
            (
                Ending::Lost {
                    reason: "keeper gone".into(),
                },
                Output::Unwanted,
                Cancelled,
                None,
                "the container was lost: keeper gone",
            ),
        ];
        for (ending, output, state, exit_code, error) in cases {
            let verdict = judge(&ending, output, Some(64 * MIB));
            assert_eq!(verdict.state, state, "{ending:?}");
            assert_eq!(verdict.exit_code, exit_code, "{ending:?}");
            let said = verdict.error.map(|e| e.sentence).unwrap_or_default();
            assert_eq!(said, error, "{ending:?}");
            assert_eq!(verdict.warning, None);
            assert_eq!(verdict.output.is_some(), state == Complete);
        }
    }

    #[test]
    fn a_killed_child_of_a_command_that_went_on_is_a_warning() {
        let ending = Ending::Exited(exit(ExitStatus::Code(0), 2));
        let verdict = judge(&ending, saved(), Some(64 * MIB));
        assert_eq!(verdict.error, None);
        let warning = verdict.warning.unwrap();
        assert!(
            warning.sentence.starts_with("a process of it was killed"),
            "{warning:?}"
        );
        assert!(
            warning
                .detail
                .contains("counts 2 out-of-memory kills; highest use 67108864 bytes"),
            "{warning:?}"
        );
    }

    #[test]
    fn the_update_carries_what_the_state_allows() {
        let there: RuntimeStatus =
            serde_json::from_value(json!({"activity": "x", "warning": "w", "own": 1})).unwrap();
        let log = Pdh::parse(Pdh::EMPTY).unwrap();
        let ending = Ending::Exited(exit(ExitStatus::Code(0), 1));
        let update = judge(&ending, saved(), None).update(there.clone(), Some(&log));
        assert_eq!(update["state"], "Complete");
        assert_eq!(update["exit_code"], 0);
        assert_eq!(update["output"], Pdh::EMPTY);
        let status = &update["runtime_status"];
        assert_eq!(status["own"], 1);
        assert!(status.get("activity").is_none());
        assert!(status["warningDetail"].as_str().unwrap().ends_with("\nw"));

        let refused = refusal(&Reason::new("s", "d"), there, None);
        let names: Vec<&String> = refused.as_object().unwrap().keys().collect();
        assert_eq!(names, ["runtime_status", "state"]);
        assert_eq!(refused["runtime_status"]["errorDetail"], "d");
    }

    #[test]
    fn signals_are_named() {
        assert_eq!(
            how(&exit(ExitStatus::Signal(11), 0)),
            "Container exited with status code 139 (signal 11, SIGSEGV)"
        );
    }
}
