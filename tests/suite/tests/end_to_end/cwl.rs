//! Workflows of arvados-cwl-runner on one machine.

use serde_json::json;

use crate::cwl_runner::{CwlUser, ended};
use crate::up::{Up, program};

#[test]
fn a_workflow_runs_from_a_shell() {
    let up = Up::start();
    up.add_image();
    let user = CwlUser::new(up.dir.path(), up.environment());
    let words = user.inputs("words", &json!({"words": ["one", "two"]}));
    let runner = user.start([
        "--local".as_ref(),
        "scatter.cwl".as_ref(),
        words.as_os_str(),
    ]);
    assert_eq!(user.text(runner), "one\ntwo\n");
}

/// Runners take no CPU, a runner that a workflow asked for is not held up, and a workflow fails
/// instead of waiting whose step has no room. A registered one is run by its uuid.
#[test]
fn workflows_run_in_workflows_on_one_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let small = ["--cpus", "1", "--memory", "3GiB"];
    let up = Up::start_program(program(dir.path(), &small), dir, None);
    up.add_image();
    let user = CwlUser::new(up.dir.path(), up.environment());
    user.add_runner_image();
    let words = user.inputs("words", &json!({"words": ["one", "two"]}));
    let submit =
        |workflow: &str| user.start(["--submit".as_ref(), workflow.as_ref(), words.as_os_str()]);

    let register = ["--create-workflow", "--no-copy-deps", "nested.cwl"];
    let (output, said) = ended(user.start(register));
    let uuid = String::from_utf8(output.stdout).unwrap();
    assert!(uuid.starts_with("local-7fd4e-"), "{said}");
    assert_eq!(user.text(submit(uuid.trim_end())), "one\ntwo\n");
    let (output, said) = ended(submit("large.cwl"));
    assert_eq!(output.status.code(), Some(1), "{said}");
    let cancelled = up.ok_line("list --status Cancelled -o ids");
    let reasons: Vec<String> = cancelled.lines().map(|job| up.ok(&["show", job])).collect();
    assert_eq!(reasons.len(), 2, "{said}");
    for reason in reasons {
        assert!(reason.contains("it can never start"), "{reason}");
        assert!(reason.contains("beside the runner"), "{reason}");
    }
}
