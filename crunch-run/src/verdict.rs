//! What happened, put into the words of the record: final state, exit code, and the reason where it is not the
//! container's own exit. Pure.

mod kind;

use std::time::Duration;

use arvados_client::Pdh;
use arvados_client::records::{ContainerState, RuntimeStatus};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::broken_node;
use crate::cgroup::Processes;
use crate::engine::{Exit, ExitStatus};
use crate::limits::Overrun;
use crate::signals;
pub use kind::{Class, Kind};

/// How the command's run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// By itself, or by the kernel's hand.
    Exited(Exit),
    /// We stopped it.
    Stopped { cause: Cause, exit: Option<Exit> },
    /// The record said Running, and then the command did not start.
    NotStarted {
        reason: String,
        /// The request is at fault, whatever its own words in the reason sound like.
        by_request: bool,
    },
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Signal(&'static str),
    MaxRunTime(Duration),
    PriorityZero,
    Limit(Overrun),
    /// The program that served its inputs ended.
    InputsLost(String),
}

/// What became of its output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Saved(Pdh),
    /// It cannot be saved, and the container is to blame.
    Wrong(String),
    TooLarge(Overrun),
    /// We were told to stop while it was being saved.
    Interrupted(Cause),
    /// There was no reason to save it.
    Unwanted,
}

/// The end of the story.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub kind: Kind,
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

/// What the kernel counted while it ran.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Bytes.
    pub memory_limit: Option<u64>,
    pub processes: Processes,
}

/// Judges a container whose record is Running.
pub fn judge(ending: &Ending, output: Output, evidence: Evidence) -> Verdict {
    let exit = ending.exit();
    let cancelled = |kind: Kind, error: Reason| Verdict {
        kind,
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
            return cancelled(cause.kind(), Reason::new(cause.sentence("it was"), how));
        }
        Ending::NotStarted { reason, by_request } => {
            let kind = match by_request {
                true => Kind::NotStarted,
                false => blame(reason, Kind::NotStarted),
            };
            return cancelled(
                kind,
                Reason::new(
                    format!("the command could not be started: {reason}"),
                    "the engine refused it after everything was in place",
                ),
            );
        }
        Ending::Lost { reason } => {
            return cancelled(
                blame(reason, Kind::Lost),
                Reason::new(
                    format!("the container was lost: {reason}"),
                    "its command was killed, and how far it came is not known",
                ),
            );
        }
    };
    let ended_well = exited.status == ExitStatus::Code(0);
    let limit = oom(exited, evidence.memory_limit)
        .map(|reason| (Kind::Memory, reason))
        .or_else(|| {
            Some((
                Kind::Processes,
                refused_processes(exited, evidence.processes)?,
            ))
        });
    let kind = match (&limit, exited.status) {
        (Some((kind, _)), _) if !ended_well => *kind,
        (Some((Kind::Memory, _)), _) => Kind::ChildOutOfMemory,
        (_, ExitStatus::Signal(_)) => Kind::Signalled,
        (_, ExitStatus::Code(_)) => Kind::Exited,
    };
    let limit = limit.map(|(_, reason)| reason);
    match output {
        Output::Saved(pdh) => Verdict {
            kind,
            state: ContainerState::Complete,
            exit_code: Some(exited.status.code()),
            output: Some(pdh),
            error: limit.clone().filter(|_| !ended_well),
            warning: limit.filter(|_| ended_well),
        },
        // The reason that explains the other one goes first.
        Output::Wrong(reason) => match limit {
            Some(limit) => cancelled(
                kind,
                Reason::new(
                    limit.sentence,
                    format!(
                        "{}; then its output could not be saved: {reason}",
                        limit.detail
                    ),
                ),
            ),
            None => cancelled(
                Kind::BadOutput,
                Reason::new(format!("its output cannot be saved: {reason}"), how(exited)),
            ),
        },
        Output::TooLarge(overrun) => cancelled(
            Kind::OutputSize,
            Reason::new(
                format!("its output is too large: {overrun}; {}", overrun.advice()),
                how(exited),
            ),
        ),
        Output::Interrupted(cause) => cancelled(
            cause.kind(),
            Reason::new(cause.sentence("saving its output was"), how(exited)),
        ),
        Output::Unwanted => cancelled(
            Kind::BadOutput,
            Reason::new("its output was not saved", how(exited)),
        ),
    }
}

/// An engine that failed on a broken node says nothing about the container.
fn blame(reason: &str, otherwise: Kind) -> Kind {
    if broken_node::is_symptom(reason) {
        Kind::BrokenNode
    } else {
        otherwise
    }
}

/// The kernel's killing, in words that say what to do.
fn oom(exit: &Exit, limit: Option<u64>) -> Option<Reason> {
    if !exit.oom_killed {
        return None;
    }
    let limit = match exit.job_group {
        Some(group) => group.limit,
        None => limit,
    };
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
            "{} counts {} out-of-memory kill{}; highest use {}, limit {}; {}",
            match exit.job_group {
                Some(_) => "the control group of its job",
                None => "its control group",
            },
            exit.oom_kills,
            if exit.oom_kills == 1 { "" } else { "s" },
            bytes(exit.peak_memory),
            bytes(limit),
            how(exit)
        ),
    ))
}

/// That the kernel would not let it start another process.
fn refused_processes(exit: &Exit, processes: Processes) -> Option<Reason> {
    let Processes { refused, limit } = processes;
    (refused > 0).then(|| {
        let limit = limit.map_or("its limit".to_owned(), |n| format!("its limit of {n}"));
        Reason::new(
            format!(
                "it could not start as many processes and threads as it wanted: {limit} was reached"
            ),
            format!("its control group refused {refused} of them; {}", how(exit)),
        )
    })
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
    fn kind(&self) -> Kind {
        match self {
            Self::Signal(signals::TIME_OVER) => Kind::WallTime,
            Self::Signal(_) => Kind::Stopped,
            Self::MaxRunTime(_) => Kind::WallTime,
            Self::PriorityZero => Kind::PriorityZero,
            Self::Limit(overrun) => Kind::of_resource(&overrun.resource),
            Self::InputsLost(_) => Kind::Lost,
        }
    }

    fn sentence(&self, what: &str) -> String {
        match self {
            Self::Limit(overrun) => format!(
                "{what} stopped because it used {overrun}; {}",
                overrun.advice()
            ),
            Self::Signal(signals::TIME_OVER) => format!(
                "the time limit of its job was reached: {what} stopped (signal {}); ask for more with --time, or for a partition that gives more",
                signals::TIME_OVER
            ),
            Self::Signal(name) => format!("{what} stopped on request (signal {name})"),
            Self::MaxRunTime(time) => format!(
                "maximum run time exceeded: {what} stopped after {} s; ask for more with --time",
                time.as_secs()
            ),
            Self::InputsLost(how) => format!(
                "{what} stopped because arv-mount, which served its inputs, ended ({how}); see arv-mount.txt in its log"
            ),
            Self::PriorityZero => format!("{what} stopped because its priority was set to 0"),
        }
    }
}

impl Verdict {
    /// The final update of a Running record. `status` is what `runtime_status` holds without the verdict.
    pub fn update(&self, status: RuntimeStatus, log: Option<&Pdh>, cost: Option<f64>) -> Value {
        let mut attributes = json!({
            "state": self.state.as_str(),
            "runtime_status": self.status(status),
        });
        for (name, value) in [
            ("exit_code", self.exit_code.map(Value::from)),
            ("output", self.output.as_ref().map(|pdh| json!(pdh))),
            ("log", log.map(|pdh| json!(pdh))),
            ("cost", cost.map(Value::from)),
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
        kind: Kind::Refused,
        state: ContainerState::Cancelled,
        exit_code: None,
        output: None,
        error: Some(reason.clone()),
        warning: None,
    };
    verdict.update(status, log, None)
}

#[cfg(test)]
mod tests;
