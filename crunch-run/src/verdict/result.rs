//! Writes result.json in the log collection: the result of the run for programs. `docs/result.md`
//! describes it.

use std::fs;

use serde::Serialize;
use serde_json::{Value, json};

use crate::attempt::timings::PhaseTimings;
use crate::stats::Summary;
use crate::verdict::{Reason, Responsibility, Verdict, VerdictKind};
use container_engine::{Exit, ExitStatus};

/// Version of the format. It rises when a field changes its meaning or is removed; new fields do
/// not raise it.
const SCHEMA: u32 = 1;

/// Input of the result.
#[derive(Debug)]
pub struct ResultInput<'a> {
    pub verdict: &'a Verdict,
    pub exit: Option<&'a Exit>,
    pub usage: &'a Summary,
    pub memory_limit: Option<u64>,
    pub scratch_peak: u64,
    pub timings: &'a PhaseTimings,
    pub engine: &'a str,
    pub gpu_ids: &'a [String],
    /// Model of each GPU in `gpu_ids`, where known.
    pub gpu_models: &'a [Option<String>],
    pub refused_processes: u64,
    pub unenforced: &'a [String],
}

/// The result. Every field is present, as null if unknown.
#[derive(Debug, Serialize)]
struct RunResult<'a> {
    schema: u32,
    state: &'a str,
    verdict: VerdictKind,
    class: Responsibility,
    exit_code: Option<i32>,
    signal: Option<i32>,
    error: Option<&'a Reason>,
    warning: Option<&'a Reason>,
    oom_kills: Option<u64>,
    refused_processes: u64,
    wall_seconds: Option<f64>,
    cpu_seconds: Option<f64>,
    peak_memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    unenforced_limits: &'a [String],
    peak_scratch_bytes: u64,
    read_bytes: Option<u64>,
    written_bytes: Option<u64>,
    phases: Value,
    engine: &'a str,
    host: String,
    cpu_model: Option<String>,
    gpus: &'a [String],
    gpu_models: &'a [Option<String>],
    version: &'static str,
}

impl ResultInput<'_> {
    pub fn value(&self) -> Value {
        let (verdict, exit, usage) = (self.verdict, self.exit, self.usage);
        let io = usage.block_io();
        let result = RunResult {
            schema: SCHEMA,
            state: verdict.state.as_str(),
            verdict: verdict.kind,
            class: verdict.kind.class(),
            exit_code: verdict.exit_code,
            signal: exit.and_then(|exit| match exit.status {
                ExitStatus::Signal(signal) => Some(signal),
                ExitStatus::Code(_) => None,
            }),
            error: verdict.error.as_ref(),
            warning: verdict.warning.as_ref(),
            oom_kills: exit.map(|exit| exit.oom_kills),
            refused_processes: self.refused_processes,
            wall_seconds: self.timings.seconds_of("command"),
            cpu_seconds: usage.cpu_seconds(),
            peak_memory_bytes: exit.and_then(|exit| exit.peak_memory).or(usage.peak_rss()),
            memory_limit_bytes: self.memory_limit,
            unenforced_limits: self.unenforced,
            peak_scratch_bytes: self.scratch_peak,
            read_bytes: io.map(|io| io.read),
            written_bytes: io.map(|io| io.written),
            phases: self.timings.json(),
            engine: self.engine,
            host: host_state::node_name(),
            cpu_model: fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| cpu_model(&text)),
            gpus: self.gpu_ids,
            gpu_models: self.gpu_models,
            version: env!("CARGO_PKG_VERSION"),
        };
        serde_json::to_value(&result).unwrap_or_default()
    }
}

/// Replaces the verdict in a result.
pub fn set_verdict(result: &mut Value, verdict: &Verdict) {
    result["state"] = json!(verdict.state.as_str());
    result["verdict"] = json!(verdict.kind);
    result["class"] = json!(verdict.kind.class());
    result["exit_code"] = json!(verdict.exit_code);
    result["error"] = json!(verdict.error);
    result["warning"] = json!(verdict.warning);
}

/// The content of the file.
pub fn to_bytes(result: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(result).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Model of the first CPU; some architectures do not list it.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    cpuinfo.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == "model name").then(|| value.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_names_every_field_and_no_other() {
        let verdict = Verdict {
            permanent: false,
            kind: VerdictKind::Exited,
            state: arvados_client::records::ContainerState::Complete,
            exit_code: Some(0),
            output: None,
            error: None,
            warning: None,
        };
        let facts = ResultInput {
            verdict: &verdict,
            exit: None,
            usage: &Summary::default(),
            memory_limit: None,
            scratch_peak: 0,
            timings: &PhaseTimings::begin(),
            engine: "builtin",
            gpu_ids: &[],
            gpu_models: &[],
            refused_processes: 0,
            unenforced: &[],
        };
        let result: Value = facts.value();
        let written: Vec<&str> = result
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let document = include_str!("../../../docs/result.md");
        let mut described: Vec<&str> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
            .take_while(|name| *name != VerdictKind::Exited.word())
            .collect();
        let mut sorted = written.clone();
        sorted.sort_unstable();
        described.sort_unstable();
        assert_eq!(sorted, described);
        for kind in VerdictKind::ALL {
            let row = format!("| `{}` | {} |", kind.word(), kind.class().word());
            assert!(document.contains(&row), "{row}");
        }
    }

    #[test]
    fn a_cpu_has_a_name_where_the_kernel_tells_it() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nmodel\t: 3\n";
        assert_eq!(cpu_model(text).as_deref(), Some("Some CPU @ 2.0GHz"));
        assert_eq!(cpu_model("processor : 0\n"), None);
    }
}
