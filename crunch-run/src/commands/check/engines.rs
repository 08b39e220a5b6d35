//! Tries every engine with a trivial container at the same time, and reports the one that a run
//! would use.

use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::flags::EngineChoice;
use container_engine::select::{self, EngineFactory};
use container_engine::{Engine, EngineError, LimitCover, LimitKind, Limits, Unenforced};
use preflight::{Enforcement, EngineReport, Finding, Level};

/// Timeout of a trial. A trial takes about 50 ms, and seconds on a busy node.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);
const ALL: [EngineChoice; 6] = [
    EngineChoice::Builtin,
    EngineChoice::Oci,
    EngineChoice::Podman,
    EngineChoice::Docker,
    EngineChoice::Apptainer,
    EngineChoice::Singularity,
];

/// Result of one engine.
struct Probe {
    choice: EngineChoice,
    outcome: Result<WorkingEngine, String>,
}

struct WorkingEngine {
    took: Duration,
    /// Limits and protections that the engine does not enforce.
    unenforced: Vec<Unenforced>,
}

/// Tries all engines, and puts the one that a run would use into `chosen`. `scratch` is the
/// directory of trial containers.
pub async fn run(
    wanted: EngineChoice,
    engines: EngineFactory,
    scratch: &Path,
    chosen: &OnceLock<EngineReport>,
) -> Vec<Finding> {
    let engines = Arc::new(engines);
    let order = select::candidates(wanted, &engines);
    let mut trials = Vec::new();
    for choice in ALL {
        let (engines, scratch) = (engines.clone(), scratch.join(name(choice)));
        let trial = async move {
            std::fs::create_dir(&scratch).map_err(|error| error.to_string())?;
            try_one(choice, &engines, &scratch).await
        };
        let running = tokio::spawn(tokio::time::timeout(PROBE_TIMEOUT, trial));
        trials.push((choice, running));
    }
    let mut probes = Vec::new();
    for (choice, running) in trials {
        let outcome = match running.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs())),
            Err(error) => Err(error.to_string()),
        };
        probes.push(Probe { choice, outcome });
    }
    if let Some((choice, engine)) = taken(&order, &probes) {
        let _ = chosen.set(report(choice, engine));
    }
    evaluate(wanted, &order, &probes)
}

/// The first engine of `order` that works.
fn taken<'a>(
    order: &[EngineChoice],
    probes: &'a [Probe],
) -> Option<(EngineChoice, &'a WorkingEngine)> {
    order.iter().find_map(|choice| {
        let found = probes.iter().find(|probe| probe.choice == *choice)?;
        Some((*choice, found.outcome.as_ref().ok()?))
    })
}

fn report(choice: EngineChoice, engine: &WorkingEngine) -> EngineReport {
    let missing = engine.unenforced.iter().flat_map(|one| &one.missing);
    let enforcement = |kind: LimitKind, otherwise| match missing.clone().any(|m| *m == kind) {
        true => otherwise,
        false => Enforcement::Kernel,
    };
    EngineReport {
        name: name(choice),
        memory: enforcement(LimitKind::Memory, Enforcement::Watched),
        cpus: enforcement(LimitKind::Cpus, Enforcement::Nothing),
        processes: enforcement(LimitKind::Processes, Enforcement::Nothing),
    }
}

async fn try_one(
    choice: EngineChoice,
    engines: &EngineFactory,
    scratch: &Path,
) -> Result<WorkingEngine, String> {
    let began = Instant::now();
    let engine = match select::probe(choice, engines, scratch).await {
        Ok(engine) => engine,
        // The finding names the engine already.
        Err(EngineError::Unavailable { reason, .. }) => return Err(reason),
        Err(error) => return Err(error.to_string()),
    };
    if is_service(choice) {
        // The socket accepts connections; this checks that the service also replies.
        let reply = engine.recover("crunch-run-check").await;
        reply.map_err(|error| error.to_string())?;
    }
    Ok(WorkingEngine {
        took: began.elapsed(),
        unenforced: unenforced(&*engine).await,
    })
}

async fn unenforced(engine: &dyn Engine) -> Vec<Unenforced> {
    let limits = Limits {
        vcpus: Some(1.0),
        memory_bytes: Some(1 << 30),
        pids: None,
        cpuset: None,
    };
    engine.unenforced_limits(&limits, None).await
}

impl WorkingEngine {
    /// Sentences about limits that neither the engine nor the scheduler enforces.
    fn lacks(&self, choice: EngineChoice) -> Vec<&str> {
        let lacks = self.unenforced.iter();
        let lacks = lacks.filter(|lack| lack.cover != LimitCover::Full);
        let disk = is_service(choice).then_some(
            "nothing limits the disk space of a container's own root and of its volumes",
        );
        let sentences = lacks.map(|lack| lack.sentence.as_str());
        sentences.chain(disk).collect()
    }
}

fn is_service(choice: EngineChoice) -> bool {
    matches!(choice, EngineChoice::Docker | EngineChoice::Podman)
}

/// The name as in `--runtime-engine`.
fn name(choice: EngineChoice) -> String {
    let value = choice.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn advice(choice: EngineChoice) -> &'static str {
    match choice {
        EngineChoice::Auto => {
            "install crun or runc; an ordinary user can also use apptainer or rootless podman"
        }
        EngineChoice::Builtin => "run crunch-run as root on a node with cgroups",
        EngineChoice::Oci => "install crun or runc, or name its program with --oci-runtime",
        EngineChoice::Apptainer => "install apptainer; an ordinary user needs user namespaces too",
        EngineChoice::Singularity => "install singularity-ce, or use apptainer",
        EngineChoice::Docker => {
            "install docker (docker.io), start dockerd, and let this user use its socket (group docker)"
        }
        EngineChoice::Podman => {
            "install podman and start its service: systemctl enable --now podman.socket (with --user for one user)"
        }
    }
}

fn evaluate(wanted: EngineChoice, order: &[EngineChoice], probes: &[Probe]) -> Vec<Finding> {
    let taken = taken(order, probes);
    let mut findings: Vec<Finding> = probes
        .iter()
        .map(|one| {
            let what = format!("engine {}", name(one.choice));
            match &one.outcome {
                Ok(works) => Finding::ok(what, describe(one.choice, works)),
                // An engine that is not needed is not a fault of the node.
                Err(reason) if taken.is_some() => {
                    Finding::ok(what, format!("not needed, and does not work: {reason}"))
                }
                Err(reason) => {
                    let level = match wanted == one.choice {
                        true => Level::Fail,
                        false => Level::Warn,
                    };
                    Finding::new(level, what, reason, Some(advice(one.choice)))
                }
            }
        })
        .collect();
    let what = format!("engine {}", name(wanted));
    match taken {
        Some((choice, works)) => {
            if wanted == EngineChoice::Auto {
                let finding = format!("takes {} for this user", name(choice));
                findings.push(Finding::ok(what, finding));
            }
            let lacks = works.lacks(choice);
            if !lacks.is_empty() {
                findings.push(Finding::warn(
                    format!("limits with {}", name(choice)),
                    lacks.join("; "),
                    "let the scheduler keep its jobs' limits, or use an engine that can",
                ));
            }
        }
        None if wanted == EngineChoice::Auto => {
            findings.push(Finding::fail(what, "finds none that works", advice(wanted)));
        }
        None => {}
    }
    findings
}

fn describe(choice: EngineChoice, works: &WorkingEngine) -> String {
    let milliseconds = works.took.as_millis();
    match is_service(choice) {
        true => format!(
            "its service answers ({milliseconds} ms); no container was probed, as it needs an image for that"
        ),
        false => format!("ran a container in {milliseconds} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probes(working: &[EngineChoice]) -> Vec<Probe> {
        ALL.into_iter()
            .map(|choice| Probe {
                choice,
                outcome: match working.contains(&choice) {
                    true => Ok(WorkingEngine {
                        took: Duration::from_millis(5),
                        unenforced: [
                            (LimitKind::Memory, "no memory"),
                            (LimitKind::Cpus, "no CPUs"),
                        ]
                        .map(|(kind, sentence)| Unenforced::limit(kind, sentence.to_owned()))
                        .to_vec(),
                    }),
                    false => Err("it is not there".to_owned()),
                },
            })
            .collect()
    }

    #[test]
    fn only_what_is_needed_can_fail() {
        use EngineChoice::{Apptainer, Auto, Builtin, Docker, Podman};
        let order = [Builtin, Podman, Docker];
        for (wanted, working, level, words) in [
            (Auto, &[Docker, Podman][..], Level::Warn, "takes podman"),
            (Auto, &[Builtin, Docker], Level::Warn, "takes builtin"),
            // Apptainer works, but not for this user.
            (Auto, &[Apptainer], Level::Fail, "finds none"),
            (Auto, &[], Level::Fail, "finds none"),
            (Docker, &[Builtin], Level::Fail, "it is not there"),
            (Docker, &[Docker], Level::Warn, "its service answers"),
        ] {
            let order = match wanted {
                Auto => &order[..],
                _ => &[wanted],
            };
            let findings = evaluate(wanted, order, &probes(working));
            let worst = findings.iter().map(|f| f.level).max().unwrap();
            assert_eq!(worst, level, "{findings:?}");
            let all = findings.iter().any(|f| f.finding.contains(words));
            assert!(all, "{words}: {findings:?}");
            let failed = findings.iter().filter(|f| f.level == Level::Fail);
            assert!(failed.count() <= 1);
        }
    }

    #[test]
    fn what_the_one_taken_cannot_keep_is_said_once() {
        let findings = evaluate(
            EngineChoice::Auto,
            &[EngineChoice::Builtin],
            &probes(&[EngineChoice::Builtin, EngineChoice::Docker]),
        );
        let warnings: Vec<_> = findings.iter().filter(|f| f.level == Level::Warn).collect();
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].what, "limits with builtin");
        assert_eq!(warnings[0].finding, "no memory; no CPUs");
    }

    #[test]
    fn a_daemon_s_disk_is_warned_of() {
        for (choice, is_warned) in [
            (EngineChoice::Builtin, false),
            (EngineChoice::Docker, true),
            (EngineChoice::Podman, true),
        ] {
            let findings = evaluate(choice, &[choice], &probes(&[choice]));
            let mut warnings = findings.iter().filter(|f| f.level == Level::Warn);
            let warns = warnings.any(|f| f.finding.contains("root and of its volumes"));
            assert_eq!(warns, is_warned, "{findings:?}");
        }
    }

    #[test]
    fn limits_that_the_scheduler_keeps_only_in_part_are_warned_of() {
        for (cover, is_warned) in [
            (LimitCover::Full, false),
            (LimitCover::Partial, true),
            (LimitCover::Nothing, true),
        ] {
            let mut probes = probes(&[EngineChoice::Oci]);
            for probe in &mut probes {
                let works = probe.outcome.iter_mut();
                works
                    .flat_map(|works| &mut works.unenforced)
                    .for_each(|one| one.cover = cover);
            }
            let findings = evaluate(EngineChoice::Oci, &[EngineChoice::Oci], &probes);
            let warns = findings.iter().any(|found| found.level == Level::Warn);
            assert_eq!(warns, is_warned, "{cover:?}: {findings:?}");
        }
    }
}
