//! dispatch-slurm on a real Slurm: slurmctld and slurmd on loopback.

use std::path::Path;
use std::time::Duration;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use serde_json::json;

use crate::lab::Lab;
use crate::program::binary;
use crate::stack::{Stack, complete};

const PATIENCE: Duration = Duration::from_secs(90);

/// `kill -9` of the crunch-run of this container.
fn kill_process_of(container: &ContainerUuid) {
    let of_container = |process: &Path| {
        let command = std::fs::read(process.join("cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        words.contains(&container.as_str().as_bytes()) && words[0].ends_with(b"crunch-run")
    };
    let process = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| of_container(path))
        .expect("a crunch-run of the container");
    let pid: i32 = process
        .file_name()
        .unwrap()
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

async fn stack(lab: &Lab) -> Stack {
    let crunch_run = binary("crunch-run");
    let slurm_conf = lab.variable("SLURM_CONF").to_owned();
    Stack::with(|servers, dir| {
        let shared = dir.join("shared");
        let args = [
            "--shared-dir",
            shared.to_str().unwrap(),
            "--crunch-run",
            crunch_run.to_str().unwrap(),
        ];
        servers.dispatcher("dispatch-slurm", &args, &[("SLURM_CONF", &slurm_conf)])
    })
    .await
}

fn lab() -> Lab {
    Lab::up("slurm", &["-n", "1", "-c", "4", "-m", "4000", "-N"])
}

#[tokio::test(flavor = "multi_thread")]
async fn containers_run_as_slurm_jobs_also_over_a_killed_dispatcher() {
    let lab = lab();
    let mut stack = stack(&lab).await;
    let mut jobs = Vec::new();
    for n in 0..6 {
        let script = format!("sleep 1; echo done {n} > result");
        jobs.push((
            n,
            stack.submit(&format!("n{n}"), &script, json!({})).await.1,
        ));
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    stack.dispatcher.kill();
    stack.dispatcher.start();
    for (n, container) in jobs {
        let record = stack.end(&container, PATIENCE).await;
        assert_eq!(
            complete(&record).lock_count,
            1,
            "it was submitted more than once"
        );
        let output = record.output.unwrap().to_string();
        assert_eq!(stack.read(&output, "result").await, format!("done {n}\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_slurm_ends_or_a_user_stops_is_told_truthfully_and_shows_no_secret() {
    let lab = lab();
    let stack = stack(&lab).await;
    let (_, doomed) = stack.submit("doomed", "sleep 1000", json!({})).await;
    let (request, stopped) = stack.submit("stopped", "sleep 1000", json!({})).await;
    for container in [&doomed, &stopped] {
        stack
            .wait_until(container, PATIENCE, |c| c.state == ContainerState::Running)
            .await;
    }
    // What everybody may ask Slurm does not show the token.
    let attempt = stack.container(&doomed).await.locked_by_uuid.unwrap();
    let token = stack
        .dir
        .path()
        .join("shared")
        .join(doomed.as_str())
        .join(format!("token-{attempt}"));
    let secret = std::fs::read_to_string(&token).unwrap();
    let secret = secret.trim().rsplit('/').next().unwrap().to_owned();
    let id = lab.ask(
        "squeue",
        &["--noheader", "--name", doomed.as_str(), "--format=%i"],
    );
    let id = id.trim();
    for shown in [
        lab.ask("scontrol", &["show", "job", "--details", id]),
        lab.ask("scontrol", &["write", "batch_script", id, "-"]),
    ] {
        assert!(shown.contains(doomed.as_str()), "{shown}");
        assert!(!shown.contains(&secret), "the token is in: {shown}");
    }
    // crunch-run has no chance to say anything.
    kill_process_of(&doomed);
    let record = stack.end(&doomed, PATIENCE).await;
    assert_eq!(record.state, ContainerState::Cancelled);
    let why = record.runtime_status.error.unwrap_or_default();
    assert!(why.contains("Slurm job"), "{why}");

    stack
        .user
        .update_container_request(&request, json!({"priority": 0}))
        .await
        .unwrap();
    let record = stack.end(&stopped, PATIENCE).await;
    assert_eq!(record.state, ContainerState::Cancelled);
}
