//! Nothing of a container is left, however the container, its shim or crunch-run ends. Needs root
//! and busybox-static.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::engine_lab::{Lab, exec, shell, unique_name};
use crate::shim_scenarios;
use cgroup::Cgroup;
use container_engine::{Container, EngineError, ExitStatus};
use rustix::process::{Pid, Signal, kill_process};

fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z"))
}

async fn soon(what: &str, is_true: impl Fn() -> bool) {
    let deadline = Instant::now() + suite_tests::STEP_TIMEOUT;
    while !is_true() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn kill_9(pid: u32) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
}

/// The keeper: the parent of the container's first process.
fn parent_of(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("PPid:\t"))
        .unwrap();
    line.parse().unwrap()
}

async fn started(lab: &Lab, script: &str, least: usize) -> (Arc<dyn Container>, Vec<u32>) {
    let (container, _, _) = lab.create(shell(script)).await.unwrap();
    container.start().await.unwrap();
    let group = container.cgroup().unwrap();
    soon("its processes are there", || {
        group.processes().len() >= least
    })
    .await;
    // The trap of a shell is set a moment after its process is there.
    tokio::time::sleep(Duration::from_millis(100)).await;
    (container, group.processes())
}

#[tokio::test]
async fn a_program_that_heeds_term_ends_by_itself() {
    let lab = Lab::new();
    let (container, _) = started(&lab, "trap 'exit 3' TERM; sleep 1000 & wait", 2).await;
    let begin = Instant::now();
    container.stop(Duration::from_secs(600)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(300));
    assert_eq!(container.wait().await.unwrap().status, ExitStatus::Code(3));
    container.remove().await.unwrap();
}

#[tokio::test]
async fn a_program_that_ignores_term_is_killed_with_its_grandchildren() {
    let lab = Lab::new();
    let (container, pids) = started(
        &lab,
        "trap 'echo no' TERM; sh -c 'trap \"\" TERM; setsid sh -c \"trap \\\"\\\" TERM; sleep 1000; sleep 1000\" & wait; sleep 1000' & while :; do wait; sleep 1; done",
        4,
    )
    .await;
    let begin = Instant::now();
    container.stop(Duration::from_millis(700)).await.unwrap();
    assert!(
        begin.elapsed() >= Duration::from_millis(600),
        "it was given no grace"
    );
    assert!(pids.iter().all(|pid| !alive(*pid)), "{pids:?}");
    assert_eq!(
        container.wait().await.unwrap().status,
        ExitStatus::Signal(9)
    );
    container.remove().await.unwrap();
}

#[tokio::test]
async fn a_program_that_cannot_hear_term_is_not_waited_for() {
    let lab = Lab::new();
    let (container, _) = started(&lab, "exec sleep 1000", 1).await;
    let begin = Instant::now();
    container.stop(Duration::from_secs(600)).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(300));
    let exit = container.wait().await.unwrap();
    assert_eq!((exit.status.code(), exit.oom_killed), (137, false));
    container.remove().await.unwrap();
    // Removing it again has no effect.
    container.remove().await.unwrap();
}

#[tokio::test]
async fn removing_kills_what_still_runs() {
    let lab = Lab::new();
    let (container, pids) = started(&lab, "sleep 1000 & sleep 1000", 2).await;
    let group = container.cgroup().unwrap();
    container.remove().await.unwrap();
    assert!(!group.exists());
    // The kernel may reap their children yet.
    soon("they have ended", || pids.iter().all(|pid| !alive(*pid))).await;
}

#[tokio::test]
async fn dropping_a_container_removes_it() {
    let lab = Lab::new();
    let (container, pids) = started(&lab, "sleep 1000", 1).await;
    let group = container.cgroup().unwrap();
    drop(container);
    gone(&lab, &group, &pids).await;
}

#[tokio::test]
async fn a_container_that_never_started_leaves_nothing() {
    let lab = Lab::new();
    let (container, _, _) = lab.create(exec(&["true"])).await.unwrap();
    let (group, pid) = (container.cgroup().unwrap(), container.pid().unwrap());
    assert!(alive(pid) && group.processes() == [pid]);
    container.remove().await.unwrap();
    gone(&lab, &group, &[pid]).await;
}

async fn gone(lab: &Lab, group: &Cgroup, pids: &[u32]) {
    soon("its control group is gone", || !group.exists()).await;
    soon("its processes are gone", || {
        !pids.iter().any(|pid| alive(*pid))
    })
    .await;
    soon("its note is gone", || {
        entries(&lab.dir.path().join("run")) == 0
    })
    .await;
    let scratch = lab.dir.path().join("scratch");
    soon("its directories are gone", || {
        fs::read_dir(&scratch)
            .unwrap()
            .all(|dir| entries(&dir.unwrap().path()) == 0)
    })
    .await;
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(lab.dir.path().to_str().unwrap()));
}

fn entries(dir: &Path) -> usize {
    shim_scenarios::entries(dir)
}

#[tokio::test]
async fn a_killed_keeper_takes_its_container_along() {
    let lab = Lab::new();
    let (container, pids) = started(&lab, "trap '' TERM; sleep 1000 & sleep 1000", 2).await;
    let group = container.cgroup().unwrap();
    kill_9(parent_of(container.pid().unwrap()));
    let error = container.wait().await.unwrap_err();
    assert!(matches!(error, EngineError::ShimLost { .. }), "{error}");
    soon("its processes are gone", || {
        !pids.iter().any(|pid| alive(*pid))
    })
    .await;
    assert!(!group.exists());
}

const ATTEMPT: &str = "CRUNCH_RUN_TEST_ATTEMPT_IN";

/// No test of its own: the process that the next tests kill.
#[tokio::test]
#[ignore = "run by other tests, as the crunch-run that is killed"]
async fn an_attempt_that_is_killed() {
    let Ok(place) = std::env::var(ATTEMPT) else {
        return;
    };
    let (place, name) = place.split_once(':').unwrap();
    let dir = tempfile::tempdir_in(place).unwrap();
    let lab = Lab::in_dir(dir, serde_json::json!({"Env": ["PATH=/bin"]}));
    let mut request = shell("trap '' TERM HUP; setsid sleep 1000 & sleep 1000");
    request.name = name.to_owned();
    let (container, _, _) = lab.create(request).await.unwrap();
    container.start().await.unwrap();
    let group = container.cgroup().unwrap();
    soon("its processes are there", || group.processes().len() >= 2).await;
    println!(
        "\nREADY {}",
        serde_json::json!({"group": group, "pid": container.pid(), "dir": lab.dir.path()})
    );
    std::future::pending::<()>().await;
}

struct Attempt {
    process: std::process::Child,
    group: Cgroup,
    pids: Vec<u32>,
    keeper: u32,
    dir: std::path::PathBuf,
}

fn attempt(in_dir: &Path, name: &str) -> Attempt {
    let module = crate::engine_lab::test_prefix(module_path!());
    let mut process = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            &format!("{module}::an_attempt_that_is_killed"),
            "--ignored",
            "--nocapture",
        ])
        .env(ATTEMPT, format!("{}:{name}", in_dir.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let ready = BufReader::new(process.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap)
        .find_map(|line| line.strip_prefix("READY ").map(str::to_owned))
        .unwrap();
    let ready: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let group: Cgroup = serde_json::from_value(ready["group"].clone()).unwrap();
    Attempt {
        process,
        pids: group.processes(),
        group,
        keeper: parent_of(ready["pid"].as_u64().unwrap() as u32),
        dir: ready["dir"].as_str().unwrap().into(),
    }
}

#[tokio::test]
async fn when_crunch_run_is_killed_its_container_vanishes() {
    let dir = tempfile::tempdir().unwrap();
    let name = unique_name();
    let mut attempt = attempt(dir.path(), &name);
    let keeper_mounts = format!("/proc/{}/mountinfo", attempt.keeper);
    assert!(
        fs::read_to_string(&keeper_mounts)
            .unwrap()
            .contains(" overlay ")
    );
    attempt.process.kill().unwrap();
    attempt.process.wait().unwrap();

    soon("its processes are gone", || {
        !attempt.pids.iter().any(|pid| alive(*pid))
    })
    .await;
    soon("its control group is gone", || !attempt.group.exists()).await;
    soon("its keeper is gone", || !alive(attempt.keeper)).await;
    // The only mount namespace with the container's mounts ended with the shim.
    assert!(!fs::read_to_string(&keeper_mounts).is_ok_and(|m| !m.is_empty()));
    assert_eq!(entries(&attempt.dir.join("run")), 0);
    assert_eq!(entries(&attempt.dir.join("scratch").join(&name)), 0);
}

#[tokio::test]
async fn what_is_left_when_both_are_killed_is_found_by_the_container_s_name() {
    let dir = tempfile::tempdir().unwrap();
    let name = unique_name();
    let mut attempt = attempt(dir.path(), &name);
    // The keeper first stopped, then killed, so that it cannot tidy up.
    kill_process(Pid::from_raw(attempt.keeper as i32).unwrap(), Signal::STOP).unwrap();
    attempt.process.kill().unwrap();
    attempt.process.wait().unwrap();
    kill_9(attempt.keeper);
    soon("its processes are gone", || {
        !attempt.pids.iter().any(|pid| alive(*pid))
    })
    .await;
    assert!(attempt.group.exists(), "there is nothing to recover");

    let lab = Lab::in_dir_with_run(dir, &attempt.dir.join("run"));
    let other = lab
        .engine
        .recover("zzzzz-dz642-somethingelse00")
        .await
        .unwrap();
    assert!(other.removed.is_empty(), "{other:?}");
    let recovered = lab.engine.recover(&name).await.unwrap();
    assert_eq!(recovered.removed.len(), 2, "{recovered:?}");
    assert!(!attempt.group.exists());
    assert_eq!(entries(&attempt.dir.join("run")), 0);
    let again = lab.engine.recover(&name).await.unwrap();
    assert!(again.removed.is_empty());
}

#[tokio::test]
async fn a_running_left_over_is_killed_by_recovery() {
    let lab = Lab::new();
    let request = shell("sleep 1000");
    let name = request.name.clone();
    let (container, _, _) = lab.create(request).await.unwrap();
    container.start().await.unwrap();
    let recovered = lab.engine.recover(&name).await.unwrap();
    assert!(
        recovered
            .removed
            .iter()
            .any(|r| r.contains("1 running process")),
        "{recovered:?}"
    );
    assert_eq!(
        container.wait().await.unwrap().status,
        ExitStatus::Signal(9)
    );
    container.remove().await.unwrap();
}

#[tokio::test]
async fn many_containers_at_once_do_not_meet() {
    let lab = Arc::new(Lab::new());
    let mut running = tokio::task::JoinSet::new();
    for number in 0..10 {
        let lab = Arc::clone(&lab);
        running.spawn(async move {
            let script = format!("echo {number} >/tmp/mine; sleep 0.1; cat /tmp/mine; ls /proc | grep -c '^[0-9]'; exit {number}");
            let ended = lab.run(shell(&script)).await.unwrap();
            assert_eq!(ended.code(), number);
            assert_eq!(ended.stdout.lines().next(), Some(number.to_string().as_str()));
        });
    }
    while let Some(done) = running.join_next().await {
        done.unwrap();
    }
    assert_eq!(entries(&lab.dir.path().join("run")), 0);
}

#[tokio::test]
async fn scratch_that_cannot_carry_an_overlay_is_no_obstacle() {
    // An overlay cannot be the writable layer of another one. The mount is this thread's alone.
    let dir = tempfile::tempdir().unwrap();
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    let merged = dir.path().join("merged");
    let options = format!(
        "lowerdir={0}/lower,upperdir={0}/upper,workdir={0}/work",
        dir.path().display()
    );
    let options = std::ffi::CString::new(options).unwrap();
    rustix::mount::mount(
        "overlay",
        &merged,
        "overlay",
        rustix::mount::MountFlags::empty(),
        &*options,
    )
    .unwrap();
    let inner = tempfile::tempdir_in(&merged).unwrap();
    {
        // The cache is on this disk too, so that both places for the writable layer fail.
        let lab = Lab::in_dir(inner, serde_json::json!({"Env": ["PATH=/bin"]}));
        let ended = lab.run(shell("echo x >/etc/new && cat /etc/new; grep ' / ' /proc/mounts | cut -d' ' -f1; ls -ld /tmp | cut -c1-10")).await.unwrap();
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert_eq!(
            (lines[0], lines[2]),
            ("x", "drwxrwxrwt"),
            "{}{}",
            ended.stdout,
            ended.stderr
        );
    }
    rustix::mount::unmount(&merged, rustix::mount::UnmountFlags::DETACH).unwrap();
}
