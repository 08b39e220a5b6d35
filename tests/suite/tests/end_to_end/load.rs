//! Two hundred containers on a real scheduler while the dispatcher and the scheduler's daemons are
//! killed. At the end each container has the one end it should have, and none was started twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, Error};
use serde_json::{Value, json};

use suite_tests::stack::Stack;
use suite_tests::start_log::StartLog;

const CONTAINERS: usize = 200;
/// Ended containers after which the dispatcher is killed.
const KILL_DISPATCHER_AT: [usize; 5] = [10, 50, 90, 120, 150];
const CHANGE_PRIORITIES_AT: usize = 30;

/// A kind of container, by what it asks for and how it must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Plain,
    /// The container requests one of the pool's GPUs, which do not exist: it cannot start.
    Gpu,
    OverMemory,
    OverTime,
    CancelledRunning,
    CancelledPending,
}

/// How a container ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    Complete,
    KilledForMemory,
    RanTooLong,
    Cancelled,
    LostWithItsNode,
    /// HTCondor or its users ended it, and crunch-run or the dispatcher recorded that.
    EndedByHTCondor,
    OnHold,
    Odd,
}

pub struct Entry {
    name: String,
    pub kind: Kind,
    request: ContainerRequestUuid,
    pub container: ContainerUuid,
    record: Option<Container>,
    /// Evictions: the request got another container after each, and its user sees only the last.
    evictions: u32,
}

/// Differences between schedulers.
pub struct Scenario {
    pub timeout: Duration,
    /// Minimum run time of a container in seconds.
    pub seconds: f32,
    /// Command that uses more memory than the container may use.
    pub over_memory: &'static str,
    pub has_gpus: bool,
    /// The scheduler's classification of a container that did not complete, if it has one.
    pub scheduler_end: fn(&Container) -> Option<End>,
    /// The end that the scheduler may give to a container of this kind.
    pub expected_end: fn(Kind) -> Option<End>,
}

/// The containers of one run.
pub struct Load {
    scenario: Scenario,
    pub entries: Vec<Entry>,
    starts: StartLog,
    began: Instant,
    ended: usize,
    faults: Vec<(&'static str, usize)>,
}

impl Scenario {
    fn kind(&self, n: usize) -> Kind {
        match n {
            20 => Kind::OverMemory,
            40 => Kind::OverTime,
            60 => Kind::CancelledRunning,
            198 if self.has_gpus => Kind::Gpu,
            199 => Kind::CancelledPending,
            _ => Kind::Plain,
        }
    }

    async fn submit(&self, stack: &Stack, starts: &StartLog, n: usize) -> Entry {
        let (name, kind) = (format!("c{n}"), self.kind(n));
        let script = starts.script(&name, self.seconds + (n % 7) as f32 / 2.0);
        let more = match kind {
            Kind::OverMemory => format!("; {}", self.over_memory),
            Kind::OverTime | Kind::CancelledRunning => "; sleep 1000".to_owned(),
            _ => String::new(),
        };
        let is_last = matches!(kind, Kind::Gpu | Kind::CancelledPending);
        let mut request: Value = json!({
            "runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true},
            // Containers that are cancelled while pending come last.
            "priority": if is_last { 1 } else { 100 + n },
        });
        match kind {
            Kind::OverTime => request["scheduling_parameters"] = json!({"max_run_time": 3}),
            Kind::Gpu => {
                request["runtime_constraints"]["gpu"] = json!({"stack": "cuda", "device_count": 1,
                    "driver_version": "11.0", "hardware_target": ["1.0"], "vram": 1 << 20});
            }
            _ => {}
        }
        let script = format!("{script}{more}");
        let (request, container) = stack.submit(&name, &script, request).await;
        Entry {
            name,
            kind,
            request,
            container,
            record: None,
            evictions: 0,
        }
    }

    fn end(&self, record: &Container) -> End {
        let why = record.runtime_status.error.as_deref().unwrap_or_default();
        match (&record.state, record.exit_code) {
            (ContainerState::Complete, Some(0)) => End::Complete,
            (ContainerState::Cancelled, _) if why.contains("run time") => End::RanTooLong,
            (ContainerState::Complete, _) if why.contains("memory limit") => End::KilledForMemory,
            state => match ((self.scheduler_end)(record), state.0) {
                (Some(end), _) => end,
                (None, ContainerState::Cancelled) if record.priority == 0 => End::Cancelled,
                (None, ContainerState::Queued) => End::OnHold,
                (None, _) => End::Odd,
            },
        }
    }
}

impl Load {
    pub async fn submit(stack: &Stack, scenario: Scenario) -> Self {
        let starts = StartLog::listen();
        let mut entries = Vec::new();
        for n in 0..CONTAINERS {
            entries.push(scenario.submit(stack, &starts, n).await);
        }
        for entry in &entries {
            if entry.kind == Kind::CancelledPending {
                let user = stack.user.clone();
                let (request, container) = (entry.request.clone(), entry.container.clone());
                tokio::spawn(cancel_once_locked(user, request, container));
            }
        }
        Self {
            scenario,
            entries,
            starts,
            began: Instant::now(),
            ended: 0,
            faults: Vec::new(),
        }
    }

    /// Looks at all that have not ended, and does to the dispatcher and to the queue what is due.
    pub async fn refresh(&mut self, stack: &mut Stack) {
        for entry in self.entries.iter_mut().filter(|e| e.record.is_none()) {
            entry.refresh(stack).await;
        }
        self.ended = self.entries.iter().filter(|e| e.record.is_some()).count();
        for at in KILL_DISPATCHER_AT {
            if self.is_due("dispatcher", at) {
                stack.dispatcher.kill();
                stack.dispatcher.start();
            }
        }
        if self.is_due("shuffle", CHANGE_PRIORITIES_AT) {
            self.change_priorities(stack).await;
        }
    }

    /// Whether this many containers have ended, for the first time.
    pub fn is_due(&mut self, name: &'static str, at: usize) -> bool {
        let is_due = self.ended >= at && !self.faults.contains(&(name, at));
        if is_due {
            self.faults.push((name, at));
        }
        is_due
    }

    /// Whether all have ended; false after a moment.
    pub async fn is_over(&self, stack: &Stack) -> bool {
        if self.ended == CONTAINERS {
            return true;
        }
        let rest = self.entries.iter().filter(|entry| entry.record.is_none());
        let rest = rest.map(|e| format!("{} {} {:?}\n", e.name, e.container, e.kind));
        assert!(
            self.began.elapsed() < self.scenario.timeout,
            "{} ended:\n{}\n{}",
            self.ended,
            rest.collect::<String>(),
            stack.dispatcher.log_text()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
        false
    }

    /// All that wait in another order.
    async fn change_priorities(&self, stack: &Stack) {
        for (n, entry) in self.entries.iter().enumerate() {
            if entry.kind == Kind::Plain && entry.record.is_none() {
                // The container may have ended meanwhile; then its request cannot be changed.
                let _ = entry.set_priority(stack, 100 + n * 37 % CONTAINERS).await;
            }
        }
    }

    /// Prints the books, and checks them. `faults` is the number of the scheduler's own.
    pub fn assert_balance(&self, faults: usize) -> BTreeMap<(Kind, End), usize> {
        let took = self.began.elapsed().as_secs_f32();
        let mut books: BTreeMap<(Kind, End), usize> = BTreeMap::new();
        let mut attempts = 0;
        for entry in &self.entries {
            let record = entry.record.as_ref().unwrap();
            let (kind, end) = (entry.kind, self.scenario.end(record));
            let started = self.starts.count(&entry.name);
            *books.entry((kind, end)).or_default() += 1;
            attempts += record.lock_count;
            let expected = match kind {
                Kind::Plain => Some(End::Complete),
                Kind::OverMemory => Some(End::KilledForMemory),
                Kind::OverTime => Some(End::RanTooLong),
                Kind::CancelledRunning => Some(End::Cancelled),
                Kind::CancelledPending | Kind::Gpu => Some(End::OnHold),
            };
            let may = [expected, (self.scenario.expected_end)(kind)].contains(&Some(end));
            assert!(may, "{kind:?} became {end:?}: {record:?}");
            let most = u32::from(!matches!(kind, Kind::CancelledPending | Kind::Gpu));
            let most = most + entry.evictions;
            assert!(started <= most, "{} started {started} times", entry.name);
            if end == End::Complete {
                assert!(started > 0, "{}", entry.name);
            }
        }
        println!("{CONTAINERS} containers in {took:.0} s, {attempts} attempts");
        for ((kind, end), count) in &books {
            println!("{count:>5}  {kind:?} -> {end:?}");
        }
        assert_eq!(books.values().sum::<usize>(), CONTAINERS);
        let expected = KILL_DISPATCHER_AT.len() + 1 + faults;
        assert_eq!(self.faults.len(), expected, "{:?}", self.faults);
        books
    }
}

/// Cancels a container that is among the last in the queue. A task of its own: a look at all
/// containers, or a change of all priorities, takes longer on a busy machine than the queue.
async fn cancel_once_locked(user: Client, request: ContainerRequestUuid, container: ContainerUuid) {
    loop {
        let record = user.container(&container).await.unwrap();
        if record.state == ContainerState::Locked {
            let change = json!({"priority": 0});
            let changed = user.update_container_request(&request, change).await;
            changed.unwrap();
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

impl Entry {
    async fn refresh(&mut self, stack: &Stack) {
        let record = match stack.user.container(&self.container).await {
            Err(error) if error.is_not_found() => {
                let request = stack.user.container_request(&self.request).await.unwrap();
                self.container = request.container_uuid.unwrap();
                self.evictions += 1;
                return;
            }
            record => record.unwrap(),
        };
        let cancel = match self.kind {
            Kind::CancelledRunning => record.state == ContainerState::Running,
            // crunch-run reports at each attempt that the container cannot run there.
            Kind::Gpu => record.lock_count > 1,
            _ => false,
        };
        if cancel && record.priority > 0 {
            self.set_priority(stack, 0).await.unwrap();
        }
        // A container that never ran stays in the queue, on hold.
        let is_held = record.state == ContainerState::Queued && record.priority == 0;
        self.record = Some(record).filter(|record| record.state.is_final() || is_held);
    }

    async fn set_priority(&self, stack: &Stack, priority: usize) -> Result<(), Error> {
        let change = json!({"priority": priority});
        let done = stack.user.update_container_request(&self.request, change);
        done.await.map(drop)
    }
}
