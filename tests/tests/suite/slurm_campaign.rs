//! Two hundred containers on a real Slurm of four nodes, while everything that can die dies. At the end the books balance:
//! each container has one end, the one it should have, and none was started twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use arvados_client::records::{Container, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid, Error};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::slurm_lab::Cluster;
use crate::stack::{Stack, wait_for};
use crate::starts::Starts;

const COUNT: usize = 200;
const PATIENCE: Duration = Duration::from_secs(480);
/// Ended containers after which the dispatcher is killed.
const KILLS: [usize; 5] = [10, 50, 90, 120, 150];
const SHUFFLE: usize = 30;
const CONTROLLER: usize = 60;
const NODE: usize = 100;

/// What is asked of a container, and what must become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plain,
    OverMemory,
    OverTime,
    CancelledRunning,
    CancelledPending,
}

/// What became of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    Complete,
    KilledForMemory,
    RanTooLong,
    Cancelled,
    LostWithItsNode,
    OnHold,
    Odd,
}

struct Entry {
    name: String,
    kind: Kind,
    request: ContainerRequestUuid,
    container: ContainerUuid,
    record: Option<Container>,
}

fn kind(n: usize) -> Kind {
    match n {
        20 => Kind::OverMemory,
        40 => Kind::OverTime,
        60 => Kind::CancelledRunning,
        199 => Kind::CancelledPending,
        _ => Kind::Plain,
    }
}

async fn submit(stack: &Stack, starts: &Starts, n: usize) -> Entry {
    let (name, kind) = (format!("c{n}"), kind(n));
    let told = starts.script(&name, 2.0 + (n % 7) as f32 / 2.0);
    let more = match kind {
        Kind::OverMemory => "; dd if=/dev/zero of=/dev/null bs=300M count=1",
        Kind::OverTime | Kind::CancelledRunning => "; sleep 1000",
        Kind::Plain | Kind::CancelledPending => "",
    };
    let mut request: Value = json!({
        "runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "API": true},
        // The one that is to be cancelled while it waits comes last.
        "priority": if kind == Kind::CancelledPending { 1 } else { 100 + n },
    });
    if kind == Kind::OverTime {
        request["scheduling_parameters"] = json!({"max_run_time": 3});
    }
    let script = format!("{told}{more}");
    let (request, container) = stack.submit(&name, &script, request).await;
    Entry {
        name,
        kind,
        request,
        container,
        record: None,
    }
}

fn end(record: &Container) -> End {
    let status = &record.runtime_status;
    let why = status.error.clone().unwrap_or_default();
    match (&record.state, record.exit_code) {
        (ContainerState::Complete, Some(0)) => End::Complete,
        (ContainerState::Complete, Some(137)) => End::KilledForMemory,
        (ContainerState::Cancelled, _) if why.contains("run time") => End::RanTooLong,
        (ContainerState::Cancelled, _) if why.contains("lost with its node") => {
            End::LostWithItsNode
        }
        (ContainerState::Cancelled, _) if record.priority == 0 => End::Cancelled,
        (ContainerState::Queued, _) => End::OnHold,
        _ => End::Odd,
    }
}

/// Looks at all that have not ended; how many have.
async fn look(stack: &Stack, entries: &mut [Entry]) -> usize {
    for entry in entries.iter_mut().filter(|entry| entry.record.is_none()) {
        let record = stack.container(&entry.container).await;
        let cancel = match entry.kind {
            Kind::CancelledRunning => record.state == ContainerState::Running,
            // It is the last in the queue.
            Kind::CancelledPending => record.state == ContainerState::Locked,
            _ => false,
        };
        if cancel && record.priority > 0 {
            set_priority(stack, entry, 0).await.unwrap();
        }
        // What was never run stays in the queue, on hold.
        let is_held = record.state == ContainerState::Queued && record.priority == 0;
        entry.record = Some(record).filter(|record| record.state.is_final() || is_held);
    }
    entries.iter().filter(|e| e.record.is_some()).count()
}

async fn set_priority(stack: &Stack, entry: &Entry, priority: usize) -> Result<(), Error> {
    let change = json!({"priority": priority});
    let done = stack.user.update_container_request(&entry.request, change);
    done.await.map(drop)
}

/// All that wait in another order.
async fn shuffle(stack: &Stack, entries: &[Entry]) {
    for (n, entry) in entries.iter().enumerate() {
        if entry.kind == Kind::Plain && entry.record.is_none() {
            // It may have ended meanwhile, when its request takes no change any more.
            let _ = set_priority(stack, entry, 100 + n * 37 % COUNT).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_containers_and_the_books_balance() {
    let node_is_missed = ["-x", "SlurmdTimeout=15"];
    let size = ["-n", "4", "-c", "4", "-m", "4000"];
    let cluster = Cluster::up(&[size.as_slice(), &node_is_missed].concat());
    let more = [
        "--command-timeout",
        "20s",
        "--stop-grace",
        "10s",
        "--max-pending",
        "300",
        "--scheduler-rate",
        "0",
    ];
    let mut stack = cluster.stack(&more).await;
    let starts = Starts::listen();
    let mut entries = Vec::new();
    for n in 0..COUNT {
        entries.push(submit(&stack, &starts, n).await);
    }
    let began = Instant::now();
    let mut faults = Vec::new();
    loop {
        let ended = look(&stack, &mut entries).await;
        let mut due = |name: &'static str, at: usize| {
            let is_due = ended >= at && !faults.contains(&(name, at));
            if is_due {
                faults.push((name, at));
            }
            is_due
        };
        for at in KILLS {
            if due("dispatcher", at) {
                stack.dispatcher.kill();
                stack.dispatcher.start();
            }
        }
        if due("shuffle", SHUFFLE) {
            shuffle(&stack, &entries).await;
        }
        if due("controller", CONTROLLER) {
            cluster.end("slurmctld", Signal::TERM);
            cluster.start_controller();
        }
        if due("node", NODE) {
            cluster.end("slurmd.n4", Signal::KILL);
        }
        if ended == COUNT {
            break;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{ended} ended:\n{}\n{}",
            unfinished(&entries),
            stack.dispatcher.said()
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    balance(&entries, &starts, began.elapsed());
    assert_eq!(faults.len(), KILLS.len() + 3, "{faults:?}");
    wait_for("the last job to go", Duration::from_secs(120), || {
        (cluster.all_jobs() == 0).then_some(())
    });
}

fn unfinished(entries: &[Entry]) -> String {
    let rest = entries.iter().filter(|entry| entry.record.is_none());
    rest.map(|e| format!("{} {} {:?}\n", e.name, e.container, e.kind))
        .collect()
}

/// Prints the books, and checks them.
fn balance(entries: &[Entry], starts: &Starts, took: Duration) {
    let mut books: BTreeMap<(Kind, End), usize> = BTreeMap::new();
    let mut attempts = 0;
    for entry in entries {
        let record = entry.record.as_ref().unwrap();
        let (end, started) = (end(record), starts.of(&entry.name));
        *books.entry((entry.kind, end)).or_default() += 1;
        attempts += record.lock_count;
        let may = match entry.kind {
            Kind::Plain => matches!(end, End::Complete | End::LostWithItsNode),
            Kind::OverMemory => end == End::KilledForMemory,
            Kind::OverTime => end == End::RanTooLong,
            Kind::CancelledRunning => end == End::Cancelled,
            Kind::CancelledPending => end == End::OnHold,
        };
        assert!(may, "{:?} became {end:?}: {record:?}", entry.kind);
        let most = u32::from(entry.kind != Kind::CancelledPending);
        assert!(started <= most, "{} started {started} times", entry.name);
        if end == End::Complete {
            assert_eq!(started, 1, "{}", entry.name);
        }
    }
    println!(
        "{COUNT} containers in {:.0} s, {attempts} attempts",
        took.as_secs_f32()
    );
    for ((kind, end), count) in &books {
        println!("{count:>5}  {kind:?} -> {end:?}");
    }
    assert_eq!(books.values().sum::<usize>(), COUNT);
}
