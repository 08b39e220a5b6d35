//! A stack whose programs die at armed points, round after round, and what must hold after each.

use std::collections::BTreeSet;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use arvados_client::filter::Query;
use arvados_client::records::{Authorization, Container, ContainerState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, scopes};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::tables::{Fate, Need, Point, all};
use crate::left;
use crate::points::{Passing, Points};
use crate::stack::{Stack, client, complete};
use crate::starts::Starts;

/// For everything that a round is waited for.
const PATIENCE: Duration = Duration::from_secs(90);
/// Ordinary containers of each round.
const JOBS: usize = 5;
/// How often a round tries to bring its victim to all its points.
const CHANCES: usize = 4;
/// From the end of the last container to the last passing of a point.
const SETTLE: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(40);

/// Who dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Victim {
    Dispatcher,
    /// Nobody starts it again but the dispatcher.
    Executor,
    Api,
}

struct Job {
    name: String,
    request: ContainerRequestUuid,
    container: ContainerUuid,
    /// Its user lets go of it while it runs.
    unwanted: bool,
}

pub struct Scene {
    stack: Stack,
    points: Points,
    starts: Starts,
    root: Client,
    /// Words that tell of a crunch-run that was killed.
    verdict: &'static str,
    /// Directories that name the containers they belong to.
    places: Vec<PathBuf>,
    cache: Option<PathBuf>,
    /// Its dispatcher delivers what a killed crunch-run left.
    delivers: bool,
    containers: BTreeSet<ContainerUuid>,
}

impl Scene {
    pub fn new(stack: Stack, verdict: &'static str, places: Vec<PathBuf>) -> Self {
        Self {
            points: Points::of(&stack.points_dir()),
            starts: Starts::listen(),
            root: client(&stack.ready, "root"),
            stack,
            verdict,
            places,
            cache: None,
            delivers: false,
            containers: BTreeSet::new(),
        }
    }

    /// Where its node keeps unpacked images.
    pub fn with_cache(mut self, cache: PathBuf) -> Self {
        self.cache = Some(cache);
        self
    }

    /// Its dispatcher delivers what a killed crunch-run left.
    pub fn with_deliveries(mut self) -> Self {
        self.delivers = true;
        self
    }

    async fn submit(&mut self, victim: Victim, name: String, seconds: f32, unwanted: bool) -> Job {
        let network = json!({"runtime_constraints": {"vcpus": 1, "ram": 16 << 20, "API": true}});
        let until = Instant::now() + PATIENCE;
        let mut tries = 0;
        let (name, request, container) = loop {
            // An earlier one may have been taken although its answer was lost: it is another, which nobody asks for.
            let name = format!("{}{name}", "again".repeat(tries));
            let script = self.starts.script(&name, seconds);
            match self.stack.try_submit(&name, &script, network.clone()).await {
                Ok((request, container)) => break (name, request, container),
                Err(error) => {
                    assert!(victim == Victim::Api && Instant::now() < until, "{error}");
                    self.revive(victim);
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

    /// Some containers, and deaths at the picked points while they are seen to.
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
        for chance in 0..CHANCES {
            let open: Vec<Point> = picked
                .iter()
                .filter(|point| chance == 0 || self.points.is_armed(point.name))
                .copied()
                .collect();
            if open.is_empty() {
                break;
            }
            let name = format!("r{round}c{chance}");
            // A look of the dispatcher must end while the one whose token is renewed still runs.
            let long = 3.0 * (1 << chance) as f32;
            jobs.extend(self.submit_for(victim, &name, long, &open, random).await);
            for point in open.iter().filter(|_| chance == 0) {
                let often = point.need == Need::Nothing && point.fate == Fate::Completes;
                let nth = if often { random.u32(1..4) } else { 1 };
                self.points.arm(point.name, nth);
            }
            self.provoke(&open);
            self.follow(victim, &open, &jobs).await;
        }
        let armed = picked.iter().map(|point| point.name);
        let armed: Vec<&str> = armed.filter(|p| self.points.is_armed(p)).collect();
        assert!(armed.is_empty(), "nobody came to {armed:?}");
        let killed = self.points.killed().split_off(before);
        for job in &jobs {
            self.judge(victim, job, &killed).await;
        }
        self.is_clean(victim).await;
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
        let needs = |need: Need| points.iter().any(|point| point.need == need);
        if needs(Need::ColdCache)
            && let Some(cache) = &self.cache
        {
            // In the first round there is none yet.
            let _ = std::fs::remove_dir_all(cache.join("layers"));
            let _ = std::fs::remove_dir_all(cache.join("images"));
        }
        let mut jobs = Vec::new();
        for n in 0..JOBS {
            let seconds = 0.1 * random.u32(0..4) as f32;
            jobs.push(
                self.submit(victim, format!("{name}n{n}"), seconds, false)
                    .await,
            );
        }
        if needs(Need::Stop) {
            jobs.push(
                self.submit(victim, format!("{name}unwanted"), 1000.0, true)
                    .await,
            );
        }
        if needs(Need::Renewal) {
            jobs.push(
                self.submit(victim, format!("{name}renewed"), long, false)
                    .await,
            );
        }
        jobs
    }

    /// What has to happen to others so that the points are come to.
    fn provoke(&mut self, points: &[Point]) {
        for point in points {
            match point.need {
                Need::Unlock => self.points.arm("run.claimed", 1),
                Need::Verdict => self.points.arm("run.started", 1),
                Need::Restart if self.stack.api.is_running() => self.stack.api.kill(),
                _ => {}
            }
        }
    }

    /// Until every container has ended and every point has killed. The death at one point may keep the program from
    /// coming to another: then the next chance is waited for no longer than it takes to tidy up.
    async fn follow(&mut self, victim: Victim, picked: &[Point], jobs: &[Job]) {
        let mut renewal = picked.iter().any(|point| point.need == Need::Renewal);
        let until = Instant::now() + PATIENCE;
        let mut ended = None;
        loop {
            // Before the records are read: where none is armed, nobody dies after that.
            let armed = picked.iter().map(|p| p.name);
            let armed: Vec<&str> = armed.filter(|p| self.points.is_armed(p)).collect();
            let mut waiting = Vec::new();
            for job in jobs {
                self.revive(victim);
                let record = self.stack.user.container(&job.container).await;
                match record {
                    Ok(record) if record.state.is_final() => continue,
                    Ok(record) if record.state == ContainerState::Running => {
                        if job.unwanted {
                            let zero = json!({"priority": 0});
                            // Asked again in the next turn if the server dies over it.
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
                true if armed.is_empty() || now > *ended.get_or_insert(now) + SETTLE => return,
                true => {}
                false => ended = None,
            }
            assert!(
                Instant::now() < until,
                "not ended: {waiting:?}; not come to: {armed:?}; killed: {:?}\nthe dispatcher: {}\ndispatch-api: {}",
                self.points.killed(),
                self.stack.dispatcher.said(),
                self.stack.api.said()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Starts the victim again where it has died; nothing else may have.
    fn revive(&mut self, victim: Victim) {
        for (who, program) in [
            (Victim::Dispatcher, &mut self.stack.dispatcher),
            (Victim::Api, &mut self.stack.api),
        ] {
            if let Some(status) = program.has_ended() {
                let at_a_point = who == victim && status.signal() == Some(9);
                assert!(at_a_point, "{who:?} ended: {status}\n{}", program.said());
            }
            if !program.is_running() {
                program.start();
            }
        }
    }

    /// A dispatcher that comes back finds a token that has an hour left.
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

    /// Of a server that may still have to come back.
    async fn record(&mut self, victim: Victim, container: &ContainerUuid) -> Container {
        let until = Instant::now() + PATIENCE;
        loop {
            self.revive(victim);
            match self.stack.user.container(container).await {
                Ok(record) => return record,
                Err(error) => assert!(Instant::now() < until, "{container}: {error}"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn judge(&mut self, victim: Victim, job: &Job, killed: &[Passing]) {
        let Job {
            name, container, ..
        } = job;
        let record = self.record(victim, container).await;
        let deaths: Vec<&Passing> = killed
            .iter()
            .filter(|death| death.arguments.contains(container.as_str()))
            .collect();
        let context = format!("{name} {record:?} after {deaths:?}");
        let starts = self.starts.of(name);
        assert!(starts <= 1, "started {starts} times: {context}");
        let running = self.times_running(container).await;
        assert!(running <= 1, "{running} times Running: {context}");
        assert_eq!(record.locked_by_uuid, None, "{context}");
        let fatal = deaths.iter().any(|death| {
            let mut points = all().filter(|point| point.name == death.point);
            points.any(|point| match point.fate {
                Fate::Completes => false,
                Fate::Cancelled => true,
                Fate::Delivered => !self.delivers,
            })
        });
        if job.unwanted || fatal {
            assert_eq!(record.state, ContainerState::Cancelled, "{context}");
        }
        if fatal && !job.unwanted {
            let why = record.runtime_status.error.clone().unwrap_or_default();
            assert!(why.contains(self.verdict), "{why}: {context}");
        }
        if !job.unwanted && !fatal {
            assert_eq!(record.state, ContainerState::Complete, "{context}");
            let output = complete(&record).output.clone().unwrap().to_string();
            let result = self.stack.read(&output, "result").await;
            assert_eq!(result, format!("done {name}\n"));
            assert_eq!((starts, running), (1, 1), "{context}");
        }
    }

    /// By the server's own trail of the record.
    async fn times_running(&self, container: &ContainerUuid) -> usize {
        let query =
            Query::new()
                .filter("object_uuid", "=", container)
                .filter("event_type", "=", "update");
        let trail: Vec<Value> = self
            .root
            .all("logs", query, |entry: &Value| {
                entry["uuid"].as_str().unwrap_or_default()
            })
            .await
            .unwrap();
        let state = |entry: &Value, when: &str| entry["properties"][when]["state"].clone();
        trail
            .iter()
            .filter(|entry| {
                state(entry, "old_attributes") != "Running"
                    && state(entry, "new_attributes") == "Running"
            })
            .count()
    }

    /// No token, process, control group, mount or note of any container, and no job in the scheduler.
    async fn is_clean(&mut self, victim: Victim) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.revive(victim);
            let mut found = left::traces(&self.containers);
            found.extend(
                self.processes()
                    .into_iter()
                    .map(|(pid, words)| format!("{pid} {words}")),
            );
            found.extend(self.live_tokens().await);
            if found.is_empty() {
                return;
            }
            assert!(
                Instant::now() < until,
                "left: {found:#?}\n{}",
                self.stack.dispatcher.said()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Besides, nothing that is named by a container in any directory of ours.
    pub async fn ends_clean(mut self, victim: Victim) {
        self.is_clean(victim).await;
        let until = Instant::now() + PATIENCE;
        loop {
            self.revive(victim);
            let found = left::named(&self.places, &self.containers);
            if found.is_empty() {
                return;
            }
            assert!(
                Instant::now() < until,
                "left: {found:#?}\n{:#?}\n{}",
                left::below(&found),
                self.stack.dispatcher.said()
            );
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Those of the stack but for its two servers.
    fn processes(&self) -> Vec<(u32, String)> {
        let servers = [self.stack.api.pid(), self.stack.dispatcher.pid()];
        let mut found = left::processes(self.stack.dir.path());
        found.retain(|(pid, _)| !servers.contains(&Some(*pid)));
        found
    }

    async fn live_tokens(&self) -> Vec<String> {
        let tokens = self
            .root
            .all(
                "api_client_authorizations",
                Query::new(),
                |t: &Authorization| t.uuid.as_str(),
            )
            .await;
        let now = Timestamp::now();
        let lives = |token: &Authorization| {
            scopes::attempt_container(&token.scopes).is_some()
                && token.expires_at.is_none_or(|end| end > now)
        };
        match tokens {
            Ok(tokens) => tokens
                .iter()
                .filter(|token| lives(token))
                .map(|token| format!("token {}", token.uuid))
                .collect(),
            Err(error) => vec![format!("the server does not tell its tokens: {error}")],
        }
    }
}

impl Drop for Scene {
    /// A test that failed leaves no process behind.
    fn drop(&mut self) {
        for (pid, _) in self.processes() {
            if let Some(pid) = rustix::process::Pid::from_raw(pid as i32) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
