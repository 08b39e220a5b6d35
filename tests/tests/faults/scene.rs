//! dispatch-api, a dispatcher, the fake scheduler it finds in its PATH, and the proxy before its API.

use std::collections::BTreeMap;
use std::future::Future;
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid};
use serde_json::json;
use suite_tests::fake_sched::{Call, FakeSched, Job, Settings};
use suite_tests::proxy::Proxy;

use crate::program::binary;
use crate::stack::{Stack, complete};

/// How long anything may take that is not slow on purpose.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Which dispatcher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Slurm,
    Condor,
    Local,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Kind::Slurm => "dispatch-slurm",
            Kind::Condor => "dispatch-condor",
            Kind::Local => "dispatch-local",
        }
    }

    /// The command that takes jobs.
    pub fn submits(self) -> &'static str {
        match self {
            Kind::Slurm => "sbatch",
            _ => "condor_submit",
        }
    }

    /// The command that lists jobs.
    pub fn lists(self) -> &'static str {
        match self {
            Kind::Slurm => "squeue",
            _ => "condor_q",
        }
    }

    /// The command that ends jobs.
    pub fn ends(self) -> &'static str {
        match self {
            Kind::Slurm => "scancel",
            _ => "condor_rm",
        }
    }

    /// Among the arguments of a listing, and not of a question about one ended job.
    pub fn listing(self) -> &'static str {
        match self {
            Kind::Slurm => "%r|%j",
            _ => "ContainerDispatcher",
        }
    }
}

/// What a scene begins with.
#[derive(Debug, Clone)]
pub struct Begin {
    pub kind: Kind,
    /// Jobs are run by the real crunch-run; else they wait until the test moves them.
    pub run_jobs: bool,
    /// The proxy refuses connections until it is opened.
    pub api_down: bool,
    pub flags: Vec<&'static str>,
}

/// Jobs are run.
pub fn running(kind: Kind) -> Begin {
    Begin {
        kind,
        run_jobs: true,
        api_down: false,
        flags: Vec::new(),
    }
}

/// Jobs wait.
pub fn held(kind: Kind) -> Begin {
    Begin {
        run_jobs: false,
        ..running(kind)
    }
}

/// One dispatcher's world.
pub struct Scene {
    pub kind: Kind,
    pub fake: FakeSched,
    pub proxy: Proxy,
    pub stack: Stack,
}

impl Begin {
    pub async fn up(self) -> Scene {
        let kind = self.kind;
        let mut made = None;
        let stack = Stack::with(|servers, dir| {
            let settings = Settings {
                run_jobs: self.run_jobs,
                ..Settings::default()
            };
            let fake = FakeSched::new(&dir.join("fake"), &binary("fake-sched"), settings);
            let proxy = Proxy::start(&servers.ready);
            proxy.open(!self.api_down);
            let host = proxy.ready(&servers.ready)["host"]
                .as_str()
                .unwrap()
                .to_owned();
            let (crunch_run, jobs) = (binary("crunch-run"), dir.join("run"));
            let (crunch_run, jobs) = (crunch_run.to_str().unwrap(), jobs.to_str().unwrap());
            let mut args = match kind {
                Kind::Slurm => vec!["--shared-dir", jobs, "--crunch-run", crunch_run],
                Kind::Condor => vec!["--job-dir", jobs, "--crunch-run", crunch_run],
                Kind::Local => vec!["--run-dir", jobs],
            };
            args.extend(["--poll-interval", "400ms", "--shortest-interval", "50ms"]);
            args.extend(&self.flags);
            let variables = fake.environment();
            let mut env = vec![("ARVADOS_API_HOST", host.as_str())];
            env.extend(variables.iter().map(|(key, value)| (*key, value.as_str())));
            let program = servers.dispatcher(kind.program(), &args, &env);
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
        }
    }
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

    /// At most one job for each attempt, and so many were started.
    pub fn check_jobs(&self, container: &ContainerUuid, started: usize) {
        let jobs = self.fake.jobs_of(container.as_str());
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
        let newest = || self.fake.jobs_of(container.as_str()).pop();
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
        assert_eq!(self.fake.jobs_of(container.as_str()).len(), 1);
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
                "{:?}\n{}\n{:#?}\n{:#?}",
                self.kind,
                self.stack.dispatcher.said(),
                self.fake.calls(),
                self.proxy.seen()
            );
        }
    }
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
