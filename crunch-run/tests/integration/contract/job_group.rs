//! An ordinary user's run in the control group of a scheduler's job, with a limit.

use std::fs;
use std::path::PathBuf;

use cgroup::{Cgroup, Layout};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::contract::engines::Engine;
use crate::contract::lab::{Ended, Lab, until_counted, with_go};
use crate::run_lab::{World, file, go_on};

const LIMIT: u64 = 256 << 20;

/// A control group with a memory limit, created by root; removed on drop.
struct JobGroup(Cgroup);

impl JobGroup {
    fn new() -> Self {
        let layout = Layout::of_this_process().unwrap();
        let name = format!("job-{:016x}", fastrand::u64(..));
        let mut group = layout.container_group(&name);
        group.v1.retain(|controller, _| controller == "memory");
        if !group.v1.is_empty() {
            group.v2 = None;
        }
        let dir = group.dir("memory").unwrap().to_owned();
        if group.v2.is_some() {
            let above: PathBuf = dir.parent().unwrap().join("cgroup.subtree_control");
            fs::write(above, "+memory").unwrap();
        }
        fs::create_dir(&dir).unwrap();
        let limit = match group.v2.is_some() {
            true => "memory.max",
            false => "memory.limit_in_bytes",
        };
        fs::write(dir.join(limit), LIMIT.to_string()).unwrap();
        Self(group)
    }
}

impl Drop for JobGroup {
    fn drop(&mut self) {
        let removed = self
            .0
            .kill(suite_tests::STEP_TIMEOUT)
            .and_then(|()| self.0.remove(suite_tests::STEP_TIMEOUT));
        if let Err(error) = removed {
            eprintln!("{error}");
        }
    }
}

/// Runs a script in such a group; it begins when crunch-run has counted what it uses.
async fn run(engine: Engine, script: &str) -> Option<Ended> {
    if !engine.can_run() {
        return None;
    }
    let world = World::new().await;
    let lab = Lab { engine, world };
    let group = JobGroup::new();
    let script = format!("until [ -e /go/on ]; do sleep 0.05; done; {script}");
    let (job, child) = lab
        .start(&["sh", "-c", &script], with_go(json!({})), &[])
        .await;
    let executor = Pid::from_raw(child.id().unwrap() as i32).unwrap();
    group.0.enter(executor).unwrap();
    until_counted(&lab.world, &job, 1).await;
    go_on(&job);
    Some(lab.end(job, child).await)
}

fn result(ended: &Ended) -> Value {
    serde_json::from_str(file(&ended.log, "result.json")).unwrap()
}

async fn a_kill_is_told_with_numbers(engine: Engine) {
    let Some(ended) = run(engine, "exec tail /dev/zero").await else {
        return;
    };
    assert_eq!(ended.code(), 137);
    let error = ended.error();
    assert!(error.starts_with("killed by its memory limit"), "{error}");
    assert!(error.contains("of 256.0 MiB"), "{error}");
    let result = result(&ended);
    assert_eq!(result["verdict"], "memory", "{result}");
    assert!(result["oom_kills"].as_u64().unwrap() > 0, "{result}");
    let peak = result["peak_memory_bytes"].as_u64().unwrap();
    assert!((LIMIT / 2..=LIMIT).contains(&peak), "{result}");
}

async fn a_killed_child_is_a_warning_before_all_others(engine: Engine) {
    let Some(ended) = run(engine, "tail /dev/zero; exit 0").await else {
        return;
    };
    assert_eq!(ended.code(), 0);
    let warning = ended.record.runtime_status.warning.as_deref();
    let words = "a process of it was killed by its memory limit";
    assert!(warning.is_some_and(|w| w.starts_with(words)), "{warning:?}");
    assert_eq!(result(&ended)["verdict"], "child_out_of_memory");
}

/// A short peak is recorded, and that the scheduler enforces the limits is no warning.
async fn an_ordinary_end_has_no_warning(engine: Engine) {
    let script = "dd if=/dev/zero of=/dev/null bs=100M count=1 2>/dev/null";
    let Some(ended) = run(engine, script).await else {
        return;
    };
    assert_eq!(ended.code(), 0);
    let status = &ended.record.runtime_status;
    assert_eq!((&status.warning, &status.warning_detail), (&None, &None));
    let result = result(&ended);
    assert_eq!(
        (&result["verdict"], &result["oom_kills"]),
        (&json!("exited"), &json!(0))
    );
    let peak = result["peak_memory_bytes"].as_u64().unwrap();
    assert!((100 << 20..LIMIT).contains(&peak), "{result}");
    let limits = "the engine does not limit what the container takes";
    let sentence = result["unenforced_limits"][0].as_str().unwrap_or_default();
    assert!(sentence.contains(limits), "{result}");
    assert!(
        sentence.contains("allows 268435456 bytes of memory"),
        "{result}"
    );
    let noted = |line: &&str| line.contains("Note: ") && line.contains(limits);
    assert!(ended.story().iter().any(noted), "{:?}", ended.story());
}

macro_rules! engines {
    ($($name:ident: $engine:ident),+) => {
        $(
            mod $name {
                use crate::contract::engines::Engine;

                #[tokio::test]
                async fn a_kill_in_the_job_s_group_is_told_with_numbers() {
                    super::a_kill_is_told_with_numbers(Engine::$engine).await;
                }

                #[tokio::test]
                async fn a_child_killed_in_the_job_s_group_is_a_warning_before_all_others() {
                    super::a_killed_child_is_a_warning_before_all_others(Engine::$engine).await;
                }

                #[tokio::test]
                async fn limits_of_the_job_s_group_are_noted_and_no_warning() {
                    super::an_ordinary_end_has_no_warning(Engine::$engine).await;
                }
            }
        )+
    };
}

engines!(crun: CrunAsNobody, runc: RuncAsNobody, apptainer: ApptainerAsNobody);
