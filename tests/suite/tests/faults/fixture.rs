//! One test's programs: dispatch-api, a proxy before it, a dispatcher, and the fake scheduler in
//! the dispatcher's PATH.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use serde_json::json;
use suite_tests::fake_sched::{Call, FakeSched, Job, Settings};
use suite_tests::proxy::Proxy;

use crate::backend::Backend;
use crate::real_backend::RealScheduler;
use suite_tests::program::{Program, binary};
use suite_tests::stack::{Servers, Stack, complete};
use suite_tests::{STEP_TIMEOUT, poll_pause};

/// The settings of a fixture.
#[derive(Debug, Clone)]
pub struct FixtureOptions {
    pub backend: Backend,
    /// Jobs are run by the real crunch-run; else they wait until they are released, or moved by the
    /// test.
    pub run_jobs: bool,
    /// The proxy refuses connections until it is opened.
    pub api_down: bool,
    pub flags: Vec<&'static str>,
    /// Flags of the API server.
    pub api_flags: Vec<&'static str>,
}

/// Options of a fixture that runs jobs.
pub fn running(backend: Backend) -> FixtureOptions {
    FixtureOptions {
        backend,
        run_jobs: true,
        api_down: false,
        flags: Vec::new(),
        api_flags: Vec::new(),
    }
}

/// Options of a fixture whose jobs wait.
pub fn held(backend: Backend) -> FixtureOptions {
    FixtureOptions {
        run_jobs: false,
        ..running(backend)
    }
}

/// Whether the container lost its job and was unlocked. A slow test sees it locked by its next
/// attempt.
pub fn was_unlocked(container: &Container) -> bool {
    container.state == ContainerState::Queued || container.lock_count > 1
}

/// The programs of one test.
pub struct Fixture {
    pub backend: Backend,
    pub fake: FakeSched,
    pub proxy: Proxy,
    pub stack: Stack,
    /// The real scheduler that runs the fake's commands.
    real: Option<RealScheduler>,
    /// A job that takes all CPUs, so that later jobs stay pending.
    blocking_job: Option<String>,
}

impl FixtureOptions {
    pub async fn up(self) -> Fixture {
        let backend = self.backend;
        let real = backend.real();
        let blocking_job = match &real {
            Some(real) if !self.run_jobs => Some(real.fill()),
            _ => None,
        };
        let mut made = None;
        let stack = Stack::with_api(&self.api_flags, |servers, dir| {
            let proxy = Proxy::start(&servers.ready);
            proxy.set_open(!self.api_down);
            let servers = Servers {
                ready: proxy.ready(&servers.ready),
                ..servers.clone()
            };
            let mut args = vec!["--poll-interval", "400ms", "--min-poll-interval", "50ms"];
            args.extend(&self.flags);
            let (fake, program) = match &real {
                Some(real) => {
                    let fake = real.fake(dir);
                    let program = real.dispatcher(&servers, dir, &fake, &args);
                    (fake, program)
                }
                None => on_fake(backend, self.run_jobs, &servers, dir, &args),
            };
            made = Some((fake, proxy));
            program
        })
        .await;
        let (fake, proxy) = made.unwrap();
        Fixture {
            backend,
            fake,
            proxy,
            stack,
            real,
            blocking_job,
        }
    }
}

fn on_fake(
    backend: Backend,
    run_jobs: bool,
    servers: &Servers,
    dir: &Path,
    common: &[&str],
) -> (FakeSched, Program) {
    let settings = Settings {
        run_jobs,
        ..Settings::default()
    };
    let fake = FakeSched::new(&dir.join("fake"), &binary("fake-sched"), settings);
    let (crunch_run, jobs) = (binary("crunch-run"), dir.join("run"));
    let (crunch_run, jobs) = (crunch_run.to_str().unwrap(), jobs.to_str().unwrap());
    let mut args = match backend {
        Backend::Local => vec!["--state-dir", jobs],
        Backend::Condor => vec!["--state-dir", jobs, "--crunch-run", crunch_run],
        _ => vec!["--state-dir", jobs, "--crunch-run", crunch_run],
    };
    args.extend(common);
    let variables = fake.environment();
    let env: Vec<(&'static str, &str)> = variables
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let program = servers.dispatcher(backend.program(), &args, &env);
    (fake, program)
}

impl Fixture {
    /// A container that ends well when it is run.
    pub async fn submit(&self) -> ContainerUuid {
        self.request("true", json!({})).await.1
    }

    pub async fn request(
        &self,
        script: &str,
        more: serde_json::Value,
    ) -> (ContainerRequestUuid, ContainerUuid) {
        self.stack.submit("fault", script, more).await
    }

    /// Waits until the container has completed; checks the number of locks and the jobs.
    pub async fn complete(&self, container: &ContainerUuid, locks: u64) -> Container {
        let record = self.stack.end(container, STEP_TIMEOUT).await;
        complete(&record);
        assert_eq!(u64::from(record.lock_count), locks, "locks");
        self.check_jobs(container, 1);
        record
    }

    /// All jobs so far.
    pub fn jobs(&self) -> Vec<Job> {
        match &self.real {
            Some(real) => real.jobs(),
            None => self.fake.jobs(),
        }
    }

    /// All jobs so far with this name, which is a container's uuid.
    pub fn jobs_of(&self, name: &str) -> Vec<Job> {
        let mut jobs = self.jobs();
        jobs.retain(|job| job.name == name);
        jobs
    }

    /// The dispatcher's state directory.
    pub fn state_dir(&self) -> PathBuf {
        match self.backend {
            Backend::RealCondor => self.stack.dir.path().join("jobs"),
            _ => self.stack.dispatcher_state_dir(),
        }
    }

    /// Runs the pending jobs, and all later ones.
    pub fn start_jobs(&mut self) {
        match (&self.real, self.blocking_job.take()) {
            (Some(real), blocking_job) => {
                real.end(&blocking_job.expect("a job that keeps others waiting"))
            }
            (None, _) => self.fake.release(),
        }
    }

    /// Ends a pending job before it runs, as an administrator would, or crunch-run on a broken
    /// node.
    pub fn end_job(&self, id: &str) {
        match &self.real {
            Some(real) => real.end(id),
            None => self.fake.end_job(id, 75),
        }
    }

    /// Checks that each attempt has at most one job, and that `started` of the container's jobs
    /// ran.
    pub fn check_jobs(&self, container: &ContainerUuid, started: usize) {
        let jobs = self.jobs_of(container.as_str());
        let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
        for job in &jobs {
            *attempts
                .entry(job.comment.clone().unwrap_or_default())
                .or_default() += 1;
        }
        assert!(attempts.values().all(|count| *count == 1), "{jobs:#?}");
        if self.backend != Backend::Local {
            let ran = jobs.iter().filter(|job| job.started.is_some()).count();
            assert_eq!(ran, started, "jobs that were started: {jobs:#?}");
        }
    }

    /// Waits for the container's newest job.
    pub async fn job(&self, container: &ContainerUuid) -> Job {
        let newest = || self.jobs_of(container.as_str()).pop();
        self.poll_until("the job", STEP_TIMEOUT, newest).await
    }

    /// Waits until the dispatcher has listed jobs `count` more times.
    pub async fn wait_for_listings(&self, count: usize) {
        let listing = self.backend.listing_argument();
        let listings = || {
            let calls = self.fake.calls();
            let meant = |call: &&Call| {
                call.name == self.backend.list_command()
                    && call.arguments.iter().any(|a| a.contains(listing))
            };
            calls.iter().filter(meant).count()
        };
        // One more listing, because the last one may have begun but not been acted upon.
        let until = listings() + count + 1;
        self.wait_for("listings", || listings() >= until).await;
    }

    pub async fn wait_for(&self, what: &str, mut look: impl FnMut() -> bool) {
        self.poll_until(what, STEP_TIMEOUT, || look().then_some(()))
            .await
    }

    /// Polls without blocking the thread, which also serves the proxy.
    async fn poll_until<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(begun.elapsed() < timeout, "waited {timeout:?} for {what}");
            tokio::time::sleep(poll_pause(begun)).await;
        }
    }

    /// Stops a dispatcher that has just started. It handles signals only once it has logged its
    /// start.
    pub async fn stop_dispatcher(&mut self) {
        self.wait_for_event("started").await;
        assert!(self.stack.dispatcher.terminate(STEP_TIMEOUT).success());
    }

    /// Waits until the dispatcher has logged this event.
    pub async fn wait_for_event(&self, event: &str) {
        self.wait_for_log(&format!("event=\"{event}\"")).await;
    }

    /// Number of times that the dispatcher has logged this event since its start.
    pub fn event_count(&self, event: &str) -> usize {
        let log = self.stack.dispatcher.log_text();
        log.matches(&format!("event=\"{event}\"")).count()
    }

    /// Waits until the dispatcher's log contains `text`, for names and messages of other programs.
    pub async fn wait_for_log(&self, text: &str) {
        let is_logged = || {
            self.stack
                .dispatcher
                .log_text()
                .contains(text)
                .then_some(())
        };
        self.poll_until(text, STEP_TIMEOUT, is_logged).await;
    }

    /// Checks that the container is Locked by its first attempt and that its only job was not
    /// cancelled.
    pub async fn assert_undisturbed(&self, container: &ContainerUuid) {
        let record = self.stack.container(container).await;
        assert_eq!(
            (&record.state, record.lock_count),
            (&ContainerState::Locked, 1),
            "{record:?}"
        );
        assert_eq!(self.jobs_of(container.as_str()).len(), 1);
        assert_eq!(
            self.fake.count(self.backend.cancel_command()),
            0,
            "a job was ended"
        );
    }

    pub async fn set_priority(&self, request: &ContainerRequestUuid, priority: u32) {
        let change = json!({"priority": priority});
        let user = &self.stack.user;
        user.update_container_request(request, change)
            .await
            .unwrap();
    }
}

impl Drop for Fixture {
    /// Ends the dispatcher first, so that it does not act on the end of the fake scheduler.
    fn drop(&mut self) {
        let alive = self.stack.dispatcher.is_running();
        if alive {
            self.stack.dispatcher.kill();
        }
        if std::thread::panicking() {
            eprintln!(
                "{:?}\n{}\n{:#?}\n{:#?}\n{:#?}",
                self.backend,
                self.stack.dispatcher.log_text(),
                self.jobs(),
                self.fake.calls(),
                self.proxy.seen()
            );
        }
    }
}
