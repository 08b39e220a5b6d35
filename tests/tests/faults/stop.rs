//! The command that ends a job goes wrong: the job is ended all the same, and nothing else is.

use std::path::Path;
use std::time::Instant;

use arvados_client::ContainerUuid;
use arvados_client::records::{Container, ContainerState};
use serde_json::json;
use suite_tests::fake_sched::{Fault, Rule};

use crate::scene::{Kind, PATIENCE, Scene, everywhere, held, on_slurm, running};

/// A container on hold gives its job back although the first two commands to end it go wrong.
async fn first_go_wrong(kind: Kind, fault: Fault) {
    let mut begin = held(kind);
    begin.flags = vec!["--stop-grace", "1s"];
    let scene = begin.up().await;
    let (request, container) = scene.request("true", json!({})).await;
    scene.job(&container).await;
    scene.looks(1).await;
    scene.fake.faults([Rule::next(kind.ends(), 2, fault)]);
    let begun = Instant::now();
    scene.set_priority(&request, 0).await;
    scene
        .stack
        .wait_until(&container, PATIENCE, |c| c.state != ContainerState::Locked)
        .await;
    assert!(scene.job(&container).await.ended.is_some());
    let commands = scene.fake.count(kind.ends());
    // A job that the scheduler takes long to end is forced again every ten seconds.
    let most = 6 + 2 * (begun.elapsed().as_secs() / 10) as usize;
    assert!(commands <= most, "{:?}", scene.fake.calls());
    scene.check_jobs(&container, 0);
}

everywhere!(both, it_fails, |kind| {
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    first_go_wrong(kind, fault)
});

everywhere!(both, it_ends_the_job_and_fails, |kind| {
    let fault = Fault::DoneButFails {
        status: 1,
        say: "error: Socket timed out on send/recv operation".into(),
    };
    first_go_wrong(kind, fault)
});

everywhere!(both, it_does_nothing_and_its_exit_status_is_0, |kind| {
    let fault = Fault::Nothing { say: String::new() };
    first_go_wrong(kind, fault)
});

// The container runs: crunch-run is asked, ends it and says so.
everywhere!(
    both,
    a_running_job_is_asked_again_after_a_failure,
    |kind| async move {
        let scene = running(kind).up().await;
        let (request, container) = scene.request("sleep 1000", json!({})).await;
        scene
            .stack
            .wait_until(&container, PATIENCE, |c| c.state == ContainerState::Running)
            .await;
        let fault = Fault::Refuse {
            status: 1,
            say: "error: Socket timed out on send/recv operation".into(),
        };
        scene.fake.faults([Rule::next(kind.ends(), 1, fault)]);
        scene.set_priority(&request, 0).await;
        let record = scene.stack.end(&container, PATIENCE).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Cancelled, 1)
        );
        scene.check_jobs(&container, 1);
    }
);

/// So many jobs that wait, for containers that are all put on hold at one moment; from then on `rule` holds.
async fn many_on_hold(scene: &Scene, count: usize, rule: Rule) -> Vec<ContainerUuid> {
    let mut requests = Vec::new();
    for _ in 0..count {
        requests.push(scene.request("sleep 1000", json!({})).await);
    }
    for (_, container) in &requests {
        scene.job(container).await;
    }
    scene.looks(1).await;
    scene.fake.faults([rule]);
    scene.proxy.open(false);
    for (request, _) in &requests {
        scene.set_priority(request, 0).await;
    }
    scene.proxy.open(true);
    requests
        .into_iter()
        .map(|(_, container)| container)
        .collect()
}

// A command ends many of them, and also those that were to be ended by one that went wrong.
everywhere!(
    both,
    many_that_wait_are_ended_by_few_commands,
    |kind| async move {
        let scene = held(kind).up().await;
        let fault = Fault::Refuse {
            status: 1,
            say: "error: Socket timed out on send/recv operation".into(),
        };
        let rule = Rule::next(kind.ends(), 1, fault);
        let containers = many_on_hold(&scene, 20, rule).await;
        for container in &containers {
            let released = |c: &Container| c.state != ContainerState::Locked;
            scene.stack.wait_until(container, PATIENCE, released).await;
            assert!(scene.job(container).await.ended.is_some());
            scene.check_jobs(container, 0);
        }
        let commands = scene.fake.count(kind.ends());
        assert!(commands <= 10, "{commands}: {:?}", scene.fake.calls());
    }
);

/// In crunch-run's place, which would see by itself that nobody wants its container any more. It says that it waits:
/// a TERM that comes before may be lost on its way.
const WAITS_FOR_TERM: &str =
    "/bin/sh -c \"trap 'kill $!; exit 75' TERM; /bin/sleep 1000 & echo waiting; wait\" crunch-run";

// Slurm starts them while the command that was to cancel them is on its way: each is asked to end, well before it is
// forced to.
on_slurm!(
    those_that_start_meanwhile_are_asked_to_end,
    |kind| async move {
        let mut begin = held(kind);
        begin.flags = vec!["--stop-grace", "10m", "--crunch-run", WAITS_FOR_TERM];
        let mut scene = begin.up().await;
        let begun = tempfile::tempdir().unwrap();
        let file = begun.path().join("all-run");
        let until = Fault::Until { file: file.clone() };
        // One of them may get a command of its own, as its record was being written when the others were to be ended.
        let rule = Rule::every(kind.ends(), until);
        let containers = many_on_hold(&scene, 3, rule).await;
        scene
            .wait_for("scancel", || scene.fake.count(kind.ends()) > 0)
            .await;
        scene.release();
        scene
            .wait_for("all to run", || {
                let jobs = containers.iter().map(|c| scene.jobs_of(c.as_str()));
                jobs.flatten().all(|job| job.started.is_some())
            })
            .await;
        let waits = |container: &ContainerUuid| says_waiting(&scene, container);
        scene
            .wait_for("all to wait for TERM", || containers.iter().all(waits))
            .await;
        std::fs::write(&file, "").unwrap();
        for container in &containers {
            let ended = |c: &Container| c.state != ContainerState::Locked;
            scene.stack.wait_until(container, PATIENCE, ended).await;
            scene
                .wait_for("its end", || {
                    let jobs = scene.jobs_of(container.as_str());
                    jobs.iter().all(|job| job.ended.is_some())
                })
                .await;
            scene.check_jobs(container, 1);
        }
        assert_eq!(terms(&scene), containers.len());
    }
);

fn says_waiting(scene: &Scene, container: &ContainerUuid) -> bool {
    let dir = scene.stack.run_dir().join(container.as_str());
    std::fs::read_to_string(dir.join("output.log")).is_ok_and(|said| said.contains("waiting"))
}

/// How often a running job was asked to end.
fn terms(scene: &Scene) -> usize {
    let calls = scene.fake.calls();
    let is_term = |argument: &String| argument == "--signal=TERM";
    let terms = calls.iter().filter(|c| c.arguments.iter().any(is_term));
    terms.count()
}

/// In crunch-run's place: asked to end, it does so when the file is there, and a second TERM would be too much.
fn ends_slowly(file: &Path) -> String {
    let file = file.display();
    format!(
        "/bin/sh -c \"trap 'asked=1' TERM; echo waiting; until [ -n \\\"$asked\\\" ] && [ -e {file} ]; do \
         /bin/sleep 0.2; done; exit 75\" crunch-run"
    )
}

// While it ends, a listing does not show the job, and the next one does: it is not asked to end a second time.
on_slurm!(
    a_job_that_a_listing_misses_is_asked_once,
    |kind| async move {
        let place = tempfile::tempdir().unwrap();
        let end = place.path().join("end");
        let mut begin = running(kind);
        let crunch_run = ends_slowly(&end).leak();
        begin.flags = vec!["--stop-grace", "10m", "--crunch-run", crunch_run];
        let scene = begin.up().await;
        let (request, container) = scene.request("sleep 1000", json!({})).await;
        let job = || scene.jobs_of(container.as_str()).pop();
        scene
            .wait_for("its start", || says_waiting(&scene, &container))
            .await;
        scene.looks(1).await;
        scene.set_priority(&request, 0).await;
        scene.wait_for("TERM", || terms(&scene) > 0).await;
        let missed = Rule::next(kind.lists(), 1, Fault::Mute).having(kind.listing());
        scene.fake.faults([missed]);
        scene.looks(2).await;
        assert!(
            job().is_some_and(|j| j.ended.is_none()),
            "it was to be slow"
        );
        std::fs::write(end, "").unwrap();
        let released = |c: &Container| c.state != ContainerState::Locked;
        scene.stack.wait_until(&container, PATIENCE, released).await;
        assert_eq!(terms(&scene), 1, "{:?}", scene.fake.calls());
        scene.check_jobs(&container, 1);
    }
);
