//! A stack whose programs are killed at armed fail points. One round submits containers, arms
//! points, restarts what died, and checks the result.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid};
use jiff::Timestamp;
use serde_json::json;

use super::tables::{ExpectedEnd, Point, Precondition};
use suite_tests::STEP_TIMEOUT;
use suite_tests::fail_point_dir::FailPointDir;
use suite_tests::stack::{Stack, client};
use suite_tests::start_log::StartLog;

/// Number of ordinary containers of each round.
const JOBS_PER_ROUND: usize = 5;
/// Maximum number of attempts of a round to reach all its points.
const MAX_CHANCES: usize = 4;
/// Time from the end of the last container to the last pass of a point.
const SETTLE_TIME: Duration = Duration::from_secs(5);
pub(super) const RECORD_POLL_INTERVAL: Duration = Duration::from_millis(40);

/// The program that a loop kills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Dispatcher,
    /// crunch-run, which only the dispatcher starts again.
    Executor,
    Api,
}

pub(super) struct Job {
    pub(super) name: String,
    pub(super) request: ContainerRequestUuid,
    pub(super) container: ContainerUuid,
    /// Whether the user cancels the container while it runs.
    pub(super) unwanted: bool,
}

pub struct KillTarget {
    pub(super) stack: Stack,
    pub(super) points: FailPointDir,
    pub(super) starts: StartLog,
    pub(super) root: Client,
    /// Part of the error of a container whose crunch-run was killed.
    pub(super) verdict: &'static str,
    /// Directories that name the containers they belong to.
    pub(super) places: Vec<PathBuf>,
    pub(super) cache: Option<PathBuf>,
    /// Whether the dispatcher delivers the results of a killed crunch-run.
    pub(super) delivers: bool,
    pub(super) containers: BTreeSet<ContainerUuid>,
}

impl KillTarget {
    pub fn new(stack: Stack, verdict: &'static str, places: Vec<PathBuf>) -> Self {
        Self {
            points: FailPointDir::of(&stack.points_dir()),
            starts: StartLog::listen(),
            root: client(&stack.ready, "root"),
            stack,
            verdict,
            places,
            cache: None,
            delivers: false,
            containers: BTreeSet::new(),
        }
    }

    /// Sets the node's image cache.
    pub fn with_cache(mut self, cache: PathBuf) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The dispatcher delivers the results of a killed crunch-run.
    pub fn with_deliveries(mut self) -> Self {
        self.delivers = true;
        self
    }

    async fn submit(&mut self, victim: Victim, name: String, seconds: f32, unwanted: bool) -> Job {
        let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
        let until = Instant::now() + STEP_TIMEOUT;
        let mut tries = 0;
        let (name, request, container) = loop {
            // An earlier submission may have been accepted although its answer was lost: it has
            // another name, and no check reads it.
            let name = format!("{}{name}", "again".repeat(tries));
            let script = self.starts.script(&name, seconds);
            match self.stack.try_submit(&name, &script, network.clone()).await {
                Ok((request, container)) => break (name, request, container),
                Err(error) => {
                    assert!(victim == Victim::Api && Instant::now() < until, "{error}");
                    self.restart_dead(victim);
                    tries += 1;
                }
            }
        };
        self.containers.insert(container.clone());
        Job {
            name,
            request,
            container,
            unwanted,
        }
    }

    /// Submits containers, kills programs at the picked points meanwhile, and checks the result.
    pub async fn round(
        &mut self,
        round: usize,
        victim: Victim,
        picked: &[Point],
        random: &mut fastrand::Rng,
    ) {
        let began = Instant::now();
        let before = self.points.killed().len();
        let mut jobs = Vec::new();
        for chance in 0..MAX_CHANCES {
            let open: Vec<Point> = picked
                .iter()
                .filter(|point| chance == 0 || self.points.is_armed(point.name))
                .copied()
                .collect();
            if open.is_empty() {
                break;
            }
            let name = format!("r{round}c{chance}");
            // The dispatcher must poll at least once while the container runs whose token is
            // renewed.
            let long = 3.0 * (1 << chance) as f32;
            jobs.extend(self.submit_for(victim, &name, long, &open, random).await);
            for point in open.iter().filter(|_| chance == 0) {
                let often =
                    point.need == Precondition::Nothing && point.fate == ExpectedEnd::Completes;
                let nth = if often { random.u32(1..4) } else { 1 };
                self.points.arm(point.name, nth);
            }
            self.arm_prerequisites(&open);
            self.wait_until_done(victim, &open, &jobs).await;
        }
        let armed = picked.iter().map(|point| point.name);
        let armed: Vec<&str> = armed.filter(|p| self.points.is_armed(p)).collect();
        assert!(armed.is_empty(), "no program reached {armed:?}");
        let killed = self.points.killed().split_off(before);
        for job in &jobs {
            self.check_record(victim, job, &killed).await;
        }
        self.assert_clean(victim).await;
        let names: Vec<&str> = killed.iter().map(|death| death.point.as_str()).collect();
        println!(
            "round {round}: {:.1} s, {names:?}",
            began.elapsed().as_secs_f64()
        );
    }

    /// The containers of a round, and those that its points need besides.
    async fn submit_for(
        &mut self,
        victim: Victim,
        name: &str,
        long: f32,
        points: &[Point],
        random: &mut fastrand::Rng,
    ) -> Vec<Job> {
        let needs = |need: Precondition| points.iter().any(|point| point.need == need);
        if needs(Precondition::ColdCache)
            && let Some(cache) = &self.cache
        {
            // The directory does not exist in the first round.
            let _ = std::fs::remove_dir_all(cache.join("layers"));
            let _ = std::fs::remove_dir_all(cache.join("images"));
        }
        let mut jobs = Vec::new();
        for n in 0..JOBS_PER_ROUND {
            let seconds = 0.1 * random.u32(0..4) as f32;
            jobs.push(
                self.submit(victim, format!("{name}n{n}"), seconds, false)
                    .await,
            );
        }
        if needs(Precondition::Stop) {
            jobs.push(
                self.submit(victim, format!("{name}unwanted"), 1000.0, true)
                    .await,
            );
        }
        if needs(Precondition::Renewal) {
            jobs.push(
                self.submit(victim, format!("{name}renewed"), long, false)
                    .await,
            );
        }
        jobs
    }

    /// Arms the points of other programs that this point needs.
    fn arm_prerequisites(&mut self, points: &[Point]) {
        for point in points {
            match point.need {
                Precondition::Unlock => self.points.arm("run.claimed", 1),
                Precondition::Verdict => self.points.arm("run.started", 1),
                Precondition::Restart if self.stack.api.is_running() => self.stack.api.kill(),
                _ => {}
            }
        }
    }

    /// Waits until every container has ended and every point has killed. A kill at one point may
    /// keep the program from reaching another; then the wait for that point is short.
    async fn wait_until_done(&mut self, victim: Victim, picked: &[Point], jobs: &[Job]) {
        let mut renewal = picked
            .iter()
            .any(|point| point.need == Precondition::Renewal);
        let until = Instant::now() + STEP_TIMEOUT;
        let mut ended = None;
        loop {
            // Read before the records: if no point is armed now, no program dies later.
            let armed = picked.iter().map(|p| p.name);
            let armed: Vec<&str> = armed.filter(|p| self.points.is_armed(p)).collect();
            let mut waiting = Vec::new();
            for job in jobs {
                self.restart_dead(victim);
                let record = self.stack.user.container(&job.container).await;
                match record {
                    Ok(record) if record.state.is_final() => continue,
                    Ok(record) if record.state == ContainerState::Running => {
                        if job.unwanted {
                            let zero = json!({"priority": 0});
                            // The next pass of the loop repeats it if the server dies.
                            let _ = self
                                .stack
                                .user
                                .update_container_request(&job.request, zero)
                                .await;
                        }
                        if renewal && job.name.ends_with("renewed") {
                            renewal = !self.let_token_end_soon(&record).await;
                        }
                    }
                    _ => {}
                }
                waiting.push(format!("{} {}", job.name, job.container));
            }
            let now = Instant::now();
            match waiting.is_empty() {
                true if armed.is_empty() || now > *ended.get_or_insert(now) + SETTLE_TIME => return,
                true => {}
                false => ended = None,
            }
            assert!(
                Instant::now() < until,
                "not ended: {waiting:?}; not reached: {armed:?}; killed: {:?}\nthe dispatcher: {}\ndispatch-api: {}",
                self.points.killed(),
                self.stack.dispatcher.log_text(),
                self.stack.api.log_text()
            );
            tokio::time::sleep(RECORD_POLL_INTERVAL).await;
        }
    }

    /// Restarts the victim if it was killed. No other program may have ended.
    pub(super) fn restart_dead(&mut self, victim: Victim) {
        for (who, program) in [
            (Victim::Dispatcher, &mut self.stack.dispatcher),
            (Victim::Api, &mut self.stack.api),
        ] {
            if let Some(status) = program.has_ended() {
                let at_a_point = who == victim && status.signal() == Some(9);
                assert!(
                    at_a_point,
                    "{who:?} ended: {status}\n{}",
                    program.log_text()
                );
            }
            if !program.is_running() {
                program.start();
            }
        }
    }

    /// Sets the token's remaining time to an hour, so that a restarted dispatcher renews it.
    async fn let_token_end_soon(&mut self, record: &Container) -> bool {
        let Some(token) = &record.locked_by_uuid else {
            return false;
        };
        let soon = Timestamp::now() + Duration::from_secs(3600);
        // The server may just have died.
        if self.root.renew_token(token, soon).await.is_err() {
            return false;
        }
        self.stack.dispatcher.kill();
        self.stack.dispatcher.start();
        true
    }

    /// Reads a record from a server that may have to be restarted first.
    pub(super) async fn record(&mut self, victim: Victim, container: &ContainerUuid) -> Container {
        let until = Instant::now() + STEP_TIMEOUT;
        loop {
            self.restart_dead(victim);
            match self.stack.user.container(container).await {
                Ok(record) => return record,
                Err(error) => assert!(Instant::now() < until, "{container}: {error}"),
            }
            tokio::time::sleep(RECORD_POLL_INTERVAL).await;
        }
    }
}

impl Drop for KillTarget {
    /// A test that failed leaves no process behind.
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
