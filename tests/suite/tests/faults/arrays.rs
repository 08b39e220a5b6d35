//! Faults while equal containers are submitted as one job array: no job runs without a name, no
//! container runs twice, and a refused array is submitted as single jobs with the same attempts.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use arvados_client::ContainerUuid;
use suite_tests::fake_sched::{Fault, Job, Rule};

use crate::backend::{Backend, on_fake_and_real_slurm};
use crate::fixture::{Fixture, running};
use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::FailPointDir;

const CONTAINERS: usize = 10;
/// The fail point between the command that creates the array and the one that names its elements.
const AFTER_SUBMISSION: &str = "dispatcher.command-answered";
/// Pause of submissions after five failed ones in a row.
const BREAKER_COOLDOWN: Duration = Duration::from_secs(30);

/// Containers that a new dispatcher finds in the queue together.
async fn waiting(backend: Backend, rules: Vec<Rule>) -> (Fixture, Vec<ContainerUuid>) {
    let mut fixture = running(backend).up().await;
    fixture.stop_dispatcher().await;
    let mut containers = Vec::new();
    for _ in 0..CONTAINERS {
        containers.push(fixture.submit().await);
    }
    fixture.fake.faults(rules);
    (fixture, containers)
}

/// Elements that never had a name.
fn nameless(fixture: &Fixture) -> Vec<Job> {
    fixture.jobs_of("not-yet-a-container")
}

/// Waits until the unnamed array elements are cancelled; they never ran.
async fn nameless_are_gone(fixture: &Fixture, count: usize) {
    let over = || {
        let jobs = nameless(fixture);
        // A real Slurm shows what is left of an array after its end as one.
        let all = match fixture.backend {
            Backend::Slurm => jobs.len() == count,
            _ => jobs.is_empty() == (count == 0),
        };
        all && jobs.iter().all(|job| job.ended.is_some())
    };
    fixture
        .wait_for("the unnamed jobs to be cancelled", over)
        .await;
    assert!(nameless(fixture).iter().all(|job| job.started.is_none()));
}

async fn equal_containers_are_one_array_and_each_runs_its_own(backend: Backend) {
    let (mut fixture, containers) = waiting(backend, vec![]).await;
    fixture.stack.dispatcher.start();
    for container in &containers {
        fixture.complete(container, 1).await;
        let jobs = fixture.jobs_of(container.as_str());
        assert!(jobs[0].id.starts_with("1_"), "{jobs:#?}");
    }
    assert_eq!(fixture.fake.count("sbatch"), 1);
    assert!(nameless(&fixture).is_empty());
}
on_fake_and_real_slurm!(equal_containers_are_one_array_and_each_runs_its_own);

async fn an_array_that_is_not_taken_costs_no_attempt(backend: Backend) {
    let say = "sbatch: error: Batch job submission failed: Invalid job array specification";
    let refuse = Fault::Refuse {
        status: 1,
        say: say.into(),
    };
    let although = Fault::DoneButFails {
        status: 1,
        say: "sbatch: error: Socket timed out on send/recv operation".into(),
    };
    for (fault, made) in [
        (refuse, 0),
        (although, CONTAINERS),
        (Fault::Mute, CONTAINERS),
    ] {
        let (mut fixture, containers) =
            waiting(backend, vec![Rule::next("sbatch", 1, fault)]).await;
        fixture.stack.dispatcher.start();
        for container in &containers {
            fixture.complete(container, 1).await;
        }
        assert_eq!(fixture.fake.count("sbatch"), 1 + CONTAINERS);
        nameless_are_gone(&fixture, made).await;
    }
}
on_fake_and_real_slurm!(an_array_that_is_not_taken_costs_no_attempt);

/// The first scontrol of a dispatcher's life asks for the maximum size of an array.
async fn what_got_no_name_is_submitted_again_and_what_got_one_is_not(backend: Backend) {
    let refuse = Fault::Refuse {
        status: 1,
        say: "slurm_update error: Unable to contact slurm controller".into(),
    };
    let although = Fault::DoneButFails {
        status: 1,
        say: "slurm_update error: Socket timed out on send/recv operation".into(),
    };
    for (fault, locks, lost) in [(refuse, 2, CONTAINERS), (although, 1, 0)] {
        // Two calls of scontrol come first: for the limits of arrays and for the partitions.
        let rule = Rule::next("scontrol", 1, fault).after(2);
        let (mut fixture, containers) = waiting(backend, vec![rule]).await;
        fixture.stack.dispatcher.start();
        // If no element got a name, the circuit breaker delays all of them. The rest takes no
        // longer than usual.
        let timeout = STEP_TIMEOUT + BREAKER_COOLDOWN;
        fixture.stack.end(&containers[0], timeout).await;
        for container in &containers {
            fixture.complete(container, locks).await;
        }
        nameless_are_gone(&fixture, lost).await;
    }
}
on_fake_and_real_slurm!(what_got_no_name_is_submitted_again_and_what_got_one_is_not);

fn fake_dir(fixture: &Fixture) -> PathBuf {
    fixture.stack.dir.path().join("fake")
}

/// Names an element as the dispatcher would have.
async fn name(fixture: &Fixture, container: &ContainerUuid, job: &str) {
    let attempt = fixture.stack.container(container).await.locked_by_uuid;
    let label =
        std::fs::read_to_string(fixture.stack.dispatcher_state_dir().join("label")).unwrap();
    let line = format!(
        "update JobId={job} JobName={container} Comment={},{label} StartTime=now\n",
        attempt.unwrap()
    );
    let mut scontrol = Command::new(fake_dir(fixture).join("bin/scontrol"))
        .envs(fixture.fake.environment())
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    scontrol
        .stdin
        .take()
        .unwrap()
        .write_all(line.as_bytes())
        .unwrap();
    assert!(scontrol.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_the_names_were_given() {
    let (mut fixture, containers) = waiting(Backend::Slurm, vec![]).await;
    let points = FailPointDir::of(&fixture.stack.points_dir());
    points.block_at(AFTER_SUBMISSION);
    fixture.stack.dispatcher.start();
    fixture
        .wait_for("the array", || nameless(&fixture).len() == CONTAINERS)
        .await;
    fixture.stack.dispatcher.kill();
    // A command of the killed dispatcher went on and named some elements; their script shows it.
    let script = || {
        let script = fake_dir(&fixture).join("jobs/1_0/script");
        std::fs::read_to_string(script).unwrap_or_default()
    };
    let names_all = || {
        let script = script();
        containers.iter().all(|c| script.contains(c.as_str()))
    };
    fixture.wait_for("the script of the array", names_all).await;
    let script = script();
    let mut named = Vec::new();
    for container in &containers {
        let line = script
            .lines()
            .find(|line| line.contains(container.as_str()));
        let number: usize = line.unwrap().split(')').next().unwrap().parse().unwrap();
        if number < CONTAINERS / 2 {
            name(&fixture, container, &format!("1_{number}")).await;
            named.push(container.clone());
        }
    }
    points.unblock(AFTER_SUBMISSION);
    fixture.stack.dispatcher.start();
    for container in &containers {
        let locks = if named.contains(container) { 1 } else { 2 };
        fixture.complete(container, locks).await;
    }
    nameless_are_gone(&fixture, CONTAINERS - named.len()).await;
}
