//! Faults of the host that submits: no container is locked more than once, and none is submitted
//! before the fault has ended. Nothing of the scheduler is asked meanwhile.

use std::time::{Duration, Instant};

use arvados_client::records::ContainerState;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::faulty_mount::{FaultyMount, MountFault};
use suite_tests::health_page;
use suite_tests::process_limit::ProcessLimit;

use crate::backend::{Backend, on_every_scheduler, on_fake_schedulers};
use crate::fixture::{Fixture, running};

/// Number of containers that wait during a fault.
const CONTAINERS: usize = 20;

/// Minimum duration of a fault in seconds. Real faults last for minutes.
fn min_duration() -> Duration {
    let seconds = std::env::var("HOST_FAULT_SECONDS");
    Duration::from_secs(seconds.map_or(0, |text| text.parse().unwrap()))
}

/// The fault holds all containers, the health page says `words`, and all run when it has ended.
async fn holds_all_containers<T>(
    backend: Backend,
    words: &str,
    is_seen_by_subcommands: bool,
    begin: impl FnOnce(&Fixture) -> T,
    end: impl FnOnce(&Fixture, T),
) {
    let mut options = running(backend);
    options.flags.extend(health_page::FLAGS);
    let fixture = options.up().await;
    let address = health_page::address(&fixture.stack);
    let ping = || health_page::page(address, "/_health/ping");
    fixture
        .wait_for("good health", || ping().contains(" 200 "))
        .await;
    let fault = begin(&fixture);
    let begun = Instant::now();
    let mut containers = Vec::new();
    for _ in 0..CONTAINERS {
        containers.push(fixture.submit().await);
    }
    let is_told = |page: String| page.contains(words);
    fixture
        .wait_for("the fault on the health page", || {
            let ping = ping();
            ping.contains(" 503 ") && ping.contains("no container is started") && is_told(ping)
        })
        .await;
    assert!(is_told(health_page::page(address, "/status")));
    let metrics = health_page::page(address, "/metrics");
    assert!(
        metrics.contains("arvados_dispatch_submit_host_failed 1\n"),
        "{metrics}"
    );
    tokio::time::sleep(min_duration().saturating_sub(begun.elapsed())).await;
    // Each poll makes a request.
    let requests = fixture.proxy.seen().len() + 10;
    fixture
        .wait_for("more polls", || fixture.proxy.seen().len() >= requests)
        .await;
    for container in &containers {
        let record = fixture.stack.container(container).await;
        let is_waiting = [ContainerState::Queued, ContainerState::Locked].contains(&record.state);
        assert!(is_waiting && record.lock_count <= 1, "{record:?}");
    }
    assert!(fixture.jobs().is_empty(), "{:?}", fixture.jobs());
    if is_seen_by_subcommands && backend != Backend::Local {
        let found = subcommand(&fixture, &["check"]).await;
        assert!(found.contains(words), "{found}");
        let why = subcommand(&fixture, &["explain", containers[0].as_str()]).await;
        assert!(why.contains(words) && why.contains("can submit"), "{why}");
    }
    assert_eq!(fixture.event_count("submit_host_failed"), 1);
    end(&fixture, fault);
    for container in &containers {
        fixture.complete(container, 1).await;
    }
    fixture.wait_for_event("submit_host_mended").await;
    fixture
        .wait_for("good health", || ping().contains(" 200 "))
        .await;
    assert_eq!(fixture.event_count("submit_host_failed"), 1);
}

/// The output of a subcommand of the dispatcher.
async fn subcommand(fixture: &Fixture, more: &[&str]) -> String {
    let mut command = fixture.stack.dispatcher.subcommand(more);
    let output = tokio::task::spawn_blocking(move || command.output());
    let output = output.await.unwrap().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

async fn holds_while(backend: Backend, fault: MountFault, words: &str) {
    let begin = |fixture: &Fixture| FaultyMount::over(&fixture.state_dir(), fault);
    // A subcommand waits for a silent server, too, and finds nothing in an empty directory.
    let is_seen = [MountFault::Full, MountFault::ReadOnly].contains(&fault);
    holds_all_containers(backend, words, is_seen, begin, |_, mount| drop(mount)).await;
}

async fn the_state_directory_is_full(backend: Backend) {
    holds_while(backend, MountFault::Full, "No space left on device").await;
}
on_every_scheduler!(the_state_directory_is_full);

async fn the_state_directory_is_read_only(backend: Backend) {
    holds_while(backend, MountFault::ReadOnly, "Read-only file system").await;
}
on_every_scheduler!(the_state_directory_is_read_only);

async fn the_state_directory_is_not_mounted(backend: Backend) {
    holds_while(backend, MountFault::Empty, "No such file or directory").await;
}
on_every_scheduler!(the_state_directory_is_not_mounted);

async fn the_file_server_is_gone(backend: Backend) {
    holds_while(backend, MountFault::Dead, "not connected").await;
}
on_every_scheduler!(the_file_server_is_gone);

async fn the_file_server_does_not_answer(backend: Backend) {
    holds_while(backend, MountFault::Silent, "has not answered").await;
}
on_every_scheduler!(the_file_server_does_not_answer);

/// Its directory cannot be removed, and no answer of it is waited for.
async fn a_silent_file_server_keeps_nobody_from_ending(backend: Backend) {
    let mut fixture = running(backend).up().await;
    fixture.wait_for_event("started").await;
    let mount = FaultyMount::over(&fixture.state_dir(), MountFault::Silent);
    fixture.submit().await;
    fixture.wait_for_event("submit_host_failed").await;
    let found = subcommand(&fixture, &["check"]).await;
    assert!(found.contains("has not answered for 10 s"), "{found}");
    fixture.stop_dispatcher().await;
    drop(mount);
}

mod a_silent_file_server_keeps_nobody_from_ending {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn fakes() {
        on_fake_schedulers(super::a_silent_file_server_keeps_nobody_from_ending).await;
    }
}

/// A directory that cannot be removed is no fault of the host: only its own container waits.
async fn the_directory_of_one_job_is_in_use(backend: Backend) {
    let fixture = running(backend).up().await;
    let waits = serde_json::json!({"priority": 0});
    let (request, container) = fixture.request("true", waits).await;
    let dir = fixture.state_dir().join(container.as_str());
    std::fs::create_dir(&dir).unwrap();
    let mount = FaultyMount::over(&dir, MountFault::Empty);
    fixture.set_priority(&request, 500).await;
    fixture.wait_for_event("action_failed").await;
    let other = fixture.submit().await;
    fixture.complete(&other, 1).await;
    assert!(fixture.jobs_of(container.as_str()).is_empty());
    assert_eq!(fixture.event_count("submit_host_failed"), 0);
    drop(mount);
    fixture.complete(&container, 1).await;
}

mod the_directory_of_one_job_is_in_use {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn fakes() {
        on_fake_schedulers(super::the_directory_of_one_job_is_in_use).await;
    }
}

async fn the_submit_command_is_gone(backend: Backend) {
    let install = |fixture: &Fixture, there| {
        fixture.fake.install(backend.submit_command(), there);
    };
    let words = format!("{} could not be run", backend.submit_command());
    let begin = |fixture: &Fixture| install(fixture, false);
    let end = |fixture: &Fixture, ()| install(fixture, true);
    holds_all_containers(backend, &words, true, begin, end).await;
}
on_every_scheduler!(the_submit_command_is_gone);

async fn no_process_can_be_started(backend: Backend) {
    let begin = |fixture: &Fixture| {
        let pid = fixture.stack.dispatcher.pid();
        ProcessLimit::on(pid.expect("a running dispatcher"))
    };
    let end = |_: &Fixture, limit: ProcessLimit| limit.lift();
    holds_all_containers(backend, "could not be run", false, begin, end).await;
}

/// The limit is reached before the dispatcher needs its first thread for blocking work.
async fn no_thread_can_be_started_from_the_beginning(backend: Backend) {
    let mut fixture = running(backend).up().await;
    fixture.stop_dispatcher().await;
    let container = fixture.submit().await;
    let points = FailPointDir::of(&fixture.stack.points_dir());
    points.block_at("dispatcher.started");
    fixture.stack.dispatcher.start();
    fixture
        .wait_for("the second start", || fixture.event_count("started") == 2)
        .await;
    let pid = fixture.stack.dispatcher.pid();
    let limit = ProcessLimit::on(pid.expect("a running dispatcher"));
    points.unblock("dispatcher.started");
    fixture.wait_for_log("could not be run").await;
    limit.lift();
    fixture.complete(&container, 1).await;
    let log = fixture.stack.dispatcher.log_text();
    assert!(!log.contains("panicked"), "{log}");
}

mod no_process_can_be_started {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn fakes() {
        on_fake_schedulers(super::no_process_can_be_started).await;
        on_fake_schedulers(no_thread_can_be_started_from_the_beginning).await;
    }
}

/// On this machine, whose state directory holds the scratch space as well.
mod local {
    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_state_directory_is_full() {
        super::the_state_directory_is_full(Backend::Local).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_state_directory_fails() {
        super::the_state_directory_is_read_only(Backend::Local).await;
        super::the_state_directory_is_not_mounted(Backend::Local).await;
        super::the_file_server_is_gone(Backend::Local).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn no_process_can_be_started() {
        super::no_process_can_be_started(Backend::Local).await;
        no_thread_can_be_started_from_the_beginning(Backend::Local).await;
    }
}
