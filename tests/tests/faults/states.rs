//! Every state of a job, numbers that are used again, and jobs that are gone before anybody looks.

use std::time::Instant;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use suite_tests::fake_sched::{Fault, Rule};

use crate::scene::{Kind, PATIENCE, both, everywhere, given_back, held, running};

/// Slurm's words, one that Slurm does not have, and whether a job in that state is over.
const SLURM: [(&str, bool); 25] = [
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
/// HTCondor's numbers, one that it does not have, and whether a job in that state has left the queue.
const CONDOR: [(i64, bool); 9] = [
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

/// A container whose job is over is given back, every other waits.
#[tokio::test(flavor = "multi_thread")]
async fn every_state_of_a_job_means_that_it_is_over_or_not() {
    both(|kind| async move {
        let scene = held(kind).up().await;
        let count = if kind.is_slurm() {
            SLURM.len()
        } else {
            CONDOR.len()
        };
        let mut containers: Vec<(ContainerUuid, String, bool)> = Vec::new();
        for n in 0..count {
            let (word, over) = match kind {
                Kind::Slurm => (SLURM[n].0.to_owned(), SLURM[n].1),
                _ => (CONDOR[n].0.to_string(), CONDOR[n].1),
            };
            containers.push((scene.submit().await, word, over));
        }
        let mut jobs = Vec::new();
        for (container, ..) in &containers {
            jobs.push(scene.job(container).await.id);
        }
        scene.looks(1).await;
        for (n, id) in jobs.iter().enumerate() {
            match kind {
                Kind::Slurm => scene.fake.set_state(id, SLURM[n].0, SLURM[n].1),
                _ => scene.fake.set_status(id, CONDOR[n].0, CONDOR[n].1),
            }
        }
        for (container, word, _) in containers.iter().filter(|(.., over)| *over) {
            let record = scene.stack.wait_until(container, PATIENCE, given_back);
            let record = record.await;
            assert!(record.lock_count >= 1, "{word}: {record:?}");
        }
        for (container, word, _) in containers.iter().filter(|(.., over)| !over) {
            let record = scene.stack.container(container).await;
            assert_eq!(
                (record.state, record.lock_count),
                (ContainerState::Locked, 1),
                "{word}"
            );
        }
        assert_eq!(scene.fake.count(kind.ends()), 0);
    })
    .await;
}

/// Slurm forgets ended jobs after `MinJobAge`; a container that ran is not disturbed by that.
#[tokio::test(flavor = "multi_thread")]
async fn the_job_is_forgotten_at_once() {
    both(|kind| async move {
        let scene = running(kind).up().await;
        scene.fake.change(|state| state.settings.min_job_age = 0.0);
        let container = scene.submit().await;
        scene.complete(&container, 1).await;
    })
    .await;
}

/// A job that ended without a final state: the reason is told from what the scheduler still knows.
async fn gives_back(kind: Kind, min_job_age: f64, accounting: bool, says: &str) {
    let scene = held(kind).up().await;
    scene.fake.change(|state| {
        state.settings.min_job_age = min_job_age;
        state.settings.accounting = accounting;
    });
    let container = scene.submit().await;
    let id = scene.job(&container).await.id;
    scene.looks(1).await;
    scene.end_job(&id);
    scene.says(says).await;
    let back = scene.stack.wait_until(&container, PATIENCE, given_back);
    back.await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_job_that_is_forgotten_within_two_seconds() {
    let says = "Slurm does not know its job any more";
    gives_back(Kind::Slurm, 0.0, false, says).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn accounting_remembers_a_job_that_is_forgotten() {
    gives_back(Kind::Slurm, 0.0, true, "ended with exit code 75").await;
}

/// What it ended with is told by `scontrol`, which needs no accounting.
#[tokio::test(flavor = "multi_thread")]
async fn accounting_is_disabled() {
    gives_back(Kind::Slurm, 300.0, false, "ended with exit code 75").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_cannot_be_shown() {
    let scene = held(Kind::Slurm).up().await;
    let say = "slurm_load_jobs error: Socket timed out on send/recv operation".into();
    let fault = Fault::Refuse { status: 1, say };
    scene.fake.faults([Rule::every("scontrol", fault)]);
    scene.fake.change(|state| state.settings.accounting = false);
    let container = scene.submit().await;
    let id = scene.job(&container).await.id;
    scene.looks(1).await;
    scene.end_job(&id);
    scene.says("failed: crunch-run ended with an error").await;
    let back = scene.stack.wait_until(&container, PATIENCE, given_back);
    back.await;
}

/// Slurm's own memory does not say who cancelled a job; its accounts do.
#[tokio::test(flavor = "multi_thread")]
async fn who_cancelled_a_job_is_read_from_the_accounts() {
    let scene = held(Kind::Slurm).up().await;
    let container = scene.submit().await;
    let id = scene.job(&container).await.id;
    scene.looks(1).await;
    scene.fake.set_state(&id, "CANCELLED", true);
    let back = scene.stack.wait_until(&container, PATIENCE, given_back);
    back.await;
    // No command of the system is in the dispatcher's PATH here, so the user has no name.
    let uid = rustix::process::geteuid().as_raw();
    let sentence = format!("was cancelled in Slurm by the user with number {uid}");
    scene.says(&sentence).await;
}

/// Three containers come to nothing on the one node that is known: nothing says that another would be better.
#[tokio::test(flavor = "multi_thread")]
async fn the_only_node_known_is_not_left_out() {
    both(|kind| async move {
        let scene = held(kind).up().await;
        for _ in 0..3 {
            let container = scene.submit().await;
            let id = scene.job(&container).await.id;
            scene.looks(1).await;
            scene.fake.run_on_paper(&id);
            scene.end_job(&id);
            // What was learnt from the first attempt is known when the second begins.
            let again = |c: &Container| c.lock_count > 1;
            scene.stack.wait_until(&container, PATIENCE, again).await;
        }
        let job = scene.job(&scene.submit().await).await;
        let requirements = job.options.get("requirements");
        let names =
            requirements.is_some_and(|text| text.to_string().contains("TARGET.Machine =!="));
        assert!(!names && !job.options.contains_key("exclude"), "{job:#?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn history_cannot_be_asked() {
    let scene = held(Kind::Condor).up().await;
    let say = "-- Failed to fetch ads: the history file is unreadable";
    let fault = Fault::Refuse {
        status: 1,
        say: say.into(),
    };
    scene.fake.faults([Rule::every("condor_history", fault)]);
    let container = scene.submit().await;
    let id = scene.job(&container).await.id;
    scene.looks(1).await;
    scene.end_job(&id);
    scene.says(say).await;
}

/// The number of a job that was ended is given to the next one, which must not be taken for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_number_is_used_again() {
    both(|kind| async move {
        let scene = held(kind).up().await;
        let (request, first) = scene.request("true", serde_json::json!({})).await;
        let old = scene.job(&first).await;
        scene.looks(1).await;
        scene.set_priority(&request, 0).await;
        scene
            .stack
            .wait_until(&first, PATIENCE, |c| c.state == ContainerState::Queued)
            .await;
        let ends = scene.fake.count(kind.ends());
        scene.fake.change(|state| {
            state.last_id -= 1;
            state.settings.run_jobs = true;
        });
        let second = scene.submit().await;
        assert_eq!(scene.job(&second).await.id, old.id);
        scene.complete(&second, 1).await;
        assert_eq!(
            scene.fake.count(kind.ends()),
            ends,
            "the wrong job was ended"
        );
    })
    .await;
}

// One listing an interval however many jobs wait, one submission each or fewer, and nothing else.
everywhere!(
    both,
    calls_are_few_however_many_jobs_wait,
    |kind| async move {
        let scene = held(kind).up().await;
        let mut containers = Vec::new();
        for _ in 0..30 {
            containers.push(scene.submit().await);
        }
        for container in &containers {
            scene.job(container).await;
        }
        // The last of them get their place in the order within two seconds.
        scene.looks(8).await;
        // On a machine that stalls it takes them longer: then a later time is measured.
        let until = Instant::now() + PATIENCE;
        let (calls, time) = loop {
            let begun = Instant::now();
            let before = scene.fake.calls().len();
            scene.looks(8).await;
            let calls = scene.fake.calls().split_off(before);
            let only_listings = calls.iter().all(|call| call.name == kind.lists());
            if only_listings {
                break (calls, begun.elapsed());
            }
            assert!(Instant::now() < until, "{calls:?}");
        };
        // The interval is 400 ms; the first may have been due already, and one before it may be noted down late.
        let due = time.as_millis() / 400 + 2;
        assert!(calls.len() as u128 <= due, "{} of {due}", calls.len());
        let submits = scene.fake.count(kind.submits());
        match kind {
            // Eight that wait at the same time go together.
            kind if kind.is_slurm() => {
                assert!((1..=containers.len()).contains(&submits), "{submits}")
            }
            // Those that were locked together go together.
            _ => assert!((1..containers.len()).contains(&submits), "{submits}"),
        }
        assert!(scene.stack.dispatcher.is_running());
    }
);
