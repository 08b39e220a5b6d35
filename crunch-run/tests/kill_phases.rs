//! `kill -9` of crunch-run at every step of a run, by its fail points: whatever it leaves on the node, the next
//! crunch-run of the same user takes away, whichever container that one runs.

mod run_lab;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use arvados_client::records::ContainerState;
use run_lab::{Job, World, can_run, finish};
use serde_json::json;
use tokio::process::Command;

/// Every step of a run in the foreground, in their order.
const STEPS: [&str; 17] = [
    "run.before-claim",
    "run.claimed",
    "run.inputs-known",
    "run.image-ready",
    "run.before-first-log",
    "run.after-first-log",
    "run.created",
    "run.before-running",
    "run.after-running",
    "run.started",
    "run.command-ended",
    "run.before-output",
    "run.after-output",
    "run.after-last-log",
    "run.before-final",
    "run.after-final",
    "run.before-clean",
];
/// From here on there are results, which wait for `crunch-run resume`.
const FIRST_WITH_RESULTS: &str = "run.before-output";
/// From here on they are delivered, and the attempt's token has ended with the container.
const FIRST_DELIVERED: &str = "run.after-final";

const FEATURE: &str = "--features fail-points/enabled";

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    /// In the foreground, as a scheduler starts it: its directory is its own, in TMPDIR.
    fn program(&self, world: &World, job: &Job) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
        command
            .arg("--token-file")
            .arg(job.dir.join("token"))
            .arg("--cache")
            .arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-cache"))
            .args(["--runtime-engine=builtin", "--cache-size=100%"])
            .arg("--cache-free=0")
            .arg(job.uuid.as_str())
            .env_clear()
            .envs(world.environment())
            .env("PATH", "/usr/bin:/bin")
            .env("TMPDIR", self.path("tmp"))
            .env(fail_points::VARIABLE, self.path("points"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn in_tmp(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_run_takes_away_what_a_killed_one_left() {
    if !can_run() {
        return;
    }
    if !fail_points::ENABLED {
        assert!(
            std::env::var_os("CI").is_none(),
            "this test needs {FEATURE}"
        );
        eprintln!("SKIPPED: this test needs {FEATURE}");
        return;
    }
    let world = World::new().await;
    let place = Place {
        dir: tempfile::tempdir().unwrap(),
    };
    for step in STEPS {
        let job = world
            .lock(&["sh", "-c", "echo said; echo x >/out/x"], json!({}))
            .await;
        let point = place.path("points").join(step);
        fs::write(&point, "1").unwrap();
        let killed = place.program(&world, &job).spawn().unwrap();
        let output = killed.wait_with_output().await.unwrap();
        assert_eq!(output.status.signal(), Some(9), "{step}: {output:?}");

        let next = world.lock(&["true"], json!({})).await;
        let finished = finish(place.program(&world, &next).spawn().unwrap()).await;
        assert_eq!(finished.code, 0, "{step}: {}", finished.said);
        let record = world.record(&next).await;
        assert_eq!(record.state, ContainerState::Complete, "{step}");
        assert_eq!(run_lab::left_overs(&job.uuid), [] as [PathBuf; 0], "{step}");

        let left = place.in_tmp();
        match left.as_slice() {
            [] => {}
            // The results are all that is left, and not for long.
            [dir] if dir.join("undelivered.json").exists() => {
                assert!(is_from(step, FIRST_WITH_RESULTS), "{step}: {dir:?}");
                let mut resume = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
                resume
                    .arg("resume")
                    .arg(dir)
                    .env_clear()
                    .stdout(Stdio::piped())
                    .stderr(Stdio::piped());
                let finished = finish(resume.spawn().unwrap()).await;
                let code = if is_from(step, FIRST_DELIVERED) {
                    76
                } else {
                    0
                };
                assert_eq!(finished.code, code, "{step}: {}", finished.said);
                fs::remove_dir_all(dir).unwrap();
            }
            left => {
                let log = world.log(&next).await;
                panic!(
                    "{step}: {left:?}\n{}",
                    run_lab::file(&log, "crunch-run.txt")
                );
            }
        }
        if is_from(step, FIRST_WITH_RESULTS) {
            let record = world.record(&job).await;
            assert_eq!(record.state, ContainerState::Complete, "{step}");
            let log = world.log(&job).await;
            let said = run_lab::file(&log, "stdout.txt");
            assert_eq!(run_lab::lines(said), ["said"], "{step}");
        }
    }
}

fn is_from(step: &str, first: &str) -> bool {
    let at = |name: &str| STEPS.iter().position(|known| *known == name);
    at(step) >= at(first)
}
