//! Every limit, exceeded by a real container: it is stopped, and the record and result.json say
//! why.

use std::fs;

use crate::run_lab::wrapper::started_by;
use crate::run_lab::{Job, World, can_run, file, finish, go_on, left_overs, lines, signal};
use arvados_client::records::{Container, ContainerState};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::process::Child;

async fn run(world: &World, script: &str, more: Value, flags: &[&str]) -> (Job, Container, Value) {
    let job = world.lock(&["sh", "-c", script], more).await;
    let child = world.start(&job, flags);
    let (record, result) = ended(world, &job, child).await;
    (job, record, result)
}

async fn ended(world: &World, job: &Job, child: Child) -> (Container, Value) {
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(job).await;
    let log = world.log(job).await;
    let result = serde_json::from_str(file(&log, "result.json")).unwrap();
    (record, result)
}

/// Checks that the record and the result agree, and that nothing is left.
fn is_stopped(job: &Job, record: &Container, result: &Value, verdict: &str, words: &str) {
    assert_eq!(record.state, ContainerState::Cancelled, "{record:?}");
    let error = record.runtime_status.error.as_deref().unwrap_or_default();
    assert!(error.contains(words), "{error:?} says nothing of {words:?}");
    assert_eq!(result["verdict"], verdict);
    assert_eq!(result["class"], "limit");
    assert_eq!(result["error"]["sentence"], error);
    assert!(left_overs(&job.uuid).is_empty());
}

#[tokio::test]
async fn a_mount_s_capacity_is_kept() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mounts = json!({"mounts": {
        "/out": {"kind": "tmp", "capacity": 1 << 30},
        "/scratch": {"kind": "tmp", "capacity": 2 << 20},
    }});
    // The file gets its size in one call, so that no partial size is measured.
    // It is killed at once: with the grace period it could fill the disk.
    let script = "trap '' TERM; fallocate -l 1950000 /scratch/x; \
                  until [ -e /scratch/on ]; do sleep 0.05; done; \
                  fallocate -l 4000000 /scratch/x; sleep 1000; exit 0";
    let job = world.lock(&["sh", "-c", script], mounts).await;
    let child = world.start(&job, &["--stop-grace=1000s"]);
    // Said before it is too late, and not beside the end.
    let words = "it is near its limit: 1.9 MiB of 2.0 MiB at /scratch";
    let warned = |c: &Container| {
        let warning = c.runtime_status.warning.as_ref();
        warning.is_some_and(|warning| warning.starts_with(words))
    };
    world.until(&job, "it is warned", warned).await;
    go_on(&job);
    let (record, result) = ended(&world, &job, child).await;
    assert_eq!(record.runtime_status.warning, None);
    let words =
        "it was stopped because it used 3.8 MiB of 2.0 MiB at /scratch; ask for more capacity";
    is_stopped(&job, &record, &result, "scratch_bytes", words);
    assert!(
        result["peak_scratch_bytes"].as_u64().unwrap() >= 4_000_000,
        "{result}"
    );
}

#[tokio::test]
async fn the_site_s_limits_are_kept() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    // The output gets its size in one call, so that no partial size is measured.
    let cases = [
        (
            "--cpu-time-limit=1s",
            "while :; do :; done",
            "cpu_time",
            "s of 1 s of CPU time",
        ),
        (
            "--scratch-limit=3MiB",
            "head -c 5000000 /dev/zero >/x; sleep 1000",
            "scratch_bytes",
            "of 3.0 MiB of scratch space",
        ),
        (
            "--scratch-limit=3MiB",
            "exec 3>/out/x; rm /out/x; head -c 5000000 /dev/zero >&3; sleep 1000",
            "scratch_bytes",
            "of 3.0 MiB of scratch space",
        ),
        (
            "--scratch-inodes=200",
            "for i in $(seq 300); do mkdir /out/$i; done; sleep 1000",
            "scratch_files",
            "of 200 files in its scratch space",
        ),
        (
            "--output-limit=1KiB",
            "fallocate -l 5000 /out/x; sleep 1000",
            "output_size",
            "it was stopped because it used 4.9 KiB of 1.0 KiB of output",
        ),
        (
            "--output-limit=1KiB",
            "exec fallocate -l 5000 /out/x",
            "output_size",
            // Seen by the check at the end, or by one that ran before that.
            "4.9 KiB of 1.0 KiB of output",
        ),
    ];
    for (flag, script, verdict, words) in cases {
        let more = json!({"mounts": {"/out": {"kind": "tmp", "capacity": 1 << 30}}});
        let (job, record, result) = run(&world, script, more, &[flag]).await;
        is_stopped(&job, &record, &result, verdict, words);
    }
}

#[tokio::test]
async fn too_many_processes_explain_a_failure() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "for i in $(seq 40); do sleep 5 & done; exit 3";
    let (_, record, result) = run(&world, script, json!({}), &["--pids-limit=20"]).await;
    assert_eq!(record.state, ContainerState::Complete);
    assert_eq!(result["verdict"], "processes", "{result}");
    let error = record.runtime_status.error.unwrap_or_default();
    assert!(error.contains("its limit of 20 was reached"), "{error}");
    assert!(result["refused_processes"].as_u64().unwrap() > 0);
}

#[tokio::test]
async fn the_end_of_the_run_time_is_announced() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let more = json!({"scheduling_parameters": {"max_run_time": 2}});
    let (job, record, result) = run(&world, "sleep 1000", more, &[]).await;
    is_stopped(
        &job,
        &record,
        &result,
        "wall_time",
        "maximum run time exceeded",
    );
    assert_eq!(record.runtime_status.warning, None);
    let log = world.log(&job).await;
    let said = file(&log, "crunch-run.txt").contains("it is near its limit: it runs for 1.8 s");
    assert!(said, "{log:?}");
    let wall = result["wall_seconds"].as_f64().unwrap();
    assert!((2.0..600.0).contains(&wall), "{wall}");
}

#[tokio::test]
async fn the_result_says_what_happened() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; head -c 700000 /dev/zero >/out/x; exit 5";
    let (_, record, result) = run(&world, script, json!({}), &[]).await;
    assert_eq!(record.exit_code, Some(5));
    let expected = json!({
        "schema": 1, "state": "Complete", "verdict": "exited", "class": "payload", "exit_code": 5, "signal": null,
        "error": null, "warning": null, "oom_kills": 0, "refused_processes": 0,
        "memory_limit_bytes": 128 << 20, "engine": "built-in", "gpus": [],
        "host": rustix::system::uname().nodename().to_str().unwrap(),
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(&result[name], value, "{name}");
    }
    let number = |name: &str| {
        result[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {result}"))
    };
    assert!(number("wall_seconds") > 0.0 && number("wall_seconds") < 60.0);
    assert!(number("cpu_seconds") > 0.01 && number("cpu_seconds") <= number("wall_seconds") * 64.0);
    assert!(number("peak_memory_bytes") > 0.0 && number("peak_memory_bytes") <= 134_217_728.0);
    assert!(number("peak_scratch_bytes") >= 700_000.0);
    let phases = result["phases"].as_object().unwrap();
    for phase in ["claim", "inputs and image", "create", "command", "output"] {
        assert!(phases[phase].as_f64().unwrap() >= 0.0, "{phases:?}");
    }

    let small = json!({"runtime_constraints": {"vcpus": 1, "ram": 24 << 20}});
    let (_, _, result) = run(&world, "exec tail /dev/zero", small, &[]).await;
    let fields = ["verdict", "class", "exit_code", "signal"].map(|name| &result[name]);
    let expected = [json!("memory"), json!("limit"), json!(137), json!(9)];
    assert_eq!(fields, expected.each_ref());
    assert!(result["oom_kills"].as_u64().unwrap() > 0, "{result}");
}

#[tokio::test]
async fn a_notice_that_the_node_will_go_is_passed_on_and_saves_the_log() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let script = "echo so far; mkfifo /out/hold; cat /out/hold; rm /out/hold";
    let job = world.lock(&["sh", "-c", script], json!({})).await;
    let child = world.start(&job, &[]);
    world.until_logged(&job, "so far").await;
    let first = world.record(&job).await.log;
    signal(&child, Signal::USR2);
    let record = world
        .until(&job, "the notice is told and the log saved", |record| {
            record.runtime_status.preemption_notice.is_some() && record.log != first
        })
        .await;
    assert_eq!(record.state, ContainerState::Running);
    let warning = record.runtime_status.warning.unwrap_or_default();
    assert!(warning.starts_with("preemption notice: "), "{warning}");
    let saved = world.log(&job).await;
    assert_eq!(lines(file(&saved, "stdout.txt")), ["so far"]);
    signal(&child, Signal::TERM);
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    assert!(
        world
            .record(&job)
            .await
            .runtime_status
            .preemption_notice
            .is_some()
    );
}

#[tokio::test]
async fn a_container_ends_in_time_although_crunch_run_hangs() {
    if !can_run() {
        return;
    }
    if !fail_points::ENABLED {
        panic!("this test needs --features fail-points/enabled");
    }
    let world = World::new().await;
    let points = tempfile::tempdir().unwrap();
    let hold = points.path().join("run.started.hold");
    std::fs::write(&hold, "").unwrap();
    let more = json!({"scheduling_parameters": {"max_run_time": 1}});
    let job = world.lock(&["sleep", "1000"], more).await;
    let mut program = world.program(&job, &["--stop-grace=1s", "--kill-after=0s"]);
    let child = program
        .env(fail_points::VARIABLE, points.path())
        .spawn()
        .unwrap();
    world
        .until(&job, "it hangs after the start", |_| {
            let passed = std::fs::read_to_string(points.path().join("passed"));
            passed.is_ok_and(|points| points.contains("run.started "))
        })
        .await;
    // crunch-run's own limits are not reached.
    world
        .until(&job, "its processes are gone", |_| {
            let groups = left_overs(&job.uuid);
            let processes: Vec<String> = groups
                .iter()
                .filter_map(|dir| std::fs::read_to_string(dir.join("cgroup.procs")).ok())
                .collect();
            !processes.is_empty() && processes.iter().all(String::is_empty)
        })
        .await;
    assert_eq!(world.record(&job).await.state, ContainerState::Running);
    std::fs::remove_file(hold).unwrap();
    let finished = finish(child).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    let result = world.log(&job).await;
    let result = serde_json::from_str(file(&result, "result.json")).unwrap();
    is_stopped(
        &job,
        &record,
        &result,
        "wall_time",
        "maximum run time exceeded",
    );
    assert!(
        finished
            .output
            .contains("still ran 2 s after its start and was killed"),
        "{}",
        finished.output
    );
}

/// Scratch is a file system that cannot have the writable layer, so that this is in the cache. It
/// counts all the same.
#[tokio::test]
async fn a_root_that_is_written_outside_of_scratch_is_limited() {
    if !can_run() {
        return;
    }
    let world = World::new().await;
    let mounts = json!({"mounts": {"/out": {"kind": "tmp", "capacity": 1 << 20}}});
    let script = "grep ' / ' /proc/mounts >&2; fallocate -l 400000000 /big && sleep 20";
    let job = world.lock(&["sh", "-c", script], mounts).await;
    // An overlay cannot be the writable layer of another one.
    let upper = tempfile::tempdir().unwrap();
    for name in ["upper", "work"] {
        fs::create_dir(upper.path().join(name)).unwrap();
    }
    let mount = "mount -t overlay overlay -o lowerdir=$0,upperdir=$1/upper,workdir=$1/work $0 && shift && exec \"$@\"";
    let upper = upper.path().to_str().unwrap();
    let outer = [
        "unshare",
        "--mount",
        "sh",
        "-c",
        mount,
        job.dir.to_str().unwrap(),
        upper,
    ];
    let mut wrapped = started_by(&outer, &world.program(&job, &[]));
    let (record, result) = ended(&world, &job, wrapped.spawn().unwrap()).await;
    let words = "its own root included";
    is_stopped(&job, &record, &result, "scratch_bytes", words);
    let log = world.log(&job).await;
    let mounted = file(&log, "stderr.txt");
    assert!(mounted.contains("upperdir=../upper"), "{mounted}");
}
