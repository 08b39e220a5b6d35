//! arvados-cwl-runner as it comes from the registry of Python packages: workflows on one machine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use suite_tests::image::add_named;

use crate::up::{Up, program};

/// The inputs of the workflows: two words.
fn words(up: &Up) -> Option<PathBuf> {
    let words = up.dir.path().join("words.json");
    std::fs::write(&words, r#"{"words": ["one", "two"]}"#).unwrap();
    Some(words)
}

/// Starts the runner as a user of `up`, with copies of the workflows: in a checkout, it runs git.
fn start(up: &Up, flags: &[&str], workflow: &str, inputs: Option<PathBuf>) -> Child {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/end_to_end/cwl");
    for file in std::fs::read_dir(ours).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), up.dir.path().join(file.file_name())).unwrap();
    }
    let clients = suite_tests::python_clients();
    up.command(clients.join("arvados-cwl-runner"))
        .args(flags)
        .arg(workflow)
        .args(inputs)
        .envs(up.environment())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the runner printed at its end.
fn ended(runner: Child) -> (Output, String) {
    let output = runner.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said)
}

/// Checks that the workflow has succeeded and that its output has both words.
fn is_joined(up: &Up, runner: Child) {
    let (output, said) = ended(runner);
    assert!(output.status.success(), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).expect(&said);
    let location = found["text"]["location"].as_str().expect(&said);
    let read = up
        .command(suite_tests::python_clients().join("arv-get"))
        .arg(location.trim_start_matches("keep:"))
        .envs(up.environment())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&read.stdout);
    assert_eq!(text, "one\ntwo\n", "{said}");
}

#[test]
fn a_workflow_runs_from_a_shell() {
    let up = Up::start();
    up.add_image();
    let runner = start(&up, &["--local"], "scatter.cwl", words(&up));
    is_joined(&up, runner);
}

/// Runners take no CPU, a runner that a workflow asked for is not held up, and a workflow fails
/// instead of waiting whose step has no room. A registered one is run by its uuid.
#[test]
fn workflows_run_in_workflows_on_one_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--cpus", "1", "--memory", "3GiB"];
    let up = Up::start_program(program(dir.path(), &small), dir, None);
    up.add_image();
    let made = Command::new(suite_tests::workspace().join("tests/labs/cwl-runner-image"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let root = PathBuf::from(String::from_utf8(made.stdout).unwrap().trim_end());
    let version = std::fs::read_to_string(root.with_file_name("version")).unwrap();
    let name = format!("arvados/jobs:{}", version.trim_end());
    add_named(&up.environment(), &name, &root);

    let register = ["--create-workflow", "--no-copy-deps"];
    let (output, said) = ended(start(&up, &register, "nested.cwl", None));
    let uuid = String::from_utf8(output.stdout).unwrap();
    assert!(uuid.starts_with("local-7fd4e-"), "{said}");
    is_joined(&up, start(&up, &["--submit"], uuid.trim_end(), words(&up)));
    let (output, said) = ended(start(&up, &["--submit"], "large.cwl", words(&up)));
    assert_eq!(output.status.code(), Some(1), "{said}");
    let cancelled = up.ok_line("list --status Cancelled -o ids");
    let reasons: Vec<String> = cancelled.lines().map(|job| up.ok(&["show", job])).collect();
    assert_eq!(reasons.len(), 2, "{said}");
    for reason in reasons {
        assert!(reason.contains("it can never start"), "{reason}");
        assert!(reason.contains("beside the runner"), "{reason}");
    }
}
