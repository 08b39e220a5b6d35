//! Limits of a command, and how it is stopped.

use arvados_client::records::ContainerState;
use cgroup::Cgroup;
use rustix::process::Signal;
use serde_json::json;

use crate::contract::lab::{Lab, counted, until_counted, with_go};
use crate::run_lab::{file, go_on, signal};

pub async fn the_memory_limit_kills_and_is_named(lab: &Lab) {
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 24 << 20}});
    let ended = lab.sh_when_counted("exec tail /dev/zero", more).await;
    assert_eq!(ended.code(), 137, "{:?}", ended.story());
    assert!(
        ended.error().starts_with("killed by its memory limit"),
        "{}",
        ended.error()
    );
}

/// What is in /dev/shm is memory: either the limit ends it, or the file system is full.
pub async fn files_in_memory_are_limited(lab: &Lab) {
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 64 << 20}});
    let script =
        "dd if=/dev/zero of=/dev/shm/x bs=1048576 count=200 2>/dev/null && sleep 60 && echo all";
    let ended = lab.sh_with(script, more).await;
    let error = ended.record.runtime_status.error.as_deref();
    let is_named = error.is_some_and(|error| error.starts_with("killed by its memory limit"));
    // Podman 4.3 never names it.
    assert!(
        is_named || [1, 137].contains(&ended.code()),
        "{:?}",
        ended.story()
    );
}

/// What it deletes and keeps open takes space, and what the engine has open does not count.
pub async fn deleted_files_count_as_scratch(lab: &Lab) {
    let run = async |script: &str| {
        let flags = ["--scratch-limit=16MiB"];
        let (job, child) = lab.start(&["sh", "-c", script], json!({}), &flags).await;
        lab.end(job, child).await
    };
    let ended = run("sleep 1; echo done").await;
    assert_eq!(ended.stdout(), ["done"], "{:?}", ended.story());
    let script = "exec 3>/out/x; rm /out/x; head -c 40000000 /dev/zero >&3; sleep 1000";
    let ended = run(script).await;
    let error = ended.record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("of 16.0 MiB of scratch space"), "{error}");
}

pub async fn exit_0_after_a_child_was_killed_for_memory_is_a_warning(lab: &Lab) {
    let more = json!({"runtime_constraints": {"vcpus": 1, "ram": 24 << 20}});
    let ended = lab.sh_when_counted("tail /dev/zero; exit 0", more).await;
    assert_eq!(ended.code(), 0);
    let warning = ended.record.runtime_status.warning.unwrap_or_default();
    assert!(warning.contains("memory"), "{warning}");
}

pub async fn term_is_heard_within_the_grace(lab: &Lab) {
    let script = "trap 'echo stopping; exit 5' TERM; echo ready; while :; do sleep 0.1; done";
    let (job, child) = lab
        .start(&["sh", "-c", script], json!({}), &["--stop-grace=60s"])
        .await;
    lab.world.until_logged(&job, "ready").await;
    signal(&child, Signal::TERM);
    let ended = lab.end(job, child).await;
    // The TERM handler ran.
    assert!(file(&ended.log, "stdout.txt").contains("stopping"));
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
}

pub async fn who_ignores_term_is_killed(lab: &Lab) {
    let script = "trap '' TERM; echo ready; while :; do sleep 0.1; done";
    let (job, child) = lab
        .start(&["sh", "-c", script], json!({}), &["--stop-grace=1s"])
        .await;
    lab.world.until_logged(&job, "ready").await;
    signal(&child, Signal::TERM);
    let ended = lab.end(job, child).await;
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
}

pub async fn max_run_time_ends_it(lab: &Lab) {
    let more = json!({"scheduling_parameters": {"max_run_time": 1}});
    let (job, child) = lab
        .start(&["sleep", "1000"], more, &["--stop-grace=1s"])
        .await;
    let ended = lab.end(job, child).await;
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
}

pub async fn what_it_leaves_in_the_background_ends_with_it(lab: &Lab) {
    let ended = lab.sh("sleep 1000 & (sleep 1000 &) ; echo done").await;
    assert_eq!(ended.stdout(), ["done"]);
}

pub async fn the_limit_of_processes_is_kept(lab: &Lab) {
    // The shell notices the failed fork, goes on, and fails later: a process that ended at once
    // might not be sampled.
    let script = "mkfifo /tmp/pipe; (for i in $(seq 60); do sleep 1000 & done; echo all); echo refused; \
                  until [ -e /go/on ]; do read -t 1 nothing <>/tmp/pipe; done; exit 3";
    let flags = ["--pids-limit=20", "--crunchstat-interval=1s"];
    let (job, child) = lab
        .start(&["sh", "-c", script], with_go(json!({})), &flags)
        .await;
    lab.world.until_logged(&job, "refused").await;
    // The next one may have been begun before.
    until_counted(&lab.world, &job, counted(&job) + 2).await;
    go_on(&job);
    let ended = lab.end(job, child).await;
    assert_eq!(ended.code(), 3);
    assert_eq!(ended.lines("stdout.txt"), ["refused"]);
    assert!(
        ended.error().contains("its limit of 20 was reached"),
        "{}",
        ended.error()
    );
}

pub async fn the_number_of_cpus_is_kept(lab: &Lab) {
    // Reads the kernel's settings, because measurements depend on the machine's load.
    let name = format!("sleep-{:016x}", fastrand::u64(..));
    let script = "echo ready; sleep 1000; exit 0";
    let (job, child) = lab
        .start(
            &["sh", "-c", script, &name],
            json!({}),
            &["--stop-grace=1s"],
        )
        .await;
    lab.world.until_logged(&job, "ready").await;
    let quotas: Vec<f64> = processes_named(&name)
        .into_iter()
        .filter_map(|pid| Cgroup::of_process(pid).ok()?.cpu_quota())
        .collect();
    signal(&child, Signal::TERM);
    lab.end(job, child).await;
    // Processes of the engine that have the name in their arguments are outside the group.
    assert!(quotas.contains(&1.0), "{quotas:?}");
}

/// Pids of the processes that have `name` as an argument.
pub fn processes_named(name: &str) -> Vec<u32> {
    procfs::process::all_processes()
        .unwrap()
        .flatten()
        .filter(|process| {
            process
                .cmdline()
                .is_ok_and(|words| words.iter().any(|word| word == name))
        })
        .map(|process| process.pid() as u32)
        .collect()
}

pub async fn priority_0_stops_it(lab: &Lab) {
    let (job, child) = lab
        .start(
            &["sh", "-c", "echo ready; sleep 1000"],
            json!({}),
            &["--stop-grace=1s"],
        )
        .await;
    lab.world.until_logged(&job, "ready").await;
    lab.world
        .user
        .update_container_request(&job.request, json!({"priority": 0}))
        .await
        .unwrap();
    let ended = lab.end(job, child).await;
    assert_eq!(ended.record.state, ContainerState::Cancelled);
    assert_eq!(ended.story().last(), Some(&"Cancelled"));
    assert!(ended.error().contains("priority"), "{}", ended.error());
    assert_eq!(ended.lines("stdout.txt"), ["ready"]);
}
