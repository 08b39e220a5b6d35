//! result.json: the facts of the run for programs, in the log collection.

use serde::Serialize;
use serde_json::Value;

use super::phases::Phases;
use crate::engine::{Exit, ExitStatus};
use crate::stats::Summary;
use crate::verdict::{Reason, Verdict};

#[derive(Debug, Serialize)]
pub struct RunResult<'a> {
    verdict: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a Reason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<&'a Reason>,
    oom_kills: u64,
    wall_seconds: Option<f64>,
    cpu_seconds: Option<f64>,
    peak_memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    /// Seconds of each part of the attempt so far.
    phases: Value,
    engine: &'a str,
    host: String,
    version: &'static str,
}

impl<'a> RunResult<'a> {
    pub fn new(
        verdict: &'a Verdict,
        exit: Option<&Exit>,
        usage: &Summary,
        memory_limit: Option<u64>,
        phases: &Phases,
        engine: &'a str,
    ) -> Self {
        Self {
            verdict: verdict.state.as_str(),
            exit_code: verdict.exit_code,
            signal: exit.and_then(|exit| match exit.status {
                ExitStatus::Signal(signal) => Some(signal),
                ExitStatus::Code(_) => None,
            }),
            error: verdict.error.as_ref(),
            warning: verdict.warning.as_ref(),
            oom_kills: exit.map_or(0, |exit| exit.oom_kills),
            wall_seconds: phases.seconds_of("command"),
            cpu_seconds: usage.cpu_seconds(),
            peak_memory_bytes: exit.and_then(|exit| exit.peak_memory).or(usage.peak_rss()),
            memory_limit_bytes: memory_limit,
            phases: phases.json(),
            engine,
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }

    pub fn text(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec_pretty(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}
