//! A container ran, its results are on the node, and the scheduler does not say so: they are not given up.

use std::os::unix::fs::PermissionsExt;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use rustix::process::{Signal, kill_process};
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};
use tempfile::TempDir;

use crate::processes::crunch_run_of;
use crate::program::{binary, write_script};
use crate::scene::{Kind, PATIENCE, Scene, on_slurm, running};

/// A container that runs.
struct Running {
    scene: Scene,
    container: ContainerUuid,
    _script: TempDir,
}

impl Running {
    /// When its crunch-run is killed, its job ends as one that left results: with these words.
    async fn up(kind: Kind, words: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let script = dir.path().join("crunch-run-and-77");
        let text = format!(
            "#!/bin/sh\n{} \"$@\" &\nwait $!\necho '{words}'\nexit 77\n",
            binary("crunch-run").display()
        );
        write_script(&script, &text);
        let mut begin = running(kind);
        begin.flags = vec!["--crunch-run", script.display().to_string().leak()];
        let scene = begin.up().await;
        let (_, container) = scene.request("sleep 1000", json!({})).await;
        let runs = |c: &Container| c.state == ContainerState::Running;
        scene.stack.wait_until(&container, PATIENCE, runs).await;
        Self {
            scene,
            container,
            _script: dir,
        }
    }

    fn ends(&self) {
        let executor = crunch_run_of(&self.container).expect("its crunch-run");
        kill_process(executor, Signal::KILL).unwrap();
    }

    /// The record stays as it is, and says where they are.
    async fn is_kept(&self) {
        let kept = |c: &Container| {
            let activity = c.runtime_status.activity.as_deref();
            c.state.is_final()
                || activity.is_some_and(|words| words.contains("wait for an administrator"))
        };
        let stack = &self.scene.stack;
        // What is in doubt is asked about ever more seldom.
        let patience = PATIENCE * 3;
        self.still_runs(&stack.wait_until(&self.container, patience, kept).await);
    }

    fn still_runs(&self, record: &Container) {
        assert_eq!(
            (record.state.clone(), record.lock_count),
            (ContainerState::Running, 1),
            "{record:?}"
        );
        self.scene.check_jobs(&self.container, 1);
    }
}

fn refuses(say: &str) -> Fault {
    Fault::Refuse {
        status: 1,
        say: say.into(),
    }
}

// First Slurm does not say whether its job is over, and then not how it ended.
on_slurm!(slurm_does_not_answer, |kind| async move {
    let running = Running::up(kind, "").await;
    let scene = &running.scene;
    scene.fake.change(|state| state.settings.accounting = false);
    let timed_out = "slurm_load_jobs error: Socket timed out on send/recv operation";
    scene.fake.faults([
        Rule::next("squeue", 2, refuses(timed_out)).having("--states=all"),
        Rule::next("scontrol", 1, refuses(timed_out)).having("job"),
    ]);
    running.ends();
    scene
        .says("asked for it by name the scheduler did not answer")
        .await;
    scene
        .says("it cannot be told whether its job left results")
        .await;
    running.is_kept().await;
});

/// Slurm has forgotten the job, and its accounts, which would know, do not answer.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_do_not_answer() {
    let running = Running::up(Kind::Slurm, "").await;
    let scene = &running.scene;
    scene.fake.change(|state| {
        state.settings.min_job_age = 0.0;
        state.settings.accounting = true;
    });
    let refused =
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection";
    scene.fake.faults([Rule::every("sacct", refuses(refused))]);
    running.ends();
    scene
        .says("whether its job left results on its node: sacct: sacct: error: slurm_persist")
        .await;
    // Its users read so.
    let told = |c: &Container| {
        let activity = c.runtime_status.activity.as_deref();
        c.state.is_final() || activity.is_some_and(|words| words.contains("slurm_persist"))
    };
    let stack = &scene.stack;
    stack.wait_until(&running.container, PATIENCE, told).await;
    scene.looks(2).await;
    running.still_runs(&stack.container(&running.container).await);
}

/// Nobody but the job itself tells any more.
#[tokio::test(flavor = "multi_thread")]
async fn slurm_has_forgotten_the_job() {
    let words = "The results are not delivered and stay in /x: `crunch-run resume /x` on this node delivers them later";
    let running = Running::up(Kind::Slurm, words).await;
    running.scene.fake.change(|state| {
        state.settings.min_job_age = 0.0;
        state.settings.accounting = false;
    });
    running.ends();
    running.is_kept().await;
}

/// The queue says that the job is gone, and the history cannot be read for a while.
#[tokio::test(flavor = "multi_thread")]
async fn htcondor_does_not_say_how_it_ended() {
    let running = Running::up(Kind::Condor, "").await;
    let scene = &running.scene;
    let unreadable = "-- Failed to fetch ads: the history file is unreadable";
    scene
        .fake
        .faults([Rule::next("condor_history", 4, refuses(unreadable))]);
    running.ends();
    scene
        .says("it cannot be told whether its job left results")
        .await;
    running.is_kept().await;
}
