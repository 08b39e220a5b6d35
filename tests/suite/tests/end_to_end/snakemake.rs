//! Snakemake as it comes from the registry of Python packages submits the jobs of a workflow by
//! `contrib/snakemake/`, as docs/snakemake.md says.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use suite_tests::image::add_named;
use suite_tests::program::binary;
use suite_tests::stack::wait_for;
use suite_tests::{STEP_TIMEOUT, workspace};

use crate::up::Up;

const MORE_RULES: &str = r#"
rule failing:
    output: "failed.txt"
    log: "logs/failing.log"
    shell: "echo no such luck > {log}; exit 3"

rule folder:
    output: directory("made/folder")
    shell: "mkdir -p {output}; echo inside > {output}/file"

rule endless:
    output: "never.txt"
    shell: "sleep 100000"
"#;

/// The command line of docs/snakemake.md.
fn snakemake(up: &Up, dir: &Path, goal: &str) -> Command {
    let ours = workspace().join("contrib/snakemake");
    let programs = binary("dispatch").parent().unwrap().to_owned();
    let path = std::env::join_paths(
        std::iter::once(programs).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let mut command = up.command(suite_tests::snakemake().join("snakemake"));
    command
        .args(["--executor", "cluster-generic", "--jobs", "10", goal])
        .arg("--shared-fs-usage")
        .args([
            "persistence",
            "input-output",
            "sources",
            "source-cache",
            "storage-local-copies",
        ])
        .arg("--cluster-generic-submit-cmd")
        .arg(format!("{}/submit --image snakemake:test", ours.display()))
        .arg("--cluster-generic-status-cmd")
        .arg(ours.join("status"))
        .arg("--cluster-generic-cancel-cmd")
        .arg(ours.join("cancel"))
        .envs(up.environment())
        .env("PATH", path.unwrap())
        .current_dir(dir)
        .stdin(Stdio::null());
    command
}

fn jobs(up: &Up) -> Vec<serde_json::Value> {
    serde_json::from_str(&up.ok(&["list", "--all", "--json"])).unwrap()
}

#[test]
fn snakemake_runs_its_rules_as_jobs_and_cancels_them() {
    let up = Up::start();
    let (root, _) = suite_tests::python_image("snakemake", Some("snakemake"));
    add_named(&up.environment(), "snakemake:test", &root);
    let dir = up.dir.path().join("workflow");
    let example = workspace().join("contrib/snakemake/example");
    let copied = Command::new("cp").arg("-r").args([&example, &dir]).status();
    assert!(copied.unwrap().success());
    let text = fs::read_to_string(dir.join("Snakefile")).unwrap();
    fs::write(dir.join("Snakefile"), text + MORE_RULES).unwrap();
    let read = |name: &str| fs::read_to_string(dir.join(name)).unwrap();

    let ran = snakemake(&up, &dir, "all").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert_eq!(read("counts/all.txt"), "1\n2\n3\n");
    assert_eq!(read("logs/one.log"), "");
    let of_rule = |rule: &str| jobs(&up).iter().filter(|job| job["name"] == rule).count();
    assert_eq!((of_rule("count"), of_rule("join")), (3, 1), "{said}");

    let failed = snakemake(&up, &dir, "failed.txt").output().unwrap();
    assert!(!failed.status.success());
    let said = String::from_utf8_lossy(&failed.stderr);
    assert!(said.contains("job 5 failed"), "{said}");
    assert_eq!(read("logs/failing.log"), "no such luck\n");

    let mut endless = snakemake(&up, &dir, "never.txt").spawn().unwrap();
    up.wait_until_running("6");
    let pid = rustix::process::Pid::from_child(&endless);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(!endless.wait().unwrap().success());
    wait_for("the end of the job", STEP_TIMEOUT, || {
        let ended = jobs(&up).iter().all(|job| job["finished_at"].is_string());
        ended.then_some(())
    });

    let ran = snakemake(&up, &dir, "made/folder").output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    assert_eq!(read("made/folder/file"), "inside\n");
}
