//! Faults of the fake scheduler's commands, and the rules that select the calls they apply to.

use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Reply;

/// Selects the calls that a fault applies to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Rule {
    /// The command's name.
    pub command: String,
    /// Only calls with this text in their arguments.
    pub having: Option<String>,
    /// Calls let through before the first.
    pub skip: u32,
    /// Number of calls that the fault applies to; none: all of them.
    pub times: Option<u32>,
    /// Probability that the fault applies to a call.
    pub probability: f64,
    /// The fault.
    pub fault: Fault,
}

/// The argument of a test of `sbatch`, which submits nothing.
pub const TEST_ONLY: &str = "--test-only";

/// Whether the call is such a test.
pub fn is_test(command: &str, arguments: &[String]) -> bool {
    command == "sbatch" && arguments.iter().any(|a| a == TEST_ONLY)
}

impl Rule {
    /// Every call of `command`.
    pub fn every(command: &str, fault: Fault) -> Self {
        Self {
            command: command.to_owned(),
            having: None,
            skip: 0,
            times: None,
            probability: 1.0,
            fault,
        }
    }

    /// The next `times` calls of `command`.
    pub fn next(command: &str, times: u32, fault: Fault) -> Self {
        Self {
            times: Some(times),
            ..Self::every(command, fault)
        }
    }

    /// Only calls with `text` in their arguments.
    pub fn having(self, text: &str) -> Self {
        Self {
            having: Some(text.to_owned()),
            ..self
        }
    }

    /// Letting `calls` through before.
    pub fn after(self, calls: u32) -> Self {
        Self {
            skip: calls,
            ..self
        }
    }

    /// Whether the fault applies to this call. Counts the call.
    fn applies(&mut self, command: &str, arguments: &[String]) -> bool {
        let names_test = self.having.as_deref() == Some(TEST_ONLY);
        let meant = self.command == command
            && (names_test || !is_test(command, arguments))
            && arguments != ["--version"]
            && self.times != Some(0)
            && self
                .having
                .as_ref()
                .is_none_or(|text| arguments.iter().any(|a| a.contains(text)));
        if !meant {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        if fastrand::f64() >= self.probability {
            return false;
        }
        self.times = self.times.map(|left| left - 1);
        true
    }
}

/// The fault for a call, if any: of the first rule that applies.
pub fn pick(rules: &mut [Rule], command: &str, arguments: &[String]) -> Option<Fault> {
    let rule = rules
        .iter_mut()
        .find_map(|rule| rule.applies(command, arguments).then_some(&rule.fault));
    rule.cloned()
}

/// How a call fails.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fault {
    /// The command does nothing and fails with this message.
    Refuse { status: u8, say: String },
    /// The command takes effect, and fails with this status and message instead of its answer.
    DoneButFails { status: u8, say: String },
    /// The command takes effect and prints nothing but the heading that it prints without jobs.
    Mute,
    /// The command does nothing, exits with 0 and prints nothing to stdout.
    Nothing { say: String },
    /// The command does nothing, exits with 0 and prints this to stdout.
    Says { say: String },
    /// The command does nothing and never ends.
    Hang,
    /// All is done, and it never ends.
    DoneButHangs,
    /// The command never ends. It takes effect once [`super::State::late`] is set.
    DoneLater,
    /// The command takes this many milliseconds longer.
    Slow { ms: u64 },
    /// The command waits until this file exists.
    Until { file: PathBuf },
    /// The controller limits calls: this many milliseconds longer, and a remark on stderr.
    Stall { ms: u64 },
    /// Lines of greeting on stdout around its answer, and complaints on stderr.
    Chatter,
    /// The command succeeds, and complains on stderr of what has no effect.
    Remark,
    /// The answer lacks its last bytes.
    Cut { bytes: usize },
    /// Bytes that are no text, before its answer.
    NotText,
    /// Letters beyond ASCII are one byte each, as at sites that do not write UTF-8.
    Latin1,
    /// This many bytes of other users' lines, before its answer.
    Flood { bytes: usize, line: String },
}

/// Whether and when the command takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The command takes effect normally.
    Done,
    /// The command has no effect.
    None,
    /// Later, by a process of its own.
    Later,
}

impl Fault {
    /// Whether and when the command takes effect.
    pub fn effect(&self) -> Effect {
        match self {
            Fault::Refuse { .. } | Fault::Nothing { .. } | Fault::Says { .. } | Fault::Hang => {
                Effect::None
            }
            Fault::DoneLater => Effect::Later,
            _ => Effect::Done,
        }
    }

    /// Waits until something may happen.
    pub fn wait(&self) {
        match self {
            Fault::Slow { ms } | Fault::Stall { ms } => sleep(Duration::from_millis(*ms)),
            Fault::Until { file } => {
                let began = Instant::now();
                // The time limit is for a test that ended without creating the file.
                while !file.exists() && began.elapsed() < crate::STEP_TIMEOUT {
                    sleep(Duration::from_millis(20));
                }
            }
            _ => {}
        }
    }

    /// Whether the command never ends by itself.
    pub fn hangs(&self) -> bool {
        matches!(self, Fault::Hang | Fault::DoneButHangs | Fault::DoneLater)
    }

    /// The answer as it arrives.
    pub fn apply(&self, mut reply: Reply) -> Reply {
        match self {
            Fault::Refuse { status, say } | Fault::DoneButFails { status, say } => {
                reply = Reply::failed(*status, say);
            }
            // The real one prints the name of its schedd before.
            Fault::Mute if String::from_utf8_lossy(&reply.output).contains(TOTALS) => {
                reply.output = totals(0);
            }
            Fault::Mute => reply.output.truncate(heading_bytes(&reply.output)),
            Fault::Remark => reply.errors.push_str(
                "squeue: error: NodeNames=n1 CPUs=7 match no Sockets, Sockets*CoresPerSocket or \
                 Sockets*CoresPerSocket*ThreadsPerCore. Resetting CPUs.\n\
                 WARNING: Config source has an error: /etc/condor/config.d/50-site\n",
            ),
            Fault::Nothing { say } => {
                reply = Reply::failed(0, say);
            }
            Fault::Says { say } => reply = Reply::with_output(format!("{say}\n").into_bytes()),
            Fault::Stall { .. } => reply
                .errors
                .push_str("slurm_rpc: RPC limit exceeded for this user, retrying in a moment\n"),
            Fault::Chatter => {
                let greeting = b"Welcome to the cluster! | maintenance on Sunday\n";
                reply.output.splice(0..0, greeting.iter().copied());
                reply.output.extend_from_slice(b"See you!\n");
                reply
                    .errors
                    .push_str("Error: the monitoring of this site is down\n");
            }
            Fault::Cut { bytes } => {
                let left = reply.output.len().saturating_sub(*bytes);
                reply.output.truncate(left);
            }
            Fault::NotText => drop(reply.output.splice(0..0, *b"\xff\xfe\n")),
            Fault::Latin1 => {
                let text = String::from_utf8_lossy(&reply.output);
                reply.output = text.chars().map(|c| c as u32 as u8).collect();
            }
            Fault::Flood { bytes, line } => {
                let line = format!("{line}\n");
                let flood = line.repeat(bytes / line.len() + 1).into_bytes();
                let heading = heading_bytes(&reply.output);
                reply.output.splice(heading..heading, flood);
            }
            Fault::Hang
            | Fault::DoneButHangs
            | Fault::DoneLater
            | Fault::Slow { .. }
            | Fault::Until { .. } => {}
        }
        reply
    }
}

/// In the answer to `condor_q -totals`, and in no other.
const TOTALS: &str = "Total for query: ";

/// The answer to `condor_q -totals`.
pub fn totals(jobs: usize) -> Vec<u8> {
    format!("{TOTALS}{jobs} jobs; 0 completed\n").into_bytes()
}

/// The size of the heading of `squeue` at the beginning of an answer.
fn heading_bytes(output: &[u8]) -> usize {
    let is_heading = [&b"JOBID"[..], b"@JOBID"]
        .iter()
        .any(|begin| output.starts_with(begin));
    let end = output.iter().position(|byte| *byte == b'\n');
    end.filter(|_| is_heading).map_or(0, |end| end + 1)
}
