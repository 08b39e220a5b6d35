//! Finds out with `crunch-run check` which engine containers get on this machine, and who enforces
//! their limits. `dispatch up` prints it, and `dispatch info` reads it from a file.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use preflight::{Enforcement, EngineReport, Level, NodeReport, Report};
use tokio::process::Command;
use tokio_util::task::AbortOnDropHandle;

use crate::printer::eprint_note;
use crate::state_dir::StateDir;
use crate::text::plural;

/// File in the state directory with the [`EngineReport`] of the last start, or `null`.
const ENGINE_FILE: &str = "engine.json";
/// Timeout of the check, which limits itself to 30 s.
const CHECK_TIMEOUT: Duration = Duration::from_secs(40);

/// Starts `command`, which is `crunch-run check --json`, and prints its result when it is there.
pub fn start(mut command: Command, state: StateDir) -> AbortOnDropHandle<()> {
    state.remove(ENGINE_FILE);
    command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let output = tokio::time::timeout(CHECK_TIMEOUT, command.output()).await;
        let output = output.map_err(|_| "it did not end".to_owned());
        let output = output.and_then(|output| output.map_err(|error| error.to_string()));
        let report = output.and_then(|output| {
            serde_json::from_slice::<NodeReport>(&output.stdout).map_err(|error| error.to_string())
        });
        match report {
            Ok(report) => {
                // "null" if none works.
                if let Ok(text) = serde_json::to_string(&report.engine)
                    && let Err(error) = state.write(ENGINE_FILE, text)
                {
                    eprint_note(&format!("dispatch: {error}"));
                }
                lines(&report).iter().for_each(|line| eprint_note(line));
            }
            Err(error) => eprint_note(&format!("dispatch: crunch-run check failed: {error}")),
        }
    }))
}

/// The arguments of `crunch-run check` for containers with these directories.
pub fn arguments(scratch: &Path, cache: &Path) -> Vec<PathBuf> {
    let words = ["check", "--json", "--offline", "--scratch-dir"].map(PathBuf::from);
    let rest = [scratch.into(), "--cache-dir".into(), cache.into()];
    words.into_iter().chain(rest).collect()
}

/// What `dispatch up` prints: the engine, or what keeps containers from running.
fn lines(report: &NodeReport) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(engine) = &report.engine {
        lines.push(format!("dispatch: engine {}", description(engine)));
    }
    let is_failure = |level| level == Level::Fail;
    let mut failures = report.report.findings.clone();
    failures.retain(|finding| is_failure(finding.level));
    if !failures.is_empty() {
        lines.push(
            "dispatch: no container can run here until this is corrected; all checks: crunch-run check --offline"
                .to_owned(),
        );
        let text = Report::new(failures).text();
        lines.extend(text.lines().map(str::to_owned));
    }
    lines
}

/// The engine of the last start of `dispatch up`, and who enforces which limits. `Some(None)` if
/// none worked, `None` if that is not known.
pub fn last(state: &StateDir) -> Option<Option<EngineReport>> {
    let text = std::fs::read(state.join(ENGINE_FILE)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// What a job meets on this machine, said when it is submitted: no engine, or limits that do not
/// hold.
pub fn warning(state: &StateDir, cpus: u32) -> Option<String> {
    match last(state)? {
        None => Some(
            "no engine could run containers when 'dispatch up' started, so the job waits; see: crunch-run check --offline"
                .to_owned(),
        ),
        Some(engine) if engine.cpus == Enforcement::Nothing => Some(format!(
            "nothing limits CPUs on this machine: the job may use more than {}",
            plural(cpus.into(), "CPU")
        )),
        Some(_) => None,
    }
}

/// The engine in words, such as "oci; the kernel limits memory, CPUs and processes".
pub fn description(engine: &EngineReport) -> String {
    let limits = [
        ("memory", engine.memory),
        ("CPUs", engine.cpus),
        ("processes", engine.processes),
    ];
    let with = |wanted: Enforcement, verb: &str| {
        let names: Vec<&str> = limits
            .iter()
            .filter(|(_, enforcement)| *enforcement == wanted)
            .map(|(name, _)| *name)
            .collect();
        match names.as_slice() {
            [] => None,
            [name] => Some(format!("; {verb} {name}")),
            [names @ .., last] => Some(format!("; {verb} {} and {last}", names.join(", "))),
        }
    };
    let parts = [
        with(Enforcement::Kernel, "the kernel limits"),
        with(Enforcement::Watched, "crunch-run watches"),
        with(Enforcement::Nothing, "nothing limits"),
    ];
    let parts: String = parts.into_iter().flatten().collect();
    format!("{}{parts}", engine.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Enforcement::{Kernel, Nothing, Unknown, Watched};
    use preflight::Finding;

    fn engine(memory: Enforcement, others: Enforcement) -> EngineReport {
        EngineReport {
            name: "oci".to_owned(),
            memory,
            cpus: others,
            processes: others,
        }
    }

    #[test]
    fn an_engine_is_described_with_its_limits() {
        for (memory, others, description) in [
            (
                Kernel,
                Kernel,
                "oci; the kernel limits memory, CPUs and processes",
            ),
            (
                Watched,
                Nothing,
                "oci; crunch-run watches memory; nothing limits CPUs and processes",
            ),
            (Kernel, Unknown, "oci; the kernel limits memory"),
        ] {
            assert_eq!(super::description(&engine(memory, others)), description);
        }
    }

    #[test]
    fn only_failures_are_printed_with_their_remedy() {
        let mut report = NodeReport {
            host: "h".to_owned(),
            uid: 1,
            version: "1".to_owned(),
            granted_gpus: Vec::new(),
            engine: Some(engine(Kernel, Kernel)),
            report: Report::new(vec![
                Finding::warn("kernel", "old", "update it"),
                Finding::ok("GPUs", "none"),
            ]),
        };
        assert_eq!(lines(&report).len(), 1);
        report.engine = None;
        let failure = Finding::fail("engine auto", "finds none", "install crun");
        report.report.findings.push(failure);
        let text = lines(&report);
        assert!(text[0].contains("no container can run"), "{text:?}");
        assert_eq!(
            text[1..],
            ["FAIL  engine auto: finds none", "      mend: install crun"]
        );
    }
}
