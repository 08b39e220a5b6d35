//! Turns the end of a command into a verdict: final state, exit code, and the reason if it is not
//! the container's own exit. Pure.

mod kind;
mod memory_limit;
pub mod result;

use std::time::Duration;

use arvados_client::Pdh;
use arvados_client::records::{ContainerState, RuntimeStatus};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::kind::{Responsibility, VerdictKind};
use self::memory_limit::memory_limit_reason;
use crate::limits::{LimitExceeded, Resource};
use crate::node::broken_node;
use crate::node::signals;
use cgroup::Processes;
use container_engine::{Exit, ExitStatus};
use crunch_contract::runtime_status::PERMANENT_FAILURE;

/// How the command ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// The command ended by itself or by the kernel.
    Exited(Exit),
    /// crunch-run stopped the command.
    Stopped { cause: Cause, exit: Option<Exit> },
    /// The record was Running, but the command did not start.
    NotStarted {
        reason: String,
        /// Whether the request is at fault, whatever the reason says.
        by_request: bool,
    },
    /// The command ended, but its exit status is unknown.
    Lost { reason: String },
}

impl Ending {
    /// Exit of the first process, if it was seen.
    pub fn exit(&self) -> Option<&Exit> {
        match self {
            Self::Exited(exit) => Some(exit),
            Self::Stopped { exit, .. } => exit.as_ref(),
            Self::NotStarted { .. } | Self::Lost { .. } => None,
        }
    }
}

/// Why crunch-run stopped the command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    Signal(&'static str),
    MaxRunTime(Duration),
    PriorityZero,
    Limit(LimitExceeded),
    /// arv-mount, which served the inputs, ended.
    InputsLost(String),
}

/// Result of saving the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    Saved(Pdh),
    /// The output cannot be saved because of what the container wrote.
    Invalid(String),
    TooLarge(LimitExceeded),
    /// A stop request arrived while the output was being saved.
    Interrupted(Cause),
    /// The output is not saved.
    NotNeeded,
}

/// Final state of a container, with reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub kind: VerdictKind,
    /// Complete or Cancelled.
    pub state: ContainerState,
    pub exit_code: Option<i32>,
    pub output: Option<Pdh>,
    pub error: Option<Reason>,
    pub warning: Option<Reason>,
    /// Whether another attempt at the same request would end like this one, on any node.
    pub permanent: bool,
}

/// One sentence, with details.
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

/// Figures of the kernel about the command's run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Bytes.
    pub memory_limit: Option<u64>,
    pub processes: Processes,
}

/// Returns the verdict on a container whose record is Running.
pub fn judge(ending: &Ending, output: Output, evidence: Evidence) -> Verdict {
    let exit = match ending {
        Ending::Exited(exit) => exit,
        Ending::Stopped { cause, exit } => {
            let how = exit.map_or("its end was not seen".to_owned(), |exit| {
                describe_exit(&exit)
            });
            let reason = Reason::new(cause.sentence("it was"), how);
            return Verdict {
                permanent: cause.is_permanent(),
                ..cancelled(exit.as_ref(), cause.kind(), reason)
            };
        }
        Ending::NotStarted { reason, by_request } => {
            let kind = match by_request {
                true => VerdictKind::NotStarted,
                false => attribute(reason, VerdictKind::NotStarted),
            };
            let reason = Reason::new(
                format!("the command could not be started: {reason}"),
                "the engine refused it after everything was in place",
            );
            return Verdict {
                // An engine that was not asked for the impossible may work on another node.
                permanent: *by_request,
                ..cancelled(None, kind, reason)
            };
        }
        Ending::Lost { reason } => {
            let kind = attribute(reason, VerdictKind::Lost);
            let reason = Reason::new(
                format!("the container was lost: {reason}"),
                "its command was killed, and its progress is unknown",
            );
            return cancelled(None, kind, reason);
        }
    };
    let (kind, limit) = judge_exit(exit, evidence);
    judge_output(exit, output, kind, limit)
}

fn cancelled(exit: Option<&Exit>, kind: VerdictKind, error: Reason) -> Verdict {
    Verdict {
        kind,
        state: ContainerState::Cancelled,
        exit_code: exit.map(|exit| exit.status.code()),
        output: None,
        error: Some(error),
        warning: None,
        permanent: kind.is_permanent(),
    }
}

/// Why a command ended that ended by itself, and the limit that it reached.
fn judge_exit(exit: &Exit, evidence: Evidence) -> (VerdictKind, Option<Reason>) {
    let limit = memory_limit_reason(exit, evidence.memory_limit)
        .map(|reason| (VerdictKind::Memory, reason))
        .or_else(|| {
            Some((
                VerdictKind::Processes,
                refused_processes(exit, evidence.processes)?,
            ))
        });
    let ended_well = exit.status == ExitStatus::Code(0);
    let kind = match (&limit, exit.status) {
        (Some((kind, _)), _) if !ended_well => *kind,
        (Some((VerdictKind::Memory, _)), _) => VerdictKind::ChildOutOfMemory,
        (_, ExitStatus::Signal(_)) => VerdictKind::Signalled,
        (_, ExitStatus::Code(_)) => VerdictKind::Exited,
    };
    (kind, limit.map(|(_, reason)| reason))
}

/// The verdict on a command that ended by itself. `limit` is the limit that it reached.
fn judge_output(exit: &Exit, output: Output, kind: VerdictKind, limit: Option<Reason>) -> Verdict {
    let cancelled = |kind, error| cancelled(Some(exit), kind, error);
    let ended_well = exit.status == ExitStatus::Code(0);
    match output {
        Output::Saved(pdh) => Verdict {
            permanent: false,
            kind,
            state: ContainerState::Complete,
            exit_code: Some(exit.status.code()),
            output: Some(pdh),
            error: limit.clone().filter(|_| !ended_well),
            warning: limit.filter(|_| ended_well),
        },
        // The reason that explains the other one comes first.
        Output::Invalid(reason) => match limit {
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
                VerdictKind::BadOutput,
                Reason::new(
                    format!("its output cannot be saved: {reason}"),
                    describe_exit(exit),
                ),
            ),
        },
        Output::TooLarge(exceeded) => cancelled(
            VerdictKind::of_resource(&exceeded.resource),
            Reason::new(
                match exceeded.resource {
                    Resource::OutputBytes => {
                        format!("its output is too large: {exceeded}; {}", exceeded.advice())
                    }
                    _ => format!("it used {exceeded}; {}", exceeded.advice()),
                },
                describe_exit(exit),
            ),
        ),
        Output::Interrupted(cause) => cancelled(
            cause.kind(),
            Reason::new(cause.sentence("saving its output was"), describe_exit(exit)),
        ),
        Output::NotNeeded => cancelled(
            VerdictKind::BadOutput,
            Reason::new("its output was not saved", describe_exit(exit)),
        ),
    }
}

/// Attributes an engine error to the node if it has the words of a broken node.
fn attribute(reason: &str, otherwise: VerdictKind) -> VerdictKind {
    if broken_node::is_symptom(reason) {
        VerdictKind::BrokenNode
    } else {
        otherwise
    }
}

/// The reason for processes that the kernel refused to start.
fn refused_processes(exit: &Exit, processes: Processes) -> Option<Reason> {
    let Processes { refused, limit } = processes;
    (refused > 0).then(|| {
        let limit = limit.map_or("its limit".to_owned(), |n| format!("its limit of {n}"));
        Reason::new(
            format!(
                "it could not start as many processes and threads as it wanted: {limit} was reached"
            ),
            format!(
                "its control group refused {refused} of them; {}",
                describe_exit(exit)
            ),
        )
    })
}

/// The exit status in upstream's words.
pub fn describe_exit(exit: &Exit) -> String {
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
    fn kind(&self) -> VerdictKind {
        match self {
            Self::Signal(signals::TIME_LIMIT_SIGNAL) => VerdictKind::WallTime,
            Self::Signal(_) => VerdictKind::Stopped,
            Self::MaxRunTime(_) => VerdictKind::WallTime,
            Self::PriorityZero => VerdictKind::PriorityZero,
            Self::Limit(exceeded) => VerdictKind::of_resource(&exceeded.resource),
            Self::InputsLost(_) => VerdictKind::Lost,
        }
    }

    /// Limits of a site or of a job are those of one node.
    fn is_permanent(&self) -> bool {
        match self {
            // The next job would get no more time.
            Self::MaxRunTime(_) | Self::Signal(signals::TIME_LIMIT_SIGNAL) => true,
            Self::Limit(exceeded) => matches!(
                exceeded.resource,
                Resource::RequestedScratch | Resource::MountBytes(_) | Resource::Memory
            ),
            Self::Signal(_) | Self::PriorityZero | Self::InputsLost(_) => false,
        }
    }

    fn sentence(&self, what: &str) -> String {
        match self {
            Self::Limit(exceeded) => format!(
                "{what} stopped because it used {exceeded}; {}",
                exceeded.advice()
            ),
            Self::Signal(signals::TIME_LIMIT_SIGNAL) => format!(
                "the time limit of its job was reached: {what} stopped (signal {}); ask for more (--time of dispatch, max_run_time of the API), or for a partition that gives more",
                signals::TIME_LIMIT_SIGNAL
            ),
            Self::Signal(name) => format!("{what} stopped on request (signal {name})"),
            Self::MaxRunTime(time) => format!(
                "maximum run time exceeded: {what} stopped after {} s; ask for more (--time of dispatch, max_run_time of the API)",
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
    /// The final update of a Running record. `status` is `runtime_status` without the verdict.
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

    /// Whether every other attempt would fail in the same way.
    pub fn is_permanent_failure(&self) -> bool {
        self.state == ContainerState::Cancelled && self.permanent
    }

    fn status(&self, mut status: RuntimeStatus) -> RuntimeStatus {
        status.activity = None;
        if let Some(error) = &self.error {
            status.error = Some(error.sentence.clone());
            status.error_detail = Some(error.detail.clone());
        }
        if self.is_permanent_failure() {
            status
                .extra
                .insert(PERMANENT_FAILURE.to_owned(), Value::Bool(true));
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

/// The verdict on a Locked record because of a user error.
pub fn refusal(reason: Reason) -> Verdict {
    cancelled(None, VerdictKind::Refused, reason)
}

#[cfg(test)]
mod tests;
