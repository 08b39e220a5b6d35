//! dispatch-condor on a real HTCondor pool of one machine.
//!
//! HTCondor runs no jobs of root, and without a container engine only root can run containers here: these tests show
//! what becomes of jobs, not of containers.

use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use arvados_client::records::ContainerState;
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::program::binary;
use crate::stack::{Stack, wait_for};

const PATIENCE: Duration = Duration::from_secs(90);

fn id(kind: &str, user: &str) -> u32 {
    let output = Command::new("id").args([kind, user]).output().unwrap();
    String::from_utf8(output.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap()
}

/// A copy of a file that the pool's user owns.
fn copy_for(user: &str, from: &Path, to: &Path, mode: u32) {
    std::fs::copy(from, to).unwrap();
    std::fs::set_permissions(to, PermissionsExt::from_mode(mode)).unwrap();
    chown(to, Some(id("-u", user)), Some(id("-g", user))).unwrap();
}

async fn stack(lab: &Lab) -> Stack {
    let user = lab.variable("CONDOR_LAB_USER").to_owned();
    let config = lab.variable("CONDOR_CONFIG").to_owned();
    // The programs themselves; the first place holds wrappers for root.
    let path = lab.path().split_once(':').unwrap().1.to_owned();
    Stack::with(|servers, dir| {
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
        let jobs = dir.join("jobs");
        std::fs::create_dir(&jobs).unwrap();
        chown(&jobs, Some(id("-u", &user)), Some(id("-g", &user))).unwrap();
        let of = |value: &Value| Path::new(value.as_str().unwrap()).to_owned();
        let (token, certificate) = (dir.join("dispatch-token"), dir.join("certificate.pem"));
        copy_for(
            &user,
            &of(&servers.ready["tokens"]["dispatch"]),
            &token,
            0o600,
        );
        copy_for(
            &user,
            &of(&servers.ready["certificate"]),
            &certificate,
            0o644,
        );
        let crunch_run = dir.join("crunch-run");
        copy_for(&user, &binary("crunch-run"), &crunch_run, 0o755);
        let dispatcher = dir.join("dispatch-condor");
        copy_for(&user, &binary("dispatch-condor"), &dispatcher, 0o755);
        let args = [
            "--job-dir",
            jobs.to_str().unwrap(),
            "--crunch-run",
            crunch_run.to_str().unwrap(),
            "--token-file",
            token.to_str().unwrap(),
        ];
        let env = [
            ("CONDOR_CONFIG", config.as_str()),
            ("PATH", path.as_str()),
            ("SSL_CERT_FILE", certificate.to_str().unwrap()),
        ];
        servers
            .dispatcher("dispatch-condor", &args, &env)
            .run_as(&user, dispatcher)
    })
    .await
}

fn queue(lab: &Lab) -> Vec<Value> {
    let text = lab.ask("condor_q", &["-all", "-json"]);
    match text.trim() {
        "" => Vec::new(),
        text => serde_json::from_str(text).unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_becomes_a_job_without_secrets_and_a_stopped_one_leaves_the_queue() {
    let lab = Lab::up("condor", &["--slots", "2"]);
    let mut stack = stack(&lab).await;
    // More CPUs than the pool has: its job waits, so that there is time to look at it.
    let large = json!({"runtime_constraints": {"vcpus": 64, "ram": 32 << 20}});
    let (request, waiting) = stack.submit("waits", "true", large).await;
    let job = wait_for("the job", PATIENCE, || {
        queue(&lab)
            .into_iter()
            .find(|ad| ad["ContainerUUID"] == waiting.as_str())
    });
    assert_eq!(
        (&job["RequestCpus"], &job["JobStatus"]),
        (&json!(64), &json!(1)),
        "{job}"
    );
    let attempt = stack.container(&waiting).await.locked_by_uuid.unwrap();
    let token = stack
        .dir
        .path()
        .join("jobs")
        .join(waiting.as_str())
        .join(format!("token-{attempt}"));
    let secret = std::fs::read_to_string(&token).unwrap();
    let secret = secret.trim().rsplit('/').next().unwrap();
    assert!(
        !job.to_string().contains(secret),
        "the token is in the job ad"
    );
    let mode = std::fs::metadata(&token).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    // A dispatcher that starts anew takes the job for its own and makes no second one.
    stack.dispatcher.kill();
    stack.dispatcher.start();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(queue(&lab).len(), 1, "{:?}", queue(&lab));
    assert_eq!(
        stack.container(&waiting).await.state,
        ContainerState::Locked
    );

    stack
        .user
        .update_container_request(&request, json!({"priority": 0}))
        .await
        .unwrap();
    wait_for("the job to leave", PATIENCE, || {
        queue(&lab).is_empty().then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_cannot_run_there_is_given_back_and_the_log_says_why() {
    let lab = Lab::up("condor", &["--slots", "2"]);
    let stack = stack(&lab).await;
    let (_, container) = stack.submit("cannot", "true", json!({})).await;
    stack
        .wait_until(&container, PATIENCE, |c| {
            c.lock_count >= 1 && c.state == ContainerState::Queued
        })
        .await;
    wait_for("the reason in the dispatcher's log", PATIENCE, || {
        let said = stack.dispatcher.said();
        said.contains("ended with exit code 75: crunch-run could not start")
            .then_some(())
    });
}
