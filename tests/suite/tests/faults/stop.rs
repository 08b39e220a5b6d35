//! Faults of the command that cancels jobs: the job is still cancelled, and no other job is.

use std::path::Path;
use std::time::Instant;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};

use crate::backend::{Backend, on_every_scheduler, on_fake_and_real_slurm};
use crate::fixture::{Fixture, held, running};
use suite_tests::STEP_TIMEOUT;

/// The job of a container on hold is cancelled although the first two commands fail.
async fn job_is_ended_after_two_failures(backend: Backend, fault: Fault) {
    let mut options = held(backend);
    options.flags = vec!["--stop-grace", "1s"];
    let fixture = options.up().await;
    let (request, container) = fixture.request("true", json!({})).await;
    fixture.job(&container).await;
    fixture.wait_for_listings(1).await;
    fixture
        .fake
        .faults([Rule::next(backend.cancel_command(), 2, fault)]);
    let begun = Instant::now();
    fixture.set_priority(&request, 0).await;
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state != ContainerState::Locked
        })
        .await;
    assert!(fixture.job(&container).await.ended.is_some());
    let commands = fixture.fake.count(backend.cancel_command());
    // A job that ends slowly is cancelled again every ten seconds.
    let most = 6 + 2 * (begun.elapsed().as_secs() / 10) as usize;
    assert!(commands <= most, "{:?}", fixture.fake.calls());
    fixture.check_jobs(&container, 0);
}

async fn cancel_command_fails(backend: Backend) {
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    job_is_ended_after_two_failures(backend, fault).await;
}
on_every_scheduler!(cancel_command_fails);

async fn cancel_command_ends_the_job_and_fails(backend: Backend) {
    let fault = Fault::DoneButFails {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    job_is_ended_after_two_failures(backend, fault).await;
}
on_every_scheduler!(cancel_command_ends_the_job_and_fails);

async fn it_does_nothing_and_its_exit_status_is_0(backend: Backend) {
    let fault = Fault::Nothing { say: String::new() };
    job_is_ended_after_two_failures(backend, fault).await;
}
on_every_scheduler!(it_does_nothing_and_its_exit_status_is_0);

/// The container runs: crunch-run is asked to end, ends it and records that.
async fn a_running_job_is_asked_again_after_a_failure(backend: Backend) {
    let fixture = running(backend).up().await;
    let (request, container) = fixture.request("sleep 1000", json!({})).await;
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, |c| {
            c.state == ContainerState::Running
        })
        .await;
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    fixture
        .fake
        .faults([Rule::next(backend.cancel_command(), 1, fault)]);
    fixture.set_priority(&request, 0).await;
    let record = fixture.stack.end(&container, STEP_TIMEOUT).await;
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Cancelled, 1)
    );
    fixture.check_jobs(&container, 1);
}
on_every_scheduler!(a_running_job_is_asked_again_after_a_failure);

/// Creates this many pending jobs, and then sets all priorities to 0 at once; `rule` holds from
/// then on.
async fn many_on_hold(fixture: &Fixture, count: usize, rule: Rule) -> Vec<ContainerUuid> {
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(fixture.request("sleep 1000", json!({})).await);
    }
    for (_, container) in &requests {
        fixture.job(container).await;
    }
    fixture.wait_for_listings(1).await;
    fixture.fake.faults([rule]);
    fixture.proxy.set_open(false);
    for (request, _) in &requests {
        fixture.set_priority(request, 0).await;
    }
    fixture.proxy.set_open(true);
    requests
        .into_iter()
        .map(|(_, container)| container)
        .collect()
}

/// One command cancels many jobs, and also those that a failed command was to cancel.
async fn many_that_wait_are_ended_by_few_commands(backend: Backend) {
    let fixture = held(backend).up().await;
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    let rule = Rule::next(backend.cancel_command(), 1, fault);
    let containers = many_on_hold(&fixture, 20, rule).await;
    for container in &containers {
        let released = |c: &Container| c.state != ContainerState::Locked;
        fixture
            .stack
            .wait_until(container, STEP_TIMEOUT, released)
            .await;
        assert!(fixture.job(container).await.ended.is_some());
        fixture.check_jobs(container, 0);
    }
    let commands = fixture.fake.count(backend.cancel_command());
    assert!(commands <= 10, "{commands}: {:?}", fixture.fake.calls());
}
on_every_scheduler!(many_that_wait_are_ended_by_few_commands);

/// Runs in place of crunch-run, which would notice the priority by itself. Prints when it waits: an
/// earlier TERM may be lost.
const WAITS_FOR_TERM: &str =
    "/bin/sh -c \"trap 'kill $!; exit 75' TERM; /bin/sleep 1000 & echo waiting; wait\" crunch-run";

/// Slurm starts the jobs while the command that cancels them runs: each is asked to end, well
/// before it is killed.
async fn those_that_start_meanwhile_are_asked_to_end(backend: Backend) {
    let mut options = held(backend);
    options.flags = vec!["--stop-grace", "10m", "--crunch-run", WAITS_FOR_TERM];
    let mut fixture = options.up().await;
    let begun = tempfile::tempdir().unwrap();
    let file = begun.path().join("all-run");
    let until = Fault::Until { file: file.clone() };
    // One of the jobs may get a command of its own, if its record was being written when the others
    // were cancelled.
    let rule = Rule::every(backend.cancel_command(), until);
    let containers = many_on_hold(&fixture, 3, rule).await;
    fixture
        .wait_for("scancel", || {
            fixture.fake.count(backend.cancel_command()) > 0
        })
        .await;
    fixture.start_jobs();
    fixture
        .wait_for("all to run", || {
            let jobs = containers.iter().map(|c| fixture.jobs_of(c.as_str()));
            jobs.flatten().all(|job| job.started.is_some())
        })
        .await;
    let waits = |container: &ContainerUuid| says_waiting(&fixture, container);
    fixture
        .wait_for("all to wait for TERM", || containers.iter().all(waits))
        .await;
    std::fs::write(&file, "").unwrap();
    for container in &containers {
        let ended = |c: &Container| c.state != ContainerState::Locked;
        fixture
            .stack
            .wait_until(container, STEP_TIMEOUT, ended)
            .await;
        fixture
            .wait_for("the end of the job", || {
                let jobs = fixture.jobs_of(container.as_str());
                jobs.iter().all(|job| job.ended.is_some())
            })
            .await;
        fixture.check_jobs(container, 1);
    }
    assert_eq!(terms(&fixture), containers.len());
}
on_fake_and_real_slurm!(those_that_start_meanwhile_are_asked_to_end);

fn says_waiting(fixture: &Fixture, container: &ContainerUuid) -> bool {
    let dir = fixture
        .stack
        .dispatcher_state_dir()
        .join(container.as_str());
    std::fs::read_to_string(dir.join("output.log")).is_ok_and(|said| said.contains("waiting"))
}

/// Number of TERM signals sent to running jobs.
fn terms(fixture: &Fixture) -> usize {
    let calls = fixture.fake.calls();
    let is_term = |argument: &String| argument == "--signal=TERM";
    let terms = calls.iter().filter(|c| c.arguments.iter().any(is_term));
    terms.count()
}

/// Runs in place of crunch-run: after TERM it ends once the file exists. A second TERM would end it
/// at once.
fn ends_slowly(file: &Path) -> String {
    let file = file.display();
    format!(
        "/bin/sh -c \"trap 'asked=1' TERM; echo waiting; until [ -n \\\"$asked\\\" ] && [ -e {file} ]; do \
         /bin/sleep 0.2; done; exit 75\" crunch-run"
    )
}

/// While the job ends, one listing omits it and the next one shows it: it is not asked to end a
/// second time.
async fn a_job_that_a_listing_misses_is_asked_once(backend: Backend) {
    let temp_dir = tempfile::tempdir().unwrap();
    let end = temp_dir.path().join("end");
    let mut options = running(backend);
    let crunch_run = ends_slowly(&end).leak();
    options.flags = vec!["--stop-grace", "10m", "--crunch-run", crunch_run];
    let fixture = options.up().await;
    let (request, container) = fixture.request("sleep 1000", json!({})).await;
    let job = || fixture.jobs_of(container.as_str()).pop();
    fixture
        .wait_for("the container's start", || {
            says_waiting(&fixture, &container)
        })
        .await;
    fixture.wait_for_listings(1).await;
    fixture.set_priority(&request, 0).await;
    fixture.wait_for("TERM", || terms(&fixture) > 0).await;
    let missed =
        Rule::next(backend.list_command(), 1, Fault::Mute).having(backend.listing_argument());
    fixture.fake.faults([missed]);
    fixture.wait_for_listings(2).await;
    assert!(
        job().is_some_and(|j| j.ended.is_none()),
        "it was to be slow"
    );
    std::fs::write(end, "").unwrap();
    let released = |c: &Container| c.state != ContainerState::Locked;
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, released)
        .await;
    assert_eq!(terms(&fixture), 1, "{:?}", fixture.fake.calls());
    fixture.check_jobs(&container, 1);
}
on_fake_and_real_slurm!(a_job_that_a_listing_misses_is_asked_once);
