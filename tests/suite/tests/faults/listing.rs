//! Faults of the command that lists jobs: the dispatcher concludes nothing from an incomplete
//! listing.

use arvados_client::records::{Container, ContainerState};
use serde_json::json;
use suite_tests::fake_sched::{COMMANDS, Fault, Job, Rule};

use crate::backend::{Backend, on_every_scheduler, on_fake_schedulers};
use crate::fixture::{Fixture, FixtureOptions, held, running, was_unlocked};
use suite_tests::STEP_TIMEOUT;

/// Part of the dispatcher's log line about a listing that it cannot use.
const LISTING_FAILED: &str = r#"event="listing_failed""#;

/// A container whose job is pending and was listed.
async fn waiting(backend: Backend) -> (Fixture, arvados_client::ContainerUuid) {
    waiting_in(held(backend)).await
}

async fn waiting_in(options: FixtureOptions) -> (Fixture, arvados_client::ContainerUuid) {
    let fixture = options.up().await;
    let container = fixture.submit().await;
    fixture.job(&container).await;
    fixture.wait_for_listings(2).await;
    (fixture, container)
}

/// `times` listings fail while a job waits: the job is not touched, and the container completes
/// afterwards.
async fn job_stays_undisturbed(backend: Backend, times: u32, fault: Fault, says: &str) {
    let (fixture, container) = waiting(backend).await;
    let rule = Rule::next(backend.list_command(), times, fault).having(backend.listing_argument());
    fixture.fake.faults([rule]);
    fixture.wait_for_listings(times as usize + 2).await;
    fixture.assert_undisturbed(&container).await;
    fixture.wait_for_log(says).await;
    // The dispatcher still runs and reports the job's end.
    fixture.end_job(&fixture.job(&container).await.id);
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, was_unlocked)
        .await;
}

async fn empty_with_exit_status_0_once(backend: Backend) {
    job_stays_undisturbed(backend, 1, Fault::Mute, "").await;
}
on_every_scheduler!(empty_with_exit_status_0_once);

/// Two complete listings omit the job; a query for this job shows that it still exists.
async fn empty_with_exit_status_0_again_and_again(backend: Backend) {
    let says = r#"event="action_failed""#;
    job_stays_undisturbed(backend, 5, Fault::Mute, says).await;
}
on_every_scheduler!(empty_with_exit_status_0_again_and_again);

/// Neither the listings nor the query for this job show it: that is what "absent" means. If the job
/// still exists, it is cancelled, its token is revoked, and the next attempt is the only one.
async fn every_answer_is_empty_with_exit_status_0(backend: Backend) {
    let mut options = held(backend);
    // Time for listings to show the job again, and for its end, before the next attempt.
    options.flags = vec!["--min-retry-period", "40s"];
    let (mut fixture, container) = waiting_in(options).await;
    fixture
        .fake
        .faults([Rule::every(backend.list_command(), Fault::Mute)]);
    let back = |c: &Container| c.state == ContainerState::Queued;
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, back)
        .await;
    fixture.fake.faults([]);
    let first = || fixture.jobs_of(container.as_str()).remove(0);
    fixture
        .wait_for("the first job's end", || first().ended.is_some())
        .await;
    fixture.start_jobs();
    fixture.complete(&container, 2).await;
    let jobs = fixture.jobs_of(container.as_str());
    // Real schedulers count in seconds.
    assert!(jobs[0].started.is_none() && jobs[0].ended <= Some(jobs[1].submitted));
}
on_every_scheduler!(every_answer_is_empty_with_exit_status_0);

/// A job that counted as absent starts after all, when the next attempt holds the lock: it does not
/// run the container.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_was_hidden_cannot_use_the_next_attempt() {
    on_fake_schedulers(|backend| async move {
        let (fixture, container) = waiting(backend).await;
        let first = fixture.job(&container).await;
        let unheard = Fault::Nothing { say: String::new() };
        // The second job is created only when listings show jobs again, so that it does not count
        // as absent as well.
        let file = fixture.stack.dir.path().join("listed-again");
        let until = Fault::Until { file: file.clone() };
        fixture.fake.faults([
            Rule::every(backend.list_command(), Fault::Mute),
            Rule::next(backend.submit_command(), 1, until),
        ]);
        fixture
            .wait_for("the second submission", || {
                fixture.fake.count(backend.submit_command()) == 2
            })
            .await;
        fixture
            .fake
            .faults([Rule::every(backend.cancel_command(), unheard)]);
        std::fs::write(&file, "").unwrap();
        fixture
            .wait_for("the second job", || {
                fixture.jobs_of(container.as_str()).len() == 2
            })
            .await;
        fixture.fake.start_job(&first.id);
        let old = || fixture.jobs_of(container.as_str()).remove(0);
        fixture
            .wait_for("the end of the first job", || old().ended.is_some())
            .await;
        assert_ne!(old().exit, Some(0), "it ran the container");
        let record = fixture.stack.container(&container).await;
        assert_eq!(
            (record.state, record.lock_count),
            (ContainerState::Locked, 2)
        );
    })
    .await;
}

async fn listing_fails(backend: Backend) {
    let fault = Fault::Refuse {
        status: 1,
        say: "error: Unable to contact the controller (connect failure)".into(),
    };
    job_stays_undisturbed(backend, 4, fault, "Unable to contact the controller").await;
}
on_every_scheduler!(listing_fails);

/// An answer of `squeue` without a heading is none, whatever its exit status. `condor_q` that
/// prints no job says elsewhere whether there are any.
async fn nothing_at_all_is_no_listing(backend: Backend) {
    let fault = Fault::Nothing { say: String::new() };
    let (fixture, container) = waiting(backend).await;
    fixture
        .fake
        .faults([Rule::every(backend.list_command(), fault)]);
    fixture.wait_for_listings(6).await;
    fixture.assert_undisturbed(&container).await;
    fixture.wait_for_log(LISTING_FAILED).await;
    fixture.fake.faults([]);
    fixture.end_job(&fixture.job(&container).await.id);
    fixture
        .stack
        .wait_until(&container, STEP_TIMEOUT, was_unlocked)
        .await;
}
on_every_scheduler!(nothing_at_all_is_no_listing);

/// Commands that succeed and write harmless errors to stderr are believed; this is logged once for
/// each of them.
async fn harmless_errors_on_stderr_are_ignored(backend: Backend) {
    let fixture = running(backend).up().await;
    let commands = [backend.list_command(), backend.submit_command()];
    fixture
        .fake
        .faults(commands.map(|command| Rule::every(command, Fault::Remark)));
    for _ in 0..2 {
        let container = fixture.submit().await;
        fixture.complete(&container, 1).await;
    }
    fixture.wait_for_listings(2).await;
    assert_eq!(fixture.event_count("listing_failed"), 0);
    let lines_of_each = 2;
    assert_eq!(
        fixture.event_count("scheduler_command_stderr"),
        lines_of_each * commands.len()
    );
}
on_every_scheduler!(harmless_errors_on_stderr_are_ignored);

async fn listing_fails_with_exit_status_0(backend: Backend) {
    let say = match backend {
        backend if backend.is_slurm() => {
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
        }
        _ => "-- Failed to fetch ads from: <127.0.0.1:9618> : submit.example",
    };
    let fault = Fault::Nothing { say: say.into() };
    job_stays_undisturbed(backend, 4, fault, say).await;
}
on_every_scheduler!(listing_fails_with_exit_status_0);

async fn last_line_of_a_listing_is_cut(backend: Backend) {
    job_stays_undisturbed(backend, 4, Fault::Cut { bytes: 9 }, LISTING_FAILED).await;
}
on_every_scheduler!(last_line_of_a_listing_is_cut);

/// With every answer of every command.
async fn greetings_around_the_answer(backend: Backend) {
    let fixture = running(backend).up().await;
    fixture
        .fake
        .faults(COMMANDS.map(|command| Rule::every(command, Fault::Chatter)));
    let (first, second) = (fixture.submit().await, fixture.submit().await);
    for container in [&first, &second] {
        fixture.complete(container, 1).await;
    }
    let third = fixture.submit().await;
    fixture.complete(&third, 1).await;
}
on_every_scheduler!(greetings_around_the_answer);

async fn listing_is_no_text(backend: Backend) {
    job_stays_undisturbed(backend, 4, Fault::NotText, LISTING_FAILED).await;
}
on_every_scheduler!(listing_is_no_text);

/// Another user's job name is not UTF-8: all other jobs are still listed.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_are_not_text_hide_nothing() {
    on_fake_schedulers(|backend| async move {
        let (fixture, container) = waiting(backend).await;
        let mut foreign = fixture.job(&container).await;
        foreign.name = "naïve".into();
        foreign.comment = None;
        if backend == Backend::Condor {
            foreign.ad.insert("ContainerUUID".into(), "naïve".into());
        }
        foreign.id = "900".into();
        fixture.fake.add_foreign_job(foreign);
        let rule = Rule::every(backend.list_command(), Fault::Latin1);
        fixture
            .fake
            .faults([rule.having(backend.listing_argument())]);
        fixture.wait_for_listings(2).await;
        fixture.assert_undisturbed(&container).await;
        fixture.end_job(&fixture.job(&container).await.id);
        fixture
            .stack
            .wait_until(&container, STEP_TIMEOUT, was_unlocked)
            .await;
        assert_eq!(fixture.event_count("listing_failed"), 0);
    })
    .await;
}

fn flood(backend: Backend, bytes: usize) -> Fault {
    let line = match backend {
        backend if backend.is_slurm() => {
            format!("@99|RUNNING|(null)|n9|{}", "somebody else's ".repeat(50))
        }
        _ => String::new(),
    };
    Fault::Flood { bytes, line }
}

async fn fifty_megabytes_are_read(backend: Backend) {
    let fixture = running(backend).up().await;
    let rule = Rule::next(backend.list_command(), 2, flood(backend, 50 << 20))
        .having(backend.listing_argument());
    fixture.fake.faults([rule]);
    let container = fixture.submit().await;
    fixture.complete(&container, 1).await;
    assert_eq!(fixture.event_count("listing_failed"), 0);
}
on_every_scheduler!(fifty_megabytes_are_read);

async fn more_than_can_be_held_is_no_listing(backend: Backend) {
    job_stays_undisturbed(backend, 2, flood(backend, 66 << 20), LISTING_FAILED).await;
}
on_every_scheduler!(more_than_can_be_held_is_no_listing);

async fn listing_is_slow(backend: Backend) {
    job_stays_undisturbed(backend, 1, Fault::Slow { ms: 3000 }, "").await;
}
on_every_scheduler!(listing_is_slow);

async fn the_controller_limits_calls(backend: Backend) {
    job_stays_undisturbed(backend, 2, Fault::Stall { ms: 1500 }, "").await;
}
on_every_scheduler!(the_controller_limits_calls);

async fn list_command_is_not_installed_for_a_while(backend: Backend) {
    let (fixture, container) = waiting(backend).await;
    fixture.fake.install(backend.list_command(), false);
    fixture.wait_for_event("listing_failed").await;
    let failed = || fixture.event_count("listing_failed");
    fixture
        .wait_for("four failed listings", || failed() >= 4)
        .await;
    fixture.assert_undisturbed(&container).await;
    fixture.fake.install(backend.list_command(), true);
    fixture.wait_for_listings(2).await;
    fixture.assert_undisturbed(&container).await;
}
on_every_scheduler!(list_command_is_not_installed_for_a_while);

/// The dispatcher ignores other people's jobs, other jobs of this user, arrays and heterogeneous
/// jobs.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_others_and_odd_names_are_left_alone() {
    on_fake_schedulers(|backend| async move {
        let fixture = running(backend).up().await;
        let own = rustix::process::getuid().as_raw();
        let uuid = "local-dz642-000000000000000";
        #[rustfmt::skip]
        let rows = [
            ("901", own, "a | b | c", None), ("902", own, "", Some("x")), ("903", own + 1, uuid, Some("x y")),
            ("904_[4-9%2]", own, "array", None), ("905+1", own, "het", None), ("906_7", own, uuid, None),
            ("907", own, "naïve ☃ \u{202e}", Some("two words")), ("908", own, uuid, Some("attempt another-dispatcher")),
        ];
        for (id, user, name, comment) in rows {
            let ad = match backend {
                Backend::Slurm => json!({}),
                _ => json!({"ClusterId": 9, "JobStatus": 2, "ContainerUUID": name, "AttemptUUID": comment}),
            };
            fixture.fake.add_foreign_job(Job {
                id: id.into(),
                user,
                name: name.into(),
                comment: comment.map(str::to_owned),
                state: "RUNNING".into(),
                ad: ad.as_object().cloned().unwrap(),
                ..Job::default()
            });
        }
        let container = fixture.submit().await;
        fixture.complete(&container, 1).await;
        fixture.wait_for_listings(2).await;
        assert_eq!(fixture.fake.count(backend.cancel_command()), 0);
        assert_eq!(fixture.event_count("listing_failed"), 0);
    })
    .await;
}

/// Array tasks and parts of heterogeneous jobs have ids that are not only digits. A dispatcher's
/// own job among them is found and cancelled by that id.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_job_of_ours_with_an_odd_number_is_ended() {
    let (fixture, container) = waiting(Backend::Slurm).await;
    let first = fixture.job(&container).await;
    for id in ["123_[4-9%2]", "124_5", "125+1"] {
        fixture.fake.add_foreign_job(Job {
            id: id.into(),
            ..first.clone()
        });
    }
    fixture
        .wait_for("the end of the others", || {
            let jobs = fixture.jobs_of(container.as_str());
            let left = jobs.iter().filter(|job| job.ended.is_none()).count();
            left == 1
        })
        .await;
    let jobs = fixture.jobs_of(container.as_str());
    assert_eq!(
        jobs.iter().find(|job| job.ended.is_none()).unwrap().id,
        first.id
    );
    let record = fixture.stack.container(&container).await;
    assert_eq!(
        (record.state, record.lock_count),
        (ContainerState::Locked, 1)
    );
}

async fn a_scheduler_that_is_not_there_is_told_at_the_start(backend: Backend) {
    let mut fixture = held(backend).up().await;
    fixture.stack.dispatcher.kill();
    fixture.fake.install(backend.list_command(), false);
    fixture.stack.dispatcher.start();
    let status = fixture.stack.dispatcher.end(STEP_TIMEOUT);
    fixture.wait_for_log(backend.list_command()).await;
    assert_eq!(status.code(), Some(78));
}
on_every_scheduler!(a_scheduler_that_is_not_there_is_told_at_the_start);
