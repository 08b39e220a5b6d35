//! The command that lists jobs goes wrong: nothing is concluded from what is not a complete listing.

use arvados_client::records::{Container, ContainerState};
use serde_json::json;
use suite_tests::fake_sched::{Fault, Job, Rule};

use crate::scene::{Begin, Kind, PATIENCE, Scene, both, everywhere, given_back, held, running};

/// A container whose job waits in the scheduler and was seen there.
async fn waiting(kind: Kind) -> (Scene, arvados_client::ContainerUuid) {
    waiting_in(held(kind)).await
}

async fn waiting_in(begin: Begin) -> (Scene, arvados_client::ContainerUuid) {
    let scene = begin.up().await;
    let container = scene.submit().await;
    scene.job(&container).await;
    scene.looks(2).await;
    (scene, container)
}

/// So many listings go wrong, while a job waits: nothing happens to it, and it goes on afterwards.
async fn nothing_happens(kind: Kind, times: u32, fault: Fault, says: &str) {
    let (scene, container) = waiting(kind).await;
    let rule = Rule::next(kind.lists(), times, fault).having(kind.listing());
    scene.fake.faults([rule]);
    scene.looks(times as usize + 2).await;
    scene.is_undisturbed(&container).await;
    scene.says(says).await;
    // The dispatcher lives, and sees the job's end for what it is.
    scene.end_job(&scene.job(&container).await.id);
    scene
        .stack
        .wait_until(&container, PATIENCE, given_back)
        .await;
}

everywhere!(both, empty_with_exit_status_0_once, |kind| nothing_happens(
    kind,
    1,
    Fault::Mute,
    ""
));

// Two complete listings without the job say that it is gone; asked for it by name, the scheduler says it is not.
everywhere!(both, empty_with_exit_status_0_again_and_again, |kind| {
    let says = "but the scheduler knows it: it is left alone";
    nothing_happens(kind, 5, Fault::Mute, says)
});

// Neither the listings nor the answer to the question by name show the job: that is what "gone" means. Should it be
// there after all, it is ended, its token does not work any more, and the next attempt is the only one.
everywhere!(
    both,
    all_it_says_is_empty_with_exit_status_0,
    |kind| async move {
        let mut begin = held(kind);
        // Time for listings to show the job again, and for its end, before the next attempt.
        begin.flags = vec!["--min-retry-period", "40s"];
        let (mut scene, container) = waiting_in(begin).await;
        scene.fake.faults([Rule::every(kind.lists(), Fault::Mute)]);
        let back = |c: &Container| c.state == ContainerState::Queued;
        scene.stack.wait_until(&container, PATIENCE, back).await;
        scene.fake.faults([]);
        let first = || scene.jobs_of(container.as_str()).remove(0);
        scene
            .wait_for("the first job's end", || first().ended.is_some())
            .await;
        scene.release();
        scene.complete(&container, 2).await;
        let jobs = scene.jobs_of(container.as_str());
        // Real schedulers count in seconds.
        assert!(jobs[0].started.is_none() && jobs[0].ended <= Some(jobs[1].submitted));
    }
);

/// A job that was taken for gone starts after all, when its container is locked by the next attempt already: it does
/// not get in.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_hidden_cannot_use_the_next_attempt() {
    both(|kind| async move {
        let (scene, container) = waiting(kind).await;
        let first = scene.job(&container).await;
        let unheard = Fault::Nothing { say: String::new() };
        // The second job comes only when listings show jobs again: it is not to be taken for gone as well.
        let file = scene.stack.dir.path().join("listed-again");
        let until = Fault::Until { file: file.clone() };
        scene.fake.faults([
            Rule::every(kind.lists(), Fault::Mute),
            Rule::next(kind.submits(), 1, until),
        ]);
        scene
            .wait_for("the second submission", || {
                scene.fake.count(kind.submits()) == 2
            })
            .await;
        scene.fake.faults([Rule::every(kind.ends(), unheard)]);
        std::fs::write(&file, "").unwrap();
        scene
            .wait_for("the second job", || {
                scene.jobs_of(container.as_str()).len() == 2
            })
            .await;
        scene.fake.start_job(&first.id);
        let old = || scene.jobs_of(container.as_str()).remove(0);
        scene
            .wait_for("the end of the first job", || old().ended.is_some())
            .await;
        assert_ne!(old().exit, Some(0), "it ran the container");
        let record = scene.stack.container(&container).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Locked, 2)
        );
    })
    .await;
}

everywhere!(both, it_fails, |kind| {
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Unable to contact the controller (connect failure)".into(),
    };
    nothing_happens(kind, 4, fault, "Unable to contact the controller")
});

everywhere!(both, it_fails_and_its_exit_status_is_0, |kind| {
    let say = match kind {
        kind if kind.is_slurm() => {
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        }
        _ => "-- Failed to fetch ads from: <127.0.0.1:9618> : submit.example",
    };
    let fault = Fault::Nothing { say: say.into() };
    nothing_happens(kind, 4, fault, say)
});

everywhere!(both, its_last_line_is_cut, |kind| nothing_happens(
    kind,
    4,
    Fault::Cut { bytes: 9 },
    "nothing is concluded"
));

everywhere!(both, greetings_before_the_rows, |kind| nothing_happens(
    kind,
    4,
    Fault::Chatter,
    "nothing is concluded"
));

everywhere!(both, it_is_no_text, |kind| nothing_happens(
    kind,
    4,
    Fault::NotText,
    "nothing is concluded"
));

/// Somebody gave his job a name that is not UTF-8; all others are seen all the same.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_not_text_hide_nothing() {
    both(|kind| async move {
        let (scene, container) = waiting(kind).await;
        let mut foreign = scene.job(&container).await;
        foreign.name = "naïve".into();
        foreign.comment = None;
        if kind == Kind::Condor {
            foreign.ad.insert("ContainerUUID".into(), "naïve".into());
        }
        foreign.id = "900".into();
        scene.fake.plant(foreign);
        let rule = Rule::every(kind.lists(), Fault::Latin1);
        scene.fake.faults([rule.having(kind.listing())]);
        scene.looks(2).await;
        scene.is_undisturbed(&container).await;
        scene.end_job(&scene.job(&container).await.id);
        scene
            .stack
            .wait_until(&container, PATIENCE, given_back)
            .await;
        assert!(!scene.stack.dispatcher.said().contains("listing failed"));
    })
    .await;
}

fn flood(kind: Kind, bytes: usize) -> Fault {
    let line = match kind {
        kind if kind.is_slurm() => {
            format!("@99|RUNNING|(null)|n9|{}", "somebody else's ".repeat(50))
        }
        _ => String::new(),
    };
    Fault::Flood { bytes, line }
}

everywhere!(both, fifty_megabytes_are_read, |kind| async move {
    let scene = running(kind).up().await;
    let rule = Rule::next(kind.lists(), 2, flood(kind, 50 << 20)).having(kind.listing());
    scene.fake.faults([rule]);
    let container = scene.submit().await;
    scene.complete(&container, 1).await;
    assert!(!scene.stack.dispatcher.said().contains("listing failed"));
});

everywhere!(both, more_than_can_be_held_is_no_listing, |kind| {
    nothing_happens(kind, 2, flood(kind, 66 << 20), "wrote more than 64 MiB")
});

everywhere!(both, it_takes_its_time, |kind| nothing_happens(
    kind,
    1,
    Fault::Slow { ms: 3000 },
    ""
));

everywhere!(both, the_controller_limits_calls, |kind| nothing_happens(
    kind,
    2,
    Fault::Stall { ms: 1500 },
    ""
));

everywhere!(both, it_is_not_installed_for_a_while, |kind| async move {
    let (scene, container) = waiting(kind).await;
    scene.fake.install(kind.lists(), false);
    scene.says("could not be run").await;
    let failures = || {
        scene
            .stack
            .dispatcher
            .said()
            .matches("listing failed")
            .count()
    };
    scene
        .wait_for("four failed looks", || failures() >= 4)
        .await;
    scene.is_undisturbed(&container).await;
    scene.fake.install(kind.lists(), true);
    scene.looks(2).await;
    scene.is_undisturbed(&container).await;
});

/// Other people's jobs, other jobs of this user, arrays and heterogeneous jobs are none of the dispatcher's business.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_others_and_odd_names_are_left_alone() {
    both(|kind| async move {
        let scene = running(kind).up().await;
        let own = rustix::process::getuid().as_raw();
        let uuid = "local-dz642-000000000000000";
        #[rustfmt::skip]
        let rows = [
            ("901", own, "a | b | c", None), ("902", own, "", Some("x")), ("903", own + 1, uuid, Some("x y")),
            ("904_[4-9%2]", own, "array", None), ("905+1", own, "het", None), ("906_7", own, uuid, None),
            ("907", own, "naïve ☃ \u{202e}", Some("two words")), ("908", own, uuid, Some("attempt another-dispatcher")),
        ];
        for (id, user, name, comment) in rows {
            let ad = match kind {
                Kind::Slurm => json!({}),
                _ => json!({"ClusterId": 9, "JobStatus": 2, "ContainerUUID": name, "AttemptUUID": comment}),
            };
            scene.fake.plant(Job {
                id: id.into(),
                user,
                name: name.into(),
                comment: comment.map(str::to_owned),
                state: "RUNNING".into(),
                ad: ad.as_object().cloned().unwrap(),
                ..Job::default()
            });
        }
        let container = scene.submit().await;
        scene.complete(&container, 1).await;
        scene.looks(2).await;
        assert_eq!(scene.fake.count(kind.ends()), 0);
        assert!(!scene.stack.dispatcher.said().contains("listing failed"));
    })
    .await;
}

/// Array tasks and parts of heterogeneous jobs have numbers that are not only digits; a row of ours is ours all the
/// same, and is ended by that number.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_job_of_ours_with_an_odd_number_is_ended() {
    let (scene, container) = waiting(Kind::Slurm).await;
    let first = scene.job(&container).await;
    for id in ["123_[4-9%2]", "124_5", "125+1"] {
        scene.fake.plant(Job {
            id: id.into(),
            ..first.clone()
        });
    }
    scene
        .wait_for("the end of the others", || {
            let jobs = scene.jobs_of(container.as_str());
            let left = jobs.iter().filter(|job| job.ended.is_none()).count();
            left == 1
        })
        .await;
    let jobs = scene.jobs_of(container.as_str());
    assert_eq!(
        jobs.iter().find(|job| job.ended.is_none()).unwrap().id,
        first.id
    );
    let record = scene.stack.container(&container).await;
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );
}

everywhere!(
    both,
    a_scheduler_that_is_not_there_is_told_at_the_start,
    |kind| async move {
        let mut scene = held(kind).up().await;
        scene.stack.dispatcher.kill();
        scene.fake.install(kind.lists(), false);
        scene.stack.dispatcher.start();
        let status = scene.stack.dispatcher.end(PATIENCE);
        scene.says("could not be run").await;
        assert_eq!(status.code(), Some(78));
    }
);
