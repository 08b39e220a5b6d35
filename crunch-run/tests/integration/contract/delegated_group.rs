//! Attempts to leave a container whose control group belongs to the ordinary user that it runs as:
//! the kernel would let this user lift the limits. `make test-cgroup-v2` has such groups.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use cgroup::{Cgroup, Layout};
use rustix::process::Pid;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

use crate::contract::engines::Engine;
use crate::contract::lab::Lab;
use crate::contract::{escapes, nobody};
use crate::run_lab::wrapper::started_by;
use crate::run_lab::{World, file};

/// A group without processes that belongs to the user, as systemd delegates it, and one below it
/// for crunch-run. Both are removed on drop.
struct DelegatedGroup {
    whole: PathBuf,
    of_program: Cgroup,
}

impl DelegatedGroup {
    fn new() -> Self {
        let layout = Layout::of_this_process().unwrap();
        let name = format!("delegated-{:016x}", fastrand::u64(..));
        let whole = layout.container_group(&name).v2.expect("cgroup v2");
        allow_limits(whole.parent().unwrap());
        fs::create_dir(&whole).unwrap();
        allow_limits(&whole);
        let below = whole.join("program");
        fs::create_dir(&below).unwrap();
        for dir in [&whole, &below] {
            nobody::give(dir);
            for file in ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
                nobody::give(&dir.join(file));
            }
        }
        let of_program = Cgroup {
            v2: Some(below),
            ..Cgroup::default()
        };
        Self { whole, of_program }
    }

    /// What an attempt in a container tries, outside of one.
    async fn its_user_can_lift_limits(&self) {
        let script = "mkdir probe && echo 5000000 >probe/memory.max && echo max >probe/memory.max";
        let mut shell = Command::new("/bin/sh");
        let shell = shell.args(["-c", script]).current_dir(&self.whole);
        let status = shell.uid(nobody::NOBODY).gid(nobody::NOBODY).status();
        assert!(status.await.unwrap().success());
        fs::remove_dir(self.whole.join("probe")).unwrap();
    }

    /// Starts crunch-run in it.
    async fn start(&self, program: &Command) -> Child {
        let script = "read -r _; exec \"$@\"";
        let mut shell = started_by(&["/bin/sh", "-c", script, "sh"], program);
        shell
            .uid(nobody::NOBODY)
            .gid(nobody::NOBODY)
            .current_dir("/")
            .stdin(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let pid = Pid::from_raw(child.id().unwrap() as i32).unwrap();
        self.of_program.enter(pid).unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"\n").await.unwrap();
        child
    }
}

impl Drop for DelegatedGroup {
    fn drop(&mut self) {
        let removed = self
            .of_program
            .kill(suite_tests::STEP_TIMEOUT)
            .and_then(|()| self.of_program.remove(suite_tests::STEP_TIMEOUT))
            .map_err(|error| error.to_string())
            .and_then(|()| fs::remove_dir(&self.whole).map_err(|error| error.to_string()));
        if let Err(error) = removed {
            eprintln!("{}: {error}", self.whole.display());
        }
    }
}

fn allow_limits(group: &Path) {
    fs::write(group.join("cgroup.subtree_control"), "+memory +pids +cpu").unwrap();
}

async fn only_documented_attempts_succeed(engine: Engine) {
    let world = World::new().await;
    let lab = Lab { engine, world };
    let group = DelegatedGroup::new();
    group.its_user_can_lift_limits().await;
    let more = json!({"container_image": escapes::image_of_attempts(&lab).await});
    let job = lab.world.lock(&["/bin/escapes"], more).await;
    let child = group
        .start(&lab.program(&job, &["--delegated-group"]))
        .await;
    let ended = lab.end(job, child).await;
    // There are limits to lift.
    let result: serde_json::Value = serde_json::from_str(file(&ended.log, "result.json")).unwrap();
    assert_eq!(
        result["unenforced_limits"],
        json!([]),
        "{:?}",
        ended.story()
    );
    escapes::compare(&lab, &ended);
}

macro_rules! engines {
    ($($name:ident: $engine:ident),+) => {
        $(
            #[tokio::test]
            #[ignore = "needs control groups version 2 only: make test-cgroup-v2"]
            async fn $name() {
                super::only_documented_attempts_succeed(Engine::$engine).await;
            }
        )+
    };
}

mod only_documented_attempts_at_an_escape_succeed {
    use super::Engine;
    engines!(crun: CrunAsNobody, runc: RuncAsNobody, apptainer: ApptainerAsNobody);
}
