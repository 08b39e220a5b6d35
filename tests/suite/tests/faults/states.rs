//! Every job state, job numbers that are used again, and jobs that end before they are listed.

use std::time::Instant;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use suite_tests::fake_sched::{Fault, Rule};

use crate::backend::{Backend, on_every_scheduler, on_fake_schedulers};
use crate::fixture::{held, running, was_unlocked};
use suite_tests::STEP_TIMEOUT;

/// Slurm's job states and an invented one, and whether each is final.
const SLURM_STATES: [(&str, bool); 25] = [
    ("PENDING", false),
    ("RUNNING", false),
    ("SUSPENDED", false),
    ("COMPLETING", false),
    ("CONFIGURING", false),
    ("RESIZING", false),
    ("SIGNALING", false),
    ("STAGE_OUT", false),
    ("STOPPED", false),
    ("REQUEUED", false),
    ("REQUEUE_HOLD", false),
    ("REQUEUE_FED", false),
    ("RESV_DEL_HOLD", false),
    ("SPECIAL_EXIT", false),
    ("HIBERNATING", false),
    ("BOOT_FAIL", true),
    ("CANCELLED", true),
    ("COMPLETED", true),
    ("DEADLINE", true),
    ("FAILED", true),
    ("NODE_FAIL", true),
    ("OUT_OF_MEMORY", true),
    ("PREEMPTED", true),
    ("REVOKED", true),
    ("TIMEOUT", true),
];
/// HTCondor's job states and an invented one, and whether a job in it has left the queue.
const CONDOR_STATES: [(i64, bool); 9] = [
    (1, false),
    (2, false),
    (3, false),
    (5, false),
    (6, false),
    (7, false),
    (99, false),
    (3, true),
    (4, true),
];

/// A container whose job has ended is unlocked; every other one waits.
#[tokio::test(flavor = "multi_thread")]
async fn every_state_of_a_job_means_that_it_is_over_or_not() {
    on_fake_schedulers(|backend| async move {
        let fixture = held(backend).up().await;
        let count = if backend.is_slurm() {
            SLURM_STATES.len()
        } else {
            CONDOR_STATES.len()
        };
        let mut containers: Vec<(ContainerUuid, String, bool)> = Vec::new();
        for n in 0..count {
            let (word, over) = match backend {
                Backend::Slurm => (SLURM_STATES[n].0.to_owned(), SLURM_STATES[n].1),
                _ => (CONDOR_STATES[n].0.to_string(), CONDOR_STATES[n].1),
            };
            containers.push((fixture.submit().await, word, over));
        }
        let mut jobs = Vec::new();
        for (container, ..) in &containers {
            jobs.push(fixture.job(container).await.id);
        }
        fixture.wait_for_listings(1).await;
        for (n, id) in jobs.iter().enumerate() {
            match backend {
                Backend::Slurm => fixture
                    .fake
                    .set_state(id, SLURM_STATES[n].0, SLURM_STATES[n].1),
                _ => fixture
                    .fake
                    .set_status(id, CONDOR_STATES[n].0, CONDOR_STATES[n].1),
            }
        }
        for (container, word, _) in containers.iter().filter(|(.., over)| *over) {
            let record = fixture
                .stack
                .wait_until(container, STEP_TIMEOUT, was_unlocked);
            let record = record.await;
            assert!(record.lock_count >= 1, "{word}: {record:?}");
        }
        for (container, word, _) in containers.iter().filter(|(.., over)| !over) {
            let record = fixture.stack.container(container).await;
            assert_eq!(
                (record.state, record.lock_count),
                (ContainerState::Locked, 1),
                "{word}"
            );
        }
        assert_eq!(fixture.fake.count(backend.cancel_command()), 0);
    })
    .await;
}

/// Slurm forgets ended jobs after `MinJobAge`; a container that ran is not disturbed by that.
#[tokio::test(flavor = "multi_thread")]
async fn the_job_is_forgotten_at_once() {
    on_fake_schedulers(|backend| async move {
        let fixture = running(backend).up().await;
        fixture
            .fake
            .change(|state| state.settings.min_job_age = 0.0);
        let container = fixture.submit().await;
        fixture.complete(&container, 1).await;
    })
    .await;
}

/// A job ended without a final state: the dispatcher reports the reason that the scheduler still
/// has.
async fn gives_back(backend: Backend, min_job_age: f64, accounting: bool, says: &str) {
    let fixture = held(backend).up().await;
    fixture.fake.change(|state| {
        state.settings.min_job_age = min_job_age;
        state.settings.accounting = accounting;
    });
    let container = fixture.submit().await;
    let id = fixture.job(&container).await.id;
    fixture.wait_for_listings(1).await;
    fixture.end_job(&id);
    fixture.wait_for_log(says).await;
    let back = fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, was_unlocked);
    back.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_that_is_forgotten_within_two_seconds() {
    gives_back(Backend::Slurm, 0.0, false, "MinJobAge").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounting_remembers_a_job_that_is_forgotten() {
    gives_back(Backend::Slurm, 0.0, true, "exit code 75").await;
}

/// `scontrol` shows the exit status without accounting.
#[tokio::test(flavor = "multi_thread")]
async fn accounting_is_disabled() {
    gives_back(Backend::Slurm, 300.0, false, "exit code 75").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_cannot_be_shown() {
    let fixture = held(Backend::Slurm).up().await;
    let say = "slurm_load_jobs error: Socket timed out on send/recv operation".into();
    let fault = Fault::Refuse { status: 1, say };
    fixture.fake.faults([Rule::every("scontrol", fault)]);
    fixture
        .fake
        .change(|state| state.settings.accounting = false);
    let container = fixture.submit().await;
    let id = fixture.job(&container).await.id;
    fixture.wait_for_listings(1).await;
    fixture.end_job(&id);
    fixture.wait_for_log(r#"event="cleaned_up_"#).await;
    let back = fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, was_unlocked);
    back.await;
}

/// squeue does not show who cancelled a job; accounting does.
#[tokio::test(flavor = "multi_thread")]
async fn who_cancelled_a_job_is_read_from_the_accounts() {
    let fixture = held(Backend::Slurm).up().await;
    let container = fixture.submit().await;
    let id = fixture.job(&container).await.id;
    fixture.wait_for_listings(1).await;
    fixture.fake.set_state(&id, "CANCELLED", true);
    let back = fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, was_unlocked);
    back.await;
    // The dispatcher's PATH has no system commands here, so the user has no name.
    let uid = rustix::process::geteuid().as_raw();
    fixture.wait_for_log(&format!("by uid {uid}")).await;
}

/// Three attempts fail on the only known node: nothing shows that another node would be better.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_known_is_not_left_out() {
    on_fake_schedulers(|backend| async move {
        let fixture = held(backend).up().await;
        for _ in 0..3 {
            let container = fixture.submit().await;
            let id = fixture.job(&container).await.id;
            fixture.wait_for_listings(1).await;
            fixture.fake.mark_running(&id);
            fixture.end_job(&id);
            // The node of the first attempt is excluded when the second begins.
            let again = |c: &Container| c.lock_count > 1;
            fixture
                .stack
                .wait_until(&container, STEP_TIMEOUT, again)
                .await;
        }
        let job = fixture.job(&fixture.submit().await).await;
        let requirements = job.options.get("requirements");
        let names =
            requirements.is_some_and(|text| text.to_string().contains("TARGET.Machine =!="));
        assert!(!names && !job.options.contains_key("exclude"), "{job:#?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_cannot_be_asked() {
    let fixture = held(Backend::Condor).up().await;
    let say = "-- Failed to fetch ads: the history file is unreadable";
    let fault = Fault::Refuse {
        status: 1,
        say: say.into(),
    };
    fixture.fake.faults([Rule::every("condor_history", fault)]);
    let container = fixture.submit().await;
    let id = fixture.job(&container).await.id;
    fixture.wait_for_listings(1).await;
    fixture.end_job(&id);
    fixture.wait_for_log(say).await;
}

/// The id of a cancelled job is reused, and the new job is not taken for the old one.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_number_is_used_again() {
    on_fake_schedulers(|backend| async move {
        let fixture = held(backend).up().await;
        let (request, first) = fixture.request("true", serde_json::json!({})).await;
        let old = fixture.job(&first).await;
        fixture.wait_for_listings(1).await;
        fixture.set_priority(&request, 0).await;
        fixture
            .stack
            .wait_until(&first, STEP_TIMEOUT, |c| c.state == ContainerState::Queued)
            .await;
        let ends = fixture.fake.count(backend.cancel_command());
        fixture.fake.change(|state| {
            state.last_id -= 1;
            state.settings.run_jobs = true;
        });
        let second = fixture.submit().await;
        assert_eq!(fixture.job(&second).await.id, old.id);
        fixture.complete(&second, 1).await;
        assert_eq!(
            fixture.fake.count(backend.cancel_command()),
            ends,
            "the wrong job was ended"
        );
    })
    .await;
}

/// One listing per interval however many jobs are pending, at most one submission each, and no
/// other calls.
async fn calls_are_few_however_many_jobs_wait(backend: Backend) {
    let fixture = held(backend).up().await;
    let mut containers = Vec::new();
    for _ in 0..30 {
        containers.push(fixture.submit().await);
    }
    for container in &containers {
        fixture.job(container).await;
    }
    // The last jobs get their priority within two seconds.
    fixture.wait_for_listings(8).await;
    // A slow machine needs longer: then the test measures later.
    let until = Instant::now() + STEP_TIMEOUT;
    let (calls, time) = loop {
        let begun = Instant::now();
        let before = fixture.fake.calls().len();
        fixture.wait_for_listings(8).await;
        let calls = fixture.fake.calls().split_off(before);
        let only_listings = calls.iter().all(|call| call.name == backend.list_command());
        if only_listings {
            break (calls, begun.elapsed());
        }
        assert!(Instant::now() < until, "{calls:?}");
    };
    // The interval is 400 ms; the first may have been due already, and one before it may be noted
    // down late.
    let due = time.as_millis() / 400 + 2;
    assert!(calls.len() as u128 <= due, "{} of {due}", calls.len());
    let submits = fixture.fake.count(backend.submit_command());
    match backend {
        // Eight that wait at the same time go together.
        backend if backend.is_slurm() => {
            assert!((1..=containers.len()).contains(&submits), "{submits}")
        }
        // Containers that were locked together are submitted together.
        _ => assert!((1..containers.len()).contains(&submits), "{submits}"),
    }
    assert!(fixture.stack.dispatcher.is_running());
}
on_every_scheduler!(calls_are_few_however_many_jobs_wait);
