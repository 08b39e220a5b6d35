//! result.json: the facts of the run for programs, in the log collection. `docs/result.md` describes it.

use std::fs;

use serde::Serialize;
use serde_json::{Value, json};

use super::gpus::Given;
use super::phases::Phases;
use crate::engine::{Exit, ExitStatus};
use crate::stats::Summary;
use crate::verdict::{Class, Kind, Reason, Verdict};

/// Raised when a field changes its meaning or goes; new fields do not raise it.
const SCHEMA: u32 = 1;

/// What the result is made from.
#[derive(Debug)]
pub struct Facts<'a> {
    pub verdict: &'a Verdict,
    pub exit: Option<&'a Exit>,
    pub usage: &'a Summary,
    pub memory_limit: Option<u64>,
    pub scratch_peak: u64,
    pub phases: &'a Phases,
    pub engine: &'a str,
    pub gpus: &'a Given,
    pub refused_processes: u64,
    pub unenforced: &'a [String],
}

/// Every field is always there, as null where it is not known.
#[derive(Debug, Serialize)]
struct RunResult<'a> {
    schema: u32,
    state: &'a str,
    verdict: Kind,
    class: Class,
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

impl Facts<'_> {
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
            wall_seconds: self.phases.seconds_of("command"),
            cpu_seconds: usage.cpu_seconds(),
            peak_memory_bytes: exit.and_then(|exit| exit.peak_memory).or(usage.peak_rss()),
            memory_limit_bytes: self.memory_limit,
            unenforced_limits: self.unenforced,
            peak_scratch_bytes: self.scratch_peak,
            read_bytes: io.map(|io| io.read),
            written_bytes: io.map(|io| io.written),
            phases: self.phases.json(),
            engine: self.engine,
            host: rustix::system::uname()
                .nodename()
                .to_string_lossy()
                .into_owned(),
            cpu_model: fs::read_to_string("/proc/cpuinfo")
                .ok()
                .and_then(|text| cpu_model(&text)),
            gpus: &self.gpus.ids,
            gpu_models: &self.gpus.models,
            version: env!("CARGO_PKG_VERSION"),
        };
        serde_json::to_value(&result).unwrap_or_default()
    }
}

/// The same facts with another verdict.
pub fn judged(result: &mut Value, verdict: &Verdict) {
    result["state"] = json!(verdict.state.as_str());
    result["verdict"] = json!(verdict.kind);
    result["class"] = json!(verdict.kind.class());
    result["exit_code"] = json!(verdict.exit_code);
    result["error"] = json!(verdict.error);
    result["warning"] = json!(verdict.warning);
}

/// As the file has it.
pub fn text(result: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(result).unwrap_or_default();
    text.push(b'\n');
    text
}

/// The first CPU's name; some architectures do not tell it.
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
            kind: Kind::Exited,
            state: arvados_client::records::ContainerState::Complete,
            exit_code: Some(0),
            output: None,
            error: None,
            warning: None,
        };
        let facts = Facts {
            verdict: &verdict,
            exit: None,
            usage: &Summary::default(),
            memory_limit: None,
            scratch_peak: 0,
            phases: &Phases::begin(),
            engine: "builtin",
            gpus: &Given::default(),
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
            .take_while(|name| *name != Kind::Exited.word())
            .collect();
        let mut sorted = written.clone();
        sorted.sort_unstable();
        described.sort_unstable();
        assert_eq!(sorted, described);
        for kind in Kind::ALL {
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
