//! The real program with an output that is large, and what it costs.

// Each program uses its own part of this.
#![allow(dead_code)]

use std::time::Duration;

pub use crate::run_lab::can_run;
use crate::run_lab::{World, finish_within};
use arvados_client::manifest::Manifest;
use arvados_client::records::ContainerState;
use serde_json::json;

pub const MIB: u64 = 1 << 20;
/// Ten GiB on a busy machine.
const LARGE_RUN_TIMEOUT: Duration = Duration::from_secs(1800);
/// Makes ten thousand files of about 2 KB.
pub const MANY: &str = "cd /out; head -c 2000 /dev/zero >/tmp/x; for d in $(seq 100); do mkdir $d; cd $d; \
    for f in $(seq 100); do cat /tmp/x >$f; echo $d $f >>$f; done; cd ..; done";

/// Makes one file of holes, and a few bytes.
pub fn sparse(mib: u64) -> String {
    format!("truncate -s {mib}M /out/sparse; echo end >>/out/sparse")
}

/// A value of a process's memory in `/proc`, in bytes; 0 when the process is gone.
fn memory(pid: u32, what: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(what));
    let kib = line.and_then(|line| line.trim_matches(&[':', ' ', '\t'][..]).split(' ').next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// The result of capturing an output, and its cost.
pub struct Captured {
    pub manifest: Manifest,
    /// Memory beyond what crunch-run had while the command ran, at its highest, in bytes.
    pub grown: u64,
    pub took: Duration,
}

/// Runs the script with the real program.
pub async fn run(script: &str) -> Captured {
    let world = World::new().await;
    let script = format!("echo ready; until [ -e /go/on ]; do sleep 0.05; done; {script}");
    let mounts = json!({"/out": {"kind": "tmp", "capacity": 1u64 << 40}, "/go": {"kind": "tmp", "capacity": 1u64 << 40}});
    let job = world
        .lock(&["sh", "-c", &script], json!({"mounts": mounts}))
        .await;
    let child = world.start(&job, &[]);
    world.until_logged(&job, "ready").await;
    let pid = child.id().unwrap();
    let before = memory(pid, "VmHWM");
    let measured = tokio::spawn(async move {
        let mut most = 0;
        loop {
            match memory(pid, "VmHWM") {
                0 => return most,
                now => most = now,
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    for entry in std::fs::read_dir(job.dir.join("scratch/files/mounts")).unwrap() {
        let dir = entry.unwrap().path();
        if dir.is_dir() && !dir.ends_with("output") {
            std::fs::write(dir.join("on"), "").unwrap();
        }
    }
    let finished = finish_within(child, LARGE_RUN_TIMEOUT).await;
    assert_eq!(finished.code, 0, "{}", finished.output);
    let record = world.record(&job).await;
    assert_eq!(
        record.state,
        ContainerState::Complete,
        "{}",
        finished.output
    );
    let request = world.user.container_request(&job.request).await.unwrap();
    let output = world
        .user
        .collection(request.output_uuid.unwrap().as_str())
        .await;
    let manifest = Manifest::parse(&output.unwrap().manifest_text).unwrap();
    assert!(before > 0);
    let line = finished.output.lines().last().unwrap();
    let (_, took) = line.split_once(" output ").unwrap();
    let took: f64 = took.split(',').next().unwrap().parse().unwrap();
    Captured {
        manifest,
        grown: measured.await.unwrap() - before,
        took: Duration::from_secs_f64(took / 1e3),
    }
}
