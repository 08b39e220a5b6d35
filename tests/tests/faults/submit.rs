//! The command that takes a job goes wrong: one attempt still makes one job at most.

use arvados_client::records::Container;
use suite_tests::fake_sched::{Fault, Rule};

use serde_json::json;

use crate::scene::{Kind, PATIENCE, everywhere, held, running};

/// The first submission goes wrong; the container ends well after so many locks and submissions.
async fn first_goes_wrong(kind: Kind, fault: Fault, locks: u64, says: &str) {
    let scene = running(kind).up().await;
    scene.fake.faults([Rule::next(kind.submits(), 1, fault)]);
    let container = scene.submit().await;
    scene.complete(&container, locks).await;
    assert_eq!(
        scene.fake.count(kind.submits()) as u64,
        locks,
        "submissions"
    );
    scene.says(says).await;
}

fn timed_out() -> String {
    "error: Batch job submission failed: Socket timed out on send/recv operation".into()
}

everywhere!(
    both,
    accepted_although_its_exit_status_says_no,
    |kind| async move {
        let fault = Fault::DoneButFails {
            status: 1,
            say: timed_out(),
        };
        first_goes_wrong(kind, fault, 1, "it is not known whether").await;
    }
);

everywhere!(
    both,
    not_accepted_and_its_exit_status_says_so,
    |kind| async move {
        let fault = Fault::Refuse {
            status: 1,
            say: "error: the queue is full".into(),
        };
        first_goes_wrong(kind, fault, 2, "the queue is full").await;
    }
);

everywhere!(both, accepted_without_telling_the_number, |kind| {
    first_goes_wrong(kind, Fault::Mute, 1, "dispatched as job")
});

everywhere!(
    both,
    not_accepted_although_its_exit_status_is_0,
    |kind| async move {
        let fault = Fault::Nothing { say: String::new() };
        first_goes_wrong(kind, fault, 2, "dispatched as job").await;
    }
);

everywhere!(
    both,
    greetings_and_warnings_before_the_number,
    |kind| async move {
        let id = if kind.is_slurm() { "job 1" } else { "job 1.0" };
        first_goes_wrong(kind, Fault::Chatter, 1, &format!("dispatched as {id} ")).await;
    }
);

everywhere!(both, the_end_of_its_answer_is_missing, |kind| {
    first_goes_wrong(kind, Fault::Cut { bytes: 2 }, 1, "dispatched as job")
});

everywhere!(both, its_answer_is_no_text, |kind| first_goes_wrong(
    kind,
    Fault::NotText,
    1,
    "dispatched as job"
));

everywhere!(both, fifty_megabytes_before_the_number, |kind| async move {
    let fault = Fault::Flood {
        bytes: 50 << 20,
        line: "a site's advice".into(),
    };
    let id = if kind.is_slurm() { "job 1" } else { "job 1.0" };
    first_goes_wrong(kind, fault, 1, &format!("dispatched as {id} ")).await;
});

everywhere!(both, it_takes_its_time, |kind| first_goes_wrong(
    kind,
    Fault::Slow { ms: 3000 },
    1,
    "dispatched as job"
));

everywhere!(both, it_is_not_installed_for_a_while, |kind| async move {
    let scene = running(kind).up().await;
    scene.fake.install(kind.submits(), false);
    let container = scene.submit().await;
    // It was given back, and taken again: that stays so.
    let again = |c: &Container| c.lock_count > 1;
    let record = scene.stack.wait_until(&container, PATIENCE, again).await;
    scene.says("could not be run").await;
    assert!(scene.jobs().is_empty(), "{record:?}");
    scene.fake.install(kind.submits(), true);
    let record = scene.stack.end(&container, PATIENCE).await;
    scene
        .complete(&container, u64::from(record.lock_count))
        .await;
});

/// HTCondor takes all jobs of a submission or none: one that it never takes must not hold up those that came with it.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_never_taken_does_not_hold_up_the_others() {
    let scene = held(Kind::Condor).up().await;
    scene
        .fake
        .change(|state| state.settings.most_cpus = Some(2));
    let greedy = json!({"runtime_constraints": {"vcpus": 3, "ram": 32 << 20}});
    let mut requested = Vec::new();
    for n in 0..4 {
        if n == 1 {
            requested.push(scene.request("true", greedy.clone()).await.1);
        } else {
            requested.push(scene.submit().await);
        }
    }
    for (n, container) in requested.iter().enumerate() {
        if n != 1 {
            scene.job(container).await;
        }
    }
    scene.says("more CPUs than may be asked for").await;
    let jobs = scene.jobs();
    assert!(jobs.iter().all(|job| job.name != requested[1].as_str()));
    assert_eq!(jobs.len(), 3);
}
