//! dispatch-api, a dispatcher, the fake scheduler it finds in its PATH, and the proxy before its API.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use serde_json::json;
use suite_tests::fake_sched::{Call, FakeSched, Job, Settings};
use suite_tests::proxy::Proxy;

use crate::beneath::Real;
use crate::program::{Program, binary};
use crate::stack::{Servers, Stack, complete};

/// How long anything may take that is not slow on purpose.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which dispatcher, and on what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Slurm,
    Condor,
    Local,
    RealSlurm,
    RealCondor,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Kind::Slurm | Kind::RealSlurm => "dispatch-slurm",
            Kind::Condor | Kind::RealCondor => "dispatch-condor",
            Kind::Local => "dispatch-local",
        }
    }

    /// Whether it is Slurm's, be that real or not.
    pub fn is_slurm(self) -> bool {
        self.program() == "dispatch-slurm"
    }

    fn real(self) -> Option<Real> {
        match self {
            Kind::RealSlurm => Some(Real::slurm()),
            Kind::RealCondor => Some(Real::condor()),
            Kind::Slurm | Kind::Condor | Kind::Local => None,
        }
    }

    /// The command that takes jobs.
    pub fn submits(self) -> &'static str {
        match self {
            Kind::Slurm | Kind::RealSlurm => "sbatch",
            _ => "condor_submit",
        }
    }

    /// The command that lists jobs.
    pub fn lists(self) -> &'static str {
        match self {
            Kind::Slurm | Kind::RealSlurm => "squeue",
            _ => "condor_q",
        }
    }

    /// The command that ends jobs.
    pub fn ends(self) -> &'static str {
        match self {
            Kind::Slurm | Kind::RealSlurm => "scancel",
            _ => "condor_rm",
        }
    }

    /// Among the arguments of a listing, and not of a question about one ended job.
    pub fn listing(self) -> &'static str {
        match self {
            Kind::Slurm | Kind::RealSlurm => "%r|%j",
            _ => "ContainerDispatcher",
        }
    }
}

/// What a scene begins with.
#[derive(Debug, Clone)]
pub struct Begin {
    pub kind: Kind,
    /// Jobs are run by the real crunch-run; else they wait until they are released, or moved by the test.
    pub run_jobs: bool,
    /// The proxy refuses connections until it is opened.
    pub api_down: bool,
    pub flags: Vec<&'static str>,
    /// Of the API server.
    pub api_flags: Vec<&'static str>,
}

/// Jobs are run.
pub fn running(kind: Kind) -> Begin {
    Begin {
        kind,
        run_jobs: true,
        api_down: false,
        flags: Vec::new(),
        api_flags: Vec::new(),
    }
}

/// Jobs wait.
pub fn held(kind: Kind) -> Begin {
    Begin {
        run_jobs: false,
        ..running(kind)
    }
}

/// Its job is gone. It waits again, but not for long: a test that stalls sees it locked for its next attempt.
pub fn given_back(container: &Container) -> bool {
    container.state == ContainerState::Queued || container.lock_count > 1
}

/// One dispatcher's world.
pub struct Scene {
    pub kind: Kind,
    pub fake: FakeSched,
    pub proxy: Proxy,
    pub stack: Stack,
    /// Does what the fake's commands are asked for.
    real: Option<Real>,
    /// The job that keeps those waiting which came after it.
    filler: Option<String>,
}

impl Begin {
    pub async fn up(self) -> Scene {
        let kind = self.kind;
        let real = kind.real();
        let filler = match &real {
            Some(real) if !self.run_jobs => Some(real.fill()),
            _ => None,
        };
        let mut made = None;
        let stack = Stack::with_api(&self.api_flags, |servers, dir| {
            let proxy = Proxy::start(&servers.ready);
            proxy.open(!self.api_down);
            let servers = Servers {
                ready: proxy.ready(&servers.ready),
                ..servers.clone()
            };
            let mut args = vec!["--poll-interval", "400ms", "--shortest-interval", "50ms"];
            args.extend(&self.flags);
            let (fake, program) = match &real {
                Some(real) => {
                    let fake = real.fake(dir);
                    let program = real.dispatcher(&servers, dir, &fake, &args);
                    (fake, program)
                }
                None => on_fake(kind, self.run_jobs, &servers, dir, &args),
            };
            made = Some((fake, proxy));
            program
        })
        .await;
        let (fake, proxy) = made.unwrap();
        Scene {
            kind,
            fake,
            proxy,
            stack,
            real,
            filler,
        }
    }
}

fn on_fake(
    kind: Kind,
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
    let mut args = match kind {
        Kind::Local => vec!["--run-dir", jobs],
        Kind::Condor => vec!["--job-dir", jobs, "--crunch-run", crunch_run],
        _ => vec!["--shared-dir", jobs, "--crunch-run", crunch_run],
    };
    args.extend(common);
    let variables = fake.environment();
    let env: Vec<(&'static str, &str)> = variables
        .iter()
        .map(|(key, value)| (*key, value.as_str()))
        .collect();
    let program = servers.dispatcher(kind.program(), &args, &env);
    (fake, program)
}

impl Scene {
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

    /// Waits until it has run and ended well; it was locked so many times, and its jobs were as they should be.
    pub async fn complete(&self, container: &ContainerUuid, locks: u64) -> Container {
        let record = self.stack.end(container, PATIENCE).await;
        complete(&record);
        assert_eq!(u64::from(record.lock_count), locks, "locks");
        self.check_jobs(container, 1);
        record
    }

    /// Every job there ever was.
    pub fn jobs(&self) -> Vec<Job> {
        match &self.real {
            Some(real) => real.jobs(),
            None => self.fake.jobs(),
        }
    }

    /// Every job there ever was with this name: this container's.
    pub fn jobs_of(&self, name: &str) -> Vec<Job> {
        let mut jobs = self.jobs();
        jobs.retain(|job| job.name == name);
        jobs
    }

    /// Jobs are run from now on, those that wait and those that come.
    pub fn release(&mut self) {
        match (&self.real, self.filler.take()) {
            (Some(real), filler) => real.end(&filler.expect("a job that keeps others waiting")),
            (None, _) => self.fake.release(),
        }
    }

    /// A waiting job is over before it ran: as crunch-run would end it on a node that is no good, or an administrator.
    pub fn end_job(&self, id: &str) {
        match &self.real {
            Some(real) => real.end(id),
            None => self.fake.end_job(id, 75),
        }
    }

    /// At most one job for each attempt, and so many were started.
    pub fn check_jobs(&self, container: &ContainerUuid, started: usize) {
        let jobs = self.jobs_of(container.as_str());
        let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
        for job in &jobs {
            *attempts
                .entry(job.comment.clone().unwrap_or_default())
                .or_default() += 1;
        }
        assert!(attempts.values().all(|count| *count == 1), "{jobs:#?}");
        if self.kind != Kind::Local {
            let ran = jobs.iter().filter(|job| job.started.is_some()).count();
            assert_eq!(ran, started, "jobs that were started: {jobs:#?}");
        }
    }

    /// Its newest job, as soon as there is one.
    pub async fn job(&self, container: &ContainerUuid) -> Job {
        let newest = || self.jobs_of(container.as_str()).pop();
        self.found("the job", PATIENCE, newest).await
    }

    /// Waits until the dispatcher has listed jobs so many times more.
    pub async fn looks(&self, count: usize) {
        let listing = self.kind.listing();
        let listings = || {
            let calls = self.fake.calls();
            let meant = |call: &&Call| {
                call.name == self.kind.lists() && call.arguments.iter().any(|a| a.contains(listing))
            };
            calls.iter().filter(meant).count()
        };
        // One more: the last one is not only begun, but answered and acted upon.
        let until = listings() + count + 1;
        self.wait_for("listings", || listings() >= until).await;
    }

    pub async fn wait_for(&self, what: &str, mut look: impl FnMut() -> bool) {
        self.found(what, PATIENCE, || look().then_some(())).await
    }

    /// The proxy is served by the same threads: they must not be blocked.
    async fn found<T>(
        &self,
        what: &str,
        patience: Duration,
        mut look: impl FnMut() -> Option<T>,
    ) -> T {
        let until = Instant::now() + patience;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(Instant::now() < until, "waited {patience:?} for {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends the dispatcher, which has just been started: before it hears signals it would not end well.
    pub async fn stop_dispatcher(&mut self) {
        self.says("started scheduler=").await;
        assert!(self.stack.dispatcher.terminate(PATIENCE).success());
    }

    /// Waits until the dispatcher's log holds this.
    pub async fn says(&self, sentence: &str) {
        let said = || {
            self.stack
                .dispatcher
                .said()
                .contains(sentence)
                .then_some(())
        };
        self.found(sentence, PATIENCE, said).await;
    }

    /// The container is as it was when its only job was submitted, and nobody has touched the job.
    pub async fn is_undisturbed(&self, container: &ContainerUuid) {
        let record = self.stack.container(container).await;
        assert_eq!(
            (&record.state, record.lock_count),
            (&ContainerState::Locked, 1),
            "{record:?}"
        );
        assert_eq!(self.jobs_of(container.as_str()).len(), 1);
        assert_eq!(self.fake.count(self.kind.ends()), 0, "a job was ended");
    }

    pub async fn set_priority(&self, request: &ContainerRequestUuid, priority: u32) {
        let change = json!({"priority": priority});
        let user = &self.stack.user;
        user.update_container_request(request, change)
            .await
            .unwrap();
    }
}

impl Drop for Scene {
    /// The dispatcher first, so that it does not follow what the end of the fake does.
    fn drop(&mut self) {
        let alive = self.stack.dispatcher.is_running();
        if alive {
            self.stack.dispatcher.kill();
        }
        if std::thread::panicking() {
            eprintln!(
                "{:?}\n{}\n{:#?}\n{:#?}\n{:#?}",
                self.kind,
                self.stack.dispatcher.said(),
                self.jobs(),
                self.fake.calls(),
                self.proxy.seen()
            );
        }
    }
}

/// One row on every scheduler: on the fakes side by side (`both`, or `all` with dispatch-local), on a real Slurm, on a real
/// HTCondor.
macro_rules! everywhere {
    ($fakes:ident, $name:ident, $row:expr) => {
        mod $name {
            #[allow(unused_imports, reason = "what a row needs")]
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn fakes() {
                crate::scene::$fakes($row).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn slurm() {
                crate::scene::alone(crate::scene::Kind::RealSlurm, $row).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn htcondor() {
                crate::scene::alone(crate::scene::Kind::RealCondor, $row).await;
            }
        }
    };
}
pub(crate) use everywhere;

/// One row on the fake Slurm and on a real one.
macro_rules! on_slurm {
    ($name:ident, $row:expr) => {
        mod $name {
            use super::*;

            #[tokio::test(flavor = "multi_thread")]
            async fn fake() {
                crate::scene::alone(crate::scene::Kind::Slurm, $row).await;
            }

            #[tokio::test(flavor = "multi_thread")]
            async fn slurm() {
                crate::scene::alone(crate::scene::Kind::RealSlurm, $row).await;
            }
        }
    };
}
pub(crate) use on_slurm;

/// A row for one.
pub async fn alone<F: Future<Output = ()>>(kind: Kind, row: impl Fn(Kind) -> F) {
    row(kind).await;
}

/// The same for Slurm and HTCondor, side by side.
pub async fn both<F: Future<Output = ()> + Send + 'static>(row: impl Fn(Kind) -> F) {
    side_by_side(&[Kind::Slurm, Kind::Condor], row).await;
}

/// The same for every dispatcher, side by side.
pub async fn all<F: Future<Output = ()> + Send + 'static>(row: impl Fn(Kind) -> F) {
    side_by_side(&[Kind::Slurm, Kind::Condor, Kind::Local], row).await;
}

async fn side_by_side<F: Future<Output = ()> + Send + 'static>(
    kinds: &[Kind],
    row: impl Fn(Kind) -> F,
) {
    let rows: Vec<_> = kinds
        .iter()
        .map(|kind| (kind, tokio::spawn(row(*kind))))
        .collect();
    let mut failed = Vec::new();
    for (kind, row) in rows {
        if row.await.is_err() {
            failed.push(kind);
        }
    }
    // Why is said above, by each of them.
    assert!(failed.is_empty(), "{failed:?}");
}
