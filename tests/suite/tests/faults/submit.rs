//! Faults of the submit command: each attempt still makes at most one job.

use arvados_client::records::ContainerState;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::fake_sched::{Fault, Rule};

use serde_json::json;

use crate::backend::{Backend, on_every_scheduler};
use crate::fixture::{held, running};

/// Parts of the dispatcher's log lines about submissions.
const DISPATCHED: &str = r#"event="dispatched""#;
const SUBMIT_FAILED: &str = r#"event="submit_failed""#;

/// The first submission fails; the container completes after this number of locks and submissions.
async fn completes_after_first_submission_fails(
    backend: Backend,
    fault: Fault,
    locks: u64,
    says: &str,
) {
    let fixture = running(backend).up().await;
    fixture
        .fake
        .faults([Rule::next(backend.submit_command(), 1, fault)]);
    let container = fixture.submit().await;
    fixture.complete(&container, locks).await;
    // Before the second lock a test job may show whether HTCondor accepts such jobs.
    let tests = match backend {
        Backend::Condor | Backend::RealCondor => fixture.fake.count("condor_rm"),
        _ => 0,
    };
    let submissions = fixture.fake.count(backend.submit_command()) - tests;
    assert_eq!(submissions as u64, locks, "submissions");
    fixture.wait_for_log(says).await;
}

fn timed_out() -> String {
    "error: Batch job submission failed: Socket timed out on send/recv operation".into()
}

async fn accepted_although_its_exit_status_says_no(backend: Backend) {
    let fault = Fault::DoneButFails {
        status: 1,
        say: timed_out(),
    };
    completes_after_first_submission_fails(backend, fault, 1, SUBMIT_FAILED).await;
}
on_every_scheduler!(accepted_although_its_exit_status_says_no);

async fn not_accepted_and_its_exit_status_says_so(backend: Backend) {
    let fault = Fault::Refuse {
        status: 1,
        say: "error: the queue is full".into(),
    };
    completes_after_first_submission_fails(backend, fault, 2, "the queue is full").await;
}
on_every_scheduler!(not_accepted_and_its_exit_status_says_so);

async fn accepted_without_telling_the_number(backend: Backend) {
    completes_after_first_submission_fails(backend, Fault::Mute, 1, SUBMIT_FAILED).await;
}
on_every_scheduler!(accepted_without_telling_the_number);

async fn not_accepted_although_its_exit_status_is_0(backend: Backend) {
    let fault = Fault::Nothing { say: String::new() };
    completes_after_first_submission_fails(backend, fault, 2, DISPATCHED).await;
}
on_every_scheduler!(not_accepted_although_its_exit_status_is_0);

async fn greetings_and_warnings_before_the_number(backend: Backend) {
    let id = if backend.is_slurm() {
        "job 1"
    } else {
        "job 1.0"
    };
    completes_after_first_submission_fails(
        backend,
        Fault::Chatter,
        1,
        &format!("dispatched as {id} "),
    )
    .await;
}
on_every_scheduler!(greetings_and_warnings_before_the_number);

/// The site refuses jobs, and its words are told. Such jobs are held back.
async fn refused(backend: Backend, fault: Fault, words: &str) {
    let fixture = running(backend).up().await;
    let every = Rule::every(backend.submit_command(), fault);
    fixture
        .fake
        .faults([every.clone().having("--test-only"), every]);
    let first = fixture.submit().await;
    fixture.wait_for_event("submissions_held").await;
    let second = fixture.submit().await;
    fixture.wait_for_log(words).await;
    fixture.wait_for_listings(4).await;
    for (container, locks) in [(&first, 1), (&second, 0)] {
        assert_eq!(fixture.stack.container(container).await.lock_count, locks);
    }
    fixture.fake.faults([]);
    for (container, locks) in [(&first, 2), (&second, 1)] {
        fixture.complete(container, locks).await;
    }
}

/// A site's own command refuses a job as if it had accepted it.
async fn refused_with_exit_status_0(backend: Backend) {
    let say = "Job not submitted: the monthly budget is spent".to_owned();
    refused(backend, Fault::Says { say }, "the monthly budget is spent").await;
}
on_every_scheduler!(refused_with_exit_status_0);

/// The words are those of an outage, but the scheduler answers.
async fn refused_in_the_words_of_an_outage(backend: Backend) {
    let say = "ERROR: try again later (connection refused: the budget service timed out)".into();
    let fault = Fault::Refuse { status: 1, say };
    refused(backend, fault, "the budget service timed out").await;
}
on_every_scheduler!(refused_in_the_words_of_an_outage);

/// No attempt is given up for a scheduler that was not asked, nor by a kill of the dispatcher then.
async fn the_scheduler_is_not_reached(backend: Backend) {
    let mut fixture = running(backend).up().await;
    let say = match backend.is_slurm() {
        true => {
            "sbatch: error: Batch job submission failed: \
             Unable to contact slurm controller (connect failure)"
        }
        false => "ERROR: Can't find address of local schedd",
    };
    let away = |command| {
        let say = say.into();
        Rule::every(command, Fault::Refuse { status: 1, say })
    };
    // Listings work again before submissions do.
    let asks = if backend.is_slurm() {
        "--format=%i"
    } else {
        "ClusterId == 0"
    };
    let submit = backend.submit_command();
    fixture
        .fake
        .faults([away(submit), away(backend.list_command()).having(asks)]);
    let container = fixture.submit().await;
    let is_tried_again = || fixture.fake.count(submit) >= 3;
    fixture
        .wait_for("further submissions", is_tried_again)
        .await;
    let points = FailPointDir::of(&fixture.stack.points_dir());
    points.arm("dispatcher.before-submit", 1);
    let is_killed = || !points.killed().is_empty();
    fixture.wait_for("the dispatcher's end", is_killed).await;
    fixture.stack.dispatcher.kill();
    fixture.fake.faults([]);
    fixture.stack.dispatcher.start();
    fixture.complete(&container, 1).await;
}
on_every_scheduler!(the_scheduler_is_not_reached);

async fn the_end_of_its_answer_is_missing(backend: Backend) {
    let says = match backend.is_slurm() {
        // "1\n" is all of it.
        true => SUBMIT_FAILED,
        false => DISPATCHED,
    };
    completes_after_first_submission_fails(backend, Fault::Cut { bytes: 2 }, 1, says).await;
}
on_every_scheduler!(the_end_of_its_answer_is_missing);

async fn submit_answer_is_no_text(backend: Backend) {
    completes_after_first_submission_fails(backend, Fault::NotText, 1, DISPATCHED).await;
}
on_every_scheduler!(submit_answer_is_no_text);

async fn fifty_megabytes_before_the_number(backend: Backend) {
    let fault = Fault::Flood {
        bytes: 50 << 20,
        line: "a site's advice".into(),
    };
    let id = if backend.is_slurm() {
        "job 1"
    } else {
        "job 1.0"
    };
    completes_after_first_submission_fails(backend, fault, 1, &format!("dispatched as {id} "))
        .await;
}
on_every_scheduler!(fifty_megabytes_before_the_number);

async fn submit_command_is_slow(backend: Backend) {
    completes_after_first_submission_fails(backend, Fault::Slow { ms: 3000 }, 1, DISPATCHED).await;
}
on_every_scheduler!(submit_command_is_slow);

/// HTCondor accepts all jobs of a submission or none. One job that it never accepts must not block
/// the others.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_never_taken_does_not_hold_up_the_others() {
    let fixture = held(Backend::Condor).up().await;
    fixture
        .fake
        .change(|state| state.settings.max_cpus = Some(2));
    let greedy = json!({"runtime_constraints": {"vcpus": 3, "ram": 32 << 20}});
    let mut requested = Vec::new();
    for n in 0..4 {
        if n == 1 {
            requested.push(fixture.request("true", greedy.clone()).await.1);
        } else {
            requested.push(fixture.submit().await);
        }
    }
    for (n, container) in requested.iter().enumerate() {
        if n != 1 {
            fixture.job(container).await;
        }
    }
    fixture
        .wait_for_log("more CPUs than may be asked for")
        .await;
    // Jobs of tests whether HTCondor accepts such jobs now have other names.
    let jobs = requested
        .iter()
        .map(|container| fixture.jobs_of(container.as_str()).len());
    assert_eq!(jobs.collect::<Vec<_>>(), [1, 0, 1, 1]);
}

/// HTCondor takes no more jobs of this user: submissions wait without a lock until it does, and the
/// reason is told.
async fn a_full_schedd_costs_one_lock(backend: Backend) {
    let fixture = running(backend).up().await;
    let full = Fault::Refuse {
        status: 1,
        say:
            "ERROR: Failed to create proc\nNumber of submitted jobs would exceed MAX_JOBS_PER_OWNER"
                .into(),
    };
    fixture.fake.faults([Rule::every("condor_submit", full)]);
    let first = fixture.submit().await;
    fixture.wait_for_event("submissions_held").await;
    let second = fixture.submit().await;
    let submissions = || fixture.fake.count("condor_submit");
    // Four tests, of which the first was run with the submission.
    let until = submissions() + 3;
    fixture
        .wait_for("three tests", || submissions() >= until)
        .await;
    for (container, locks) in [(&first, 1), (&second, 0)] {
        let record = fixture.stack.container(container).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Queued, locks)
        );
    }
    assert_eq!(fixture.jobs().len(), 0);
    fixture.fake.faults([]);
    for (container, locks) in [(&first, 2), (&second, 1)] {
        fixture.complete(container, locks).await;
    }
}

mod a_full_schedd_costs_one_lock {
    use crate::backend::Backend;

    #[tokio::test(flavor = "multi_thread")]
    async fn fake() {
        super::a_full_schedd_costs_one_lock(Backend::Condor).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn htcondor() {
        super::a_full_schedd_costs_one_lock(Backend::RealCondor).await;
    }
}
