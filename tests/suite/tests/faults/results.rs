//! A container ran, its results are on the node, and the scheduler does not report that. The
//! results are kept.

use std::os::unix::fs::PermissionsExt;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use crunch_contract::StatusLine;
use rustix::process::{Signal, kill_process};
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};
use tempfile::TempDir;

use crate::backend::{Backend, on_fake_and_real_slurm};
use crate::fixture::{Fixture, running};
use suite_tests::STEP_TIMEOUT;
use suite_tests::processes::crunch_run_of;
use suite_tests::program::{binary, write_script};

/// A container that runs.
struct Running {
    fixture: Fixture,
    container: ContainerUuid,
    _script: TempDir,
}

impl Running {
    /// When its crunch-run is killed, its job's output ends with `words`, which report undelivered
    /// results.
    async fn up(backend: Backend, words: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let script = dir.path().join("crunch-run-and-77");
        let text = format!(
            "#!/bin/sh\n{} \"$@\" &\nwait $!\necho '{words}'\nexit 77\n",
            binary("crunch-run").display()
        );
        write_script(&script, &text);
        let mut options = running(backend);
        options.flags = vec!["--crunch-run", script.display().to_string().leak()];
        let fixture = options.up().await;
        let (_, container) = fixture.request("sleep 1000", json!({})).await;
        let runs = |c: &Container| c.state == ContainerState::Running;
        fixture
            .stack
            .wait_until(&container, STEP_TIMEOUT, runs)
            .await;
        Self {
            fixture,
            container,
            _script: dir,
        }
    }

    fn ends(&self) {
        let executor = crunch_run_of(&self.container).expect("its crunch-run");
        kill_process(executor, Signal::KILL).unwrap();
    }

    /// The record does not change, and names the directory of the results.
    async fn is_kept(&self) {
        let is_waiting = |c: &Container| {
            let activity = c.runtime_status.activity.as_deref();
            c.state.is_final()
                || activity.is_some_and(|words| words.contains("wait for an administrator"))
        };
        let stack = &self.fixture.stack;
        // The dispatcher queries an unknown exit at growing intervals.
        let timeout = STEP_TIMEOUT * 3;
        self.still_runs(&stack.wait_until(&self.container, timeout, is_waiting).await);
    }

    fn still_runs(&self, record: &Container) {
        assert_eq!(
            (record.state.clone(), record.lock_count),
            (ContainerState::Running, 1),
            "{record:?}"
        );
        self.fixture.check_jobs(&self.container, 1);
    }
}

fn refuses(say: &str) -> Fault {
    Fault::Refuse {
        status: 1,
        say: say.into(),
    }
}

/// First Slurm does not answer whether the job has ended, and then not how it ended.
async fn slurm_does_not_answer(backend: Backend) {
    let running = Running::up(backend, "").await;
    let fixture = &running.fixture;
    fixture
        .fake
        .change(|state| state.settings.accounting = false);
    let timed_out = "slurm_load_jobs error: Socket timed out on send/recv operation";
    fixture.fake.faults([
        Rule::next("squeue", 2, refuses(timed_out)).having("--states=all"),
        Rule::next("scontrol", 1, refuses(timed_out)).having("job"),
    ]);
    running.ends();
    fixture.wait_for_event("action_failed").await;
    running.is_kept().await;
}
on_fake_and_real_slurm!(slurm_does_not_answer);

/// Slurm has forgotten the job, and its accounting, which would know, does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn accounts_do_not_answer() {
    let running = Running::up(Backend::Slurm, "").await;
    let fixture = &running.fixture;
    fixture.fake.change(|state| {
        state.settings.min_job_age = 0.0;
        state.settings.accounting = true;
    });
    let refused =
        "sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection";
    fixture
        .fake
        .faults([Rule::every("sacct", refuses(refused))]);
    running.ends();
    fixture.wait_for_event("action_failed").await;
    // Users read this in the record.
    let is_reported = |c: &Container| {
        let activity = c.runtime_status.activity.as_deref();
        c.state.is_final() || activity.is_some_and(|words| words.contains("slurm_persist"))
    };
    let stack = &fixture.stack;
    stack
        .wait_until(&running.container, STEP_TIMEOUT, is_reported)
        .await;
    fixture.wait_for_listings(2).await;
    running.still_runs(&stack.container(&running.container).await);
}

/// Only the job's own output reports undelivered results.
#[tokio::test(flavor = "multi_thread")]
async fn slurm_has_forgotten_the_job() {
    let directory = "/x".into();
    let words = StatusLine::Undelivered { directory }.to_string();
    let running = Running::up(Backend::Slurm, &words).await;
    running.fixture.fake.change(|state| {
        state.settings.min_job_age = 0.0;
        state.settings.accounting = false;
    });
    running.ends();
    running.is_kept().await;
}

/// The queue shows that the job is gone, and the history cannot be read for a while.
#[tokio::test(flavor = "multi_thread")]
async fn htcondor_does_not_say_how_it_ended() {
    let running = Running::up(Backend::Condor, "").await;
    let fixture = &running.fixture;
    let unreadable = "-- Failed to fetch ads: the history file is unreadable";
    fixture
        .fake
        .faults([Rule::next("condor_history", 4, refuses(unreadable))]);
    running.ends();
    fixture.wait_for_event("action_failed").await;
    running.is_kept().await;
}
