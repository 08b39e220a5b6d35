//! Every engine, each tried with a trivial container at the same time, and the one that a run would take.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::finding::{Finding, Level};
use crate::engine::choose::{self, Makers};
use crate::engine::{Engine, EngineError, Limits};
use crate::flags::EngineChoice;

/// A trial takes some 50 ms where nothing is wrong, and seconds on a busy node.
const PATIENCE: Duration = Duration::from_secs(15);
const ALL: [EngineChoice; 6] = [
    EngineChoice::Builtin,
    EngineChoice::Oci,
    EngineChoice::Podman,
    EngineChoice::Docker,
    EngineChoice::Apptainer,
    EngineChoice::Singularity,
];

/// How one engine did.
struct Tried {
    choice: EngineChoice,
    outcome: Result<Works, String>,
}

struct Works {
    took: Duration,
    /// What it cannot keep here, and nothing else keeps.
    lacks: Vec<String>,
}

/// `scratch` is where trial containers may be made.
pub async fn look(wanted: EngineChoice, makers: Makers, scratch: &Path) -> Vec<Finding> {
    let makers = Arc::new(makers);
    let order = choose::order(wanted, &makers);
    let mut trials = Vec::new();
    for choice in ALL {
        let (makers, scratch) = (makers.clone(), scratch.join(name(choice)));
        let trial = async move {
            std::fs::create_dir(&scratch).map_err(|error| error.to_string())?;
            try_one(choice, &makers, &scratch).await
        };
        let running = tokio::spawn(tokio::time::timeout(PATIENCE, trial));
        trials.push((choice, running));
    }
    let mut tried = Vec::new();
    for (choice, running) in trials {
        let outcome = match running.await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(format!("no answer within {} s", PATIENCE.as_secs())),
            Err(error) => Err(error.to_string()),
        };
        tried.push(Tried { choice, outcome });
    }
    judge(wanted, &order, &tried)
}

async fn try_one(choice: EngineChoice, makers: &Makers, scratch: &Path) -> Result<Works, String> {
    let began = Instant::now();
    let engine = match choose::try_out(choice, makers, scratch).await {
        Ok(engine) => engine,
        // The line names the engine already.
        Err(EngineError::Unavailable { reason, .. }) => return Err(reason),
        Err(error) => return Err(error.to_string()),
    };
    if is_service(choice) {
        // It listens; this shows that it also answers, and what it says of itself.
        let asked = engine.recover("crunch-run-check").await;
        asked.map_err(|error| error.to_string())?;
    }
    Ok(Works {
        took: began.elapsed(),
        lacks: lacks(&*engine).await,
    })
}

async fn lacks(engine: &dyn Engine) -> Vec<String> {
    let limits = Limits {
        vcpus: Some(1.0),
        memory_bytes: Some(1 << 30),
        pids: None,
        cpuset: None,
    };
    let lacks = engine.unenforceable(&limits, None).await.into_iter();
    lacks
        .filter(|lack| !lack.is_covered)
        .map(|lack| lack.sentence)
        .collect()
}

fn is_service(choice: EngineChoice) -> bool {
    matches!(choice, EngineChoice::Docker | EngineChoice::Podman)
}

fn name(choice: EngineChoice) -> &'static str {
    match choice {
        EngineChoice::Auto => "auto",
        EngineChoice::Builtin => "builtin",
        EngineChoice::Oci => "oci",
        EngineChoice::Apptainer => "apptainer",
        EngineChoice::Singularity => "singularity",
        EngineChoice::Docker => "docker",
        EngineChoice::Podman => "podman",
    }
}

fn advice(choice: EngineChoice) -> &'static str {
    match choice {
        EngineChoice::Auto => {
            "install one of them: as root crun is the least, for ordinary users apptainer"
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

fn judge(wanted: EngineChoice, order: &[EngineChoice], tried: &[Tried]) -> Vec<Finding> {
    let works = |choice: &EngineChoice| {
        let found = tried.iter().find(|tried| tried.choice == *choice)?;
        found.outcome.as_ref().ok()
    };
    let taken = order
        .iter()
        .find_map(|choice| Some((*choice, works(choice)?)));
    let mut findings: Vec<Finding> = tried
        .iter()
        .map(|one| {
            let what = format!("engine {}", name(one.choice));
            match &one.outcome {
                Ok(works) => Finding::ok(what, said(one.choice, works)),
                // What nobody needs is no fault of the node.
                Err(reason) if taken.is_some() => {
                    Finding::ok(what, format!("not needed, and does not work: {reason}"))
                }
                Err(reason) => {
                    let level = match wanted == one.choice {
                        true => Level::Fail,
                        false => Level::Warn,
                    };
                    Finding::new(level, what, reason, Some(advice(one.choice).to_owned()))
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
            if !works.lacks.is_empty() {
                findings.push(Finding::warn(
                    format!("limits with {}", name(choice)),
                    works.lacks.join("; "),
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

fn said(choice: EngineChoice, works: &Works) -> String {
    let milliseconds = works.took.as_millis();
    match is_service(choice) {
        true => format!(
            "its service answers ({milliseconds} ms); no container was tried, as it needs an image for that"
        ),
        false => format!("ran a container in {milliseconds} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(working: &[EngineChoice]) -> Vec<Tried> {
        ALL.into_iter()
            .map(|choice| Tried {
                choice,
                outcome: match working.contains(&choice) {
                    true => Ok(Works {
                        took: Duration::from_millis(5),
                        lacks: vec!["no memory".to_owned(), "no CPUs".to_owned()],
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
            // Works, and is not for this user.
            (Auto, &[Apptainer], Level::Fail, "finds none"),
            (Auto, &[], Level::Fail, "finds none"),
            (Docker, &[Builtin], Level::Fail, "it is not there"),
            (Docker, &[Docker], Level::Warn, "its service answers"),
        ] {
            let order = match wanted {
                Auto => &order[..],
                _ => &[wanted],
            };
            let findings = judge(wanted, order, &tried(working));
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
        let findings = judge(
            EngineChoice::Auto,
            &[EngineChoice::Builtin],
            &tried(&[EngineChoice::Builtin, EngineChoice::Docker]),
        );
        let warnings: Vec<_> = findings.iter().filter(|f| f.level == Level::Warn).collect();
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].what, "limits with builtin");
        assert_eq!(warnings[0].finding, "no memory; no CPUs");
    }
}
