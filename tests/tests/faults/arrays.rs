//! Many equal containers as one job array, and what goes wrong on the way: nothing runs without a name, nothing runs
//! twice, and what was not taken together goes alone with the attempt it has.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use arvados_client::ContainerUuid;
use suite_tests::fake_sched::{Fault, Job, Rule};

use crate::points::Points;
use crate::scene::{Kind, PATIENCE, Scene, on_slurm, running};

const COUNT: usize = 10;
/// Between the command that makes the array and the one that names its elements.
const BETWEEN: &str = "dispatcher.command-answered";
/// Nothing new is started for so long after five submissions in a row that came to nothing.
const BREAKER: Duration = Duration::from_secs(30);

/// Containers that a dispatcher finds all at once.
async fn waiting(kind: Kind, rules: Vec<Rule>) -> (Scene, Vec<ContainerUuid>) {
    let mut scene = running(kind).up().await;
    scene.stop_dispatcher().await;
    let mut containers = Vec::new();
    for _ in 0..COUNT {
        containers.push(scene.submit().await);
    }
    scene.fake.faults(rules);
    (scene, containers)
}

/// Elements that never had a name.
fn nameless(scene: &Scene) -> Vec<Job> {
    scene.jobs_of("not-yet-a-container")
}

/// They never ran, and are gone.
async fn nameless_are_gone(scene: &Scene, count: usize) {
    let over = || {
        let jobs = nameless(scene);
        // A real Slurm shows what is left of an array after its end as one.
        let all = match scene.kind {
            Kind::Slurm => jobs.len() == count,
            _ => jobs.is_empty() == (count == 0),
        };
        all && jobs.iter().all(|job| job.ended.is_some())
    };
    scene.wait_for("the nameless to be cancelled", over).await;
    assert!(nameless(scene).iter().all(|job| job.started.is_none()));
}

on_slurm!(
    equal_containers_are_one_array_and_each_runs_its_own,
    |kind| async move {
        let (mut scene, containers) = waiting(kind, vec![]).await;
        scene.stack.dispatcher.start();
        for container in &containers {
            scene.complete(container, 1).await;
            let jobs = scene.jobs_of(container.as_str());
            assert!(jobs[0].id.starts_with("1_"), "{jobs:#?}");
        }
        assert_eq!(scene.fake.count("sbatch"), 1);
        assert!(nameless(&scene).is_empty());
    }
);

on_slurm!(
    an_array_that_is_not_taken_costs_no_attempt,
    |kind| async move {
        let say = "sbatch: error: Batch job submission failed: Invalid job array specification";
        let refuse = Fault::Refuse {
            status: 1,
            say: say.into(),
        };
        let although = Fault::DoneButFails {
            status: 1,
            say: "sbatch: error: Socket timed out on send/recv operation".into(),
        };
        for (fault, made) in [(refuse, 0), (although, COUNT), (Fault::Mute, COUNT)] {
            let (mut scene, containers) = waiting(kind, vec![Rule::next("sbatch", 1, fault)]).await;
            scene.stack.dispatcher.start();
            for container in &containers {
                scene.complete(container, 1).await;
            }
            assert_eq!(scene.fake.count("sbatch"), 1 + COUNT);
            nameless_are_gone(&scene, made).await;
        }
    }
);

// The first scontrol of a life asks how large an array may be.
on_slurm!(
    what_got_no_name_is_submitted_again_and_what_got_one_is_not,
    |kind| async move {
        let refuse = Fault::Refuse {
            status: 1,
            say: "slurm_update error: Unable to contact slurm controller".into(),
        };
        let although = Fault::DoneButFails {
            status: 1,
            say: "slurm_update error: Socket timed out on send/recv operation".into(),
        };
        for (fault, locks, lost) in [(refuse, 2, COUNT), (although, 1, 0)] {
            // It is asked for the limits of arrays and for the partitions before.
            let rule = Rule::next("scontrol", 1, fault).after(2);
            let (mut scene, containers) = waiting(kind, vec![rule]).await;
            scene.stack.dispatcher.start();
            // Where none got a name the breaker holds up all of them. What follows takes no longer than always.
            let patience = PATIENCE + BREAKER;
            scene.stack.end(&containers[0], patience).await;
            for container in &containers {
                scene.complete(container, locks).await;
            }
            nameless_are_gone(&scene, lost).await;
        }
    }
);

fn fake_dir(scene: &Scene) -> PathBuf {
    scene.stack.dir.path().join("fake")
}

/// Names an element as the dispatcher would have.
async fn name(scene: &Scene, container: &ContainerUuid, job: &str) {
    let attempt = scene.stack.container(container).await.locked_by_uuid;
    let label = std::fs::read_to_string(scene.stack.run_dir().join("label")).unwrap();
    let line = format!(
        "update JobId={job} JobName={container} Comment={},{label} StartTime=now\n",
        attempt.unwrap()
    );
    let mut scontrol = Command::new(fake_dir(scene).join("bin/scontrol"))
        .envs(scene.fake.environment())
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
    let (mut scene, containers) = waiting(Kind::Slurm, vec![]).await;
    let points = Points::of(&scene.stack.points_dir());
    points.hold(BETWEEN);
    scene.stack.dispatcher.start();
    scene
        .wait_for("the array", || nameless(&scene).len() == COUNT)
        .await;
    scene.stack.dispatcher.kill();
    // A command of ours outlived us, and named some; which, its script says.
    let script = || {
        let script = fake_dir(&scene).join("jobs/1_0/script");
        std::fs::read_to_string(script).unwrap_or_default()
    };
    let names_all = || {
        let script = script();
        containers.iter().all(|c| script.contains(c.as_str()))
    };
    scene.wait_for("its script", names_all).await;
    let script = script();
    let mut named = Vec::new();
    for container in &containers {
        let line = script
            .lines()
            .find(|line| line.contains(container.as_str()));
        let number: usize = line.unwrap().split(')').next().unwrap().parse().unwrap();
        if number < COUNT / 2 {
            name(&scene, container, &format!("1_{number}")).await;
            named.push(container.clone());
        }
    }
    points.release(BETWEEN);
    scene.stack.dispatcher.start();
    for container in &containers {
        let locks = if named.contains(container) { 1 } else { 2 };
        scene.complete(container, locks).await;
    }
    nameless_are_gone(&scene, COUNT - named.len()).await;
}
