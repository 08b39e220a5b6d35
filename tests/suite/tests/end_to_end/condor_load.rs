//! The load on a real HTCondor pool of two machines with GPUs while the pool's daemons are killed,
//! and jobs are removed and evicted, too.

use std::collections::BTreeSet;
use std::time::Duration;

use arvados_client::records::{Container, ContainerState};
use serde_json::Value;

use crate::load::{End, Entry, Kind, Load, Scenario};
use suite_tests::condor_lab::Pool;
use suite_tests::stack::wait_for;

const RESTART_SCHEDD_AT: usize = 60;
const RESTART_STARTD_AT: usize = 100;
/// Numbers of ended containers after which a test removes a waiting job, a running one, and evicts
/// one.
const REMOVE_IDLE: usize = 20;
const REMOVE_RUNNING: usize = 70;
const VACATE: usize = 80;

const SCENARIO: Scenario = Scenario {
    timeout: Duration::from_secs(520),
    seconds: 1.0,
    over_memory: "dd if=/dev/zero of=/dev/null bs=500M count=100000",
    has_gpus: true,
    scheduler_end,
    expected_end: |kind| match kind {
        Kind::Plain | Kind::OverMemory => Some(End::EndedByHTCondor),
        _ => None,
    },
};

fn scheduler_end(record: &Container) -> Option<End> {
    let why = record.runtime_status.error.as_deref().unwrap_or_default();
    let condor = [
        "signal TERM",
        "was taken off its machine",
        "was removed",
        "was held and then removed",
        "killed by signal",
        "more memory",
    ];
    let is_told = condor.iter().any(|words| why.contains(words));
    let is_cancelled = record.state == ContainerState::Cancelled && record.priority > 0;
    (is_cancelled && is_told).then_some(End::EndedByHTCondor)
}

/// Does something to the job of one plain container, in this state; which container.
fn to_one(pool: &Pool, entries: &[Entry], status: i64, command: &str) -> Option<String> {
    let plain: BTreeSet<&str> = entries
        .iter()
        .filter(|entry| entry.kind == Kind::Plain)
        .map(|entry| entry.container.as_str())
        .collect();
    let is_it = |ad: &Value| {
        let container = ad["ContainerUUID"].as_str().unwrap_or_default();
        ad["JobStatus"] == status && plain.contains(container)
    };
    // The newest: it will not end before it is found.
    let ad = pool.queue().into_iter().rfind(is_it)?;
    let job = format!("{}.{}", ad["ClusterId"], ad["ProcId"]);
    pool.lab.try_run(command, &[&job])?;
    Some(ad["ContainerUUID"].as_str()?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_containers_and_the_books_balance_on_htcondor() {
    let rule = "SYSTEM_PERIODIC_HOLD = JobStatus == 2 && MemoryUsage > 2 * RequestMemory\n\
                SYSTEM_PERIODIC_HOLD_REASON = \"it used more memory than it asked for\"\n";
    let pool = Pool::with(&["--slots", "4", "--gpus", "1", "--machines", "2"], rule);
    let mut stack = pool
        .stack(&[
            "--command-timeout",
            "20s",
            "--stop-grace",
            "10s",
            "--max-pending",
            "300",
            "--submit-line",
            "job_lease_duration = 30",
        ])
        .await;
    let mut load = Load::submit(&stack, SCENARIO).await;
    let mut hit = Vec::new();
    loop {
        load.refresh(&mut stack).await;
        for (name, at, status, command) in [
            ("remove idle", REMOVE_IDLE, 1, "condor_rm"),
            ("remove running", REMOVE_RUNNING, 2, "condor_rm"),
            ("vacate", VACATE, 2, "condor_vacate_job"),
        ] {
            if load.is_due(name, at) {
                let one = || to_one(&pool, &load.entries, status, command);
                hit.push((name, wait_for("such a job", suite_tests::STEP_TIMEOUT, one)));
            }
        }
        if load.is_due("schedd", RESTART_SCHEDD_AT) {
            pool.kill("condor_schedd");
        }
        if load.is_due("startd", RESTART_STARTD_AT) {
            pool.kill("condor_startd");
        }
        if load.is_over(&stack).await {
            break;
        }
    }
    println!("{hit:?}");
    let books = load.assert_balance(5);
    let ended = books.get(&(Kind::Plain, End::EndedByHTCondor));
    // One job was removed, one evicted, and at most four ran on the machine whose startd was
    // killed. A busy machine may lose another one.
    assert!(ended.is_none_or(|ended| *ended <= 10), "{books:?}");
    pool.is_empty_soon();
}
