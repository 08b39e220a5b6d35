//! The GPUs that a container gets from a real Slurm: which of them, and of which model.

use std::fs;

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use serde_json::{Value, json};

use suite_tests::STEP_TIMEOUT;
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Stack, wait_for};

async fn submit(stack: &Stack, name: &str, script: &str, more: Value) -> ContainerUuid {
    stack.submit(name, script, more).await.1
}

/// crunch-run gets the GPUs that Slurm granted: two jobs on one node have one each.
#[tokio::test(flavor = "multi_thread")]
async fn each_job_is_told_of_the_gpus_it_was_granted() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000", "-g", "2"]);
    let temp_dir = tempfile::tempdir().unwrap();
    let notes = temp_dir.path().join("notes");
    // Runs in place of crunch-run: records its environment and waits for TERM.
    let script = format!(
        "echo $SLURM_JOB_ID $SLURM_JOB_GPUS $CUDA_VISIBLE_DEVICES >>{}; exec sleep 1000",
        notes.display()
    );
    let command = shlex::try_join(["sh", "-c", &script]).unwrap();
    let stack = cluster.stack(&["--crunch-run", &command]).await;
    let gpu = json!({"stack": "cuda", "device_count": 1, "driver_version": "11.0", "hardware_target": ["9.0"], "vram": 1 << 20});
    let needs = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "gpu": gpu}});
    let mut granted = Vec::new();
    for name in ["one", "other"] {
        submit(&stack, name, "true", needs.clone()).await;
    }
    let lines = wait_for("both to start", STEP_TIMEOUT, || {
        let notes = std::fs::read_to_string(&notes).ok()?;
        let lines: Vec<String> = notes.lines().map(str::to_owned).collect();
        (lines.len() == 2).then_some(lines)
    });
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let [job, gpus, visible] = words[..] else {
            panic!("{line}");
        };
        let shown = cluster
            .lab
            .run("scontrol", &["show", "job", "--details", job]);
        assert!(shown.contains(&format!("IDX:{gpus}")), "{gpus}: {shown}");
        assert_eq!(gpus, visible);
        granted.push(gpus.to_owned());
    }
    granted.sort();
    assert_eq!(granted, ["0", "1"]);
}

/// A container gets a GPU of the model that its target stands for. Slurm refuses a model that no
/// node has; other containers do not wait for that. A target without a model is any GPU.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_gets_the_model_of_gpu_that_it_asks_for() {
    let gpus = ["-g", "3", "-t", "fake,other,third"];
    let cluster = Cluster::up(&[&["-n", "1", "-c", "4", "-m", "4000"], &gpus[..]].concat());
    let notes = tempfile::tempdir().unwrap();
    // Runs in place of crunch-run. Jobs are named after their containers.
    let script = format!(
        "echo $SLURM_JOB_GPUS >{}/$SLURM_JOB_NAME; exec sleep 1000",
        notes.path().display()
    );
    let command = shlex::try_join(["sh", "-c", &script]).unwrap();
    let models = ["9.0=other", "8.0=third", "7.0=nosuch"].map(|map| format!("--gpu-model={map}"));
    let mut more: Vec<&str> = models.iter().map(String::as_str).collect();
    more.extend(["--crunch-run", &command]);
    let stack = cluster.stack(&more).await;
    let submit = async |target: &str| {
        let gpu = json!({"stack": "cuda", "device_count": 1, "driver_version": "11.0", "hardware_target": [target], "vram": 1 << 20});
        let needs = json!({"runtime_constraints": {"vcpus": 1, "ram": 32 << 20, "gpu": gpu}});
        submit(&stack, target, "true", needs).await
    };
    let impossible = submit("7.0").await;
    stack.wait_for_log_line(
        &impossible,
        "node configuration is not available",
        STEP_TIMEOUT,
    );
    for (target, index) in [("9.0", "1\n"), ("8.0", "2\n"), ("5.0", "0\n")] {
        let container = submit(target).await;
        let granted = wait_for("the GPU", STEP_TIMEOUT, || {
            let note = fs::read_to_string(notes.path().join(container.as_str())).ok()?;
            Some(note).filter(|text| text.ends_with('\n'))
        });
        assert_eq!(granted, index, "{target}");
    }
    let record = stack.container(&impossible).await;
    assert_eq!(record.state, ContainerState::Queued);
    assert!(record.lock_count <= 1, "{record:?}");
}

/// `check --submit-test` shows whether a node grants GPUs, before a container finds out.
#[tokio::test(flavor = "multi_thread")]
async fn the_check_asks_for_gpus() {
    let cluster = Cluster::up(&["-n", "1", "-c", "4", "-m", "4000", "-g", "2"]);
    let stack = cluster.stack(&[]).await;
    let check = |more: &[&str]| {
        let mut command = stack.dispatcher.subcommand(more);
        let command = command.args(["--json", "check", "--submit-test", "--gpus", "2"]);
        let output = command.output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code(), report)
    };
    let granted = |report: &Value| {
        let findings = report["findings"].as_array().unwrap().iter();
        let mut found = findings.filter(|f| f["what"].as_str().unwrap().ends_with("granted GPUs"));
        let found = found.next().unwrap_or_else(|| panic!("{report}"));
        (found["level"].clone(), found["finding"].clone())
    };
    let (_, report) = check(&[]);
    assert_eq!(granted(&report), (json!("ok"), json!("0,1")));
    // The arguments of the site do not ask for them.
    let (status, report) = check(&["--sbatch-gpu-argument=--no-requeue"]);
    assert_eq!(status, Some(78));
    let (level, finding) = granted(&report);
    assert_eq!(level, "fail", "{report}");
    assert!(
        finding.as_str().unwrap().contains("asked for 2"),
        "{report}"
    );
}
