//! How a command ends, or why it could not start.

use serde_json::json;

use crate::contract::lab::{Ended, Lab};

pub async fn exit_code_is_kept(lab: &Lab) {
    let ended = lab.sh("exit 7").await;
    assert_eq!(ended.code(), 7);
    assert_eq!(ended.record.runtime_status.error, None);
    assert_eq!(ended.story().last(), Some(&"Complete"));
    assert!(
        ended
            .story()
            .contains(&"Container exited with status code 7")
    );
}

pub async fn largest_exit_code_is_kept(lab: &Lab) {
    assert_eq!(lab.sh("exit 255").await.code(), 255);
}

pub async fn a_signal_is_kept(lab: &Lab) {
    // The signal kills a child of the first process, which has no protection from it.
    let ended = lab.sh("sh -c 'kill -9 $$'; exit $?").await;
    assert_eq!(ended.code(), 137);
    // Exit status 137 alone is not reported as out of memory.
    assert!(!ended.error().contains("memory"), "{}", ended.error());
}

pub async fn a_command_that_kills_itself_with_term(lab: &Lab) {
    let ended = lab.sh("sh -c 'kill -15 $$'; exit $?").await;
    assert_eq!(ended.code(), 143);
}

pub async fn unknown_command_is_named(lab: &Lab) {
    let ended = lab.run(&["no-such-command", "x"], json!({})).await;
    let why = ended.refusal();
    assert!(why.contains("\"no-such-command\""), "{why}");
    assert!(why.contains("/bin"), "it names the PATH: {why}");
}

pub async fn missing_file_is_named(lab: &Lab) {
    let ended = lab.run(&["/opt/no/such/file"], json!({})).await;
    let why = ended.refusal();
    assert!(why.contains("\"/opt/no/such/file\""), "{why}");
}

pub async fn missing_interpreter_is_named(lab: &Lab) {
    let ended = lab.run(&["script"], json!({})).await;
    assert_is_named(lab, &ended, "/bin/script");
}

pub async fn a_file_that_is_no_program(lab: &Lab) {
    let ended = lab.run(&["nonsense"], json!({})).await;
    assert_is_named(lab, &ended, "/bin/nonsense");
}

pub async fn a_file_that_is_not_executable(lab: &Lab) {
    let ended = lab.run(&["/bin/plain"], json!({})).await;
    let why = ended.refusal();
    assert!(why.contains("/bin/plain"), "{why}");
}

/// Checks that the error names a program that the kernel cannot execute.
pub fn assert_is_named(lab: &Lab, ended: &Ended, path: &str) {
    if lab.engine.finds_bad_programs_late() {
        assert_ne!(ended.code(), 0);
        assert!(ended.stderr().join("\n").contains(path));
        return;
    }
    let why = ended.refusal();
    assert!(why.contains(path), "{why}");
}

pub async fn many_short_children(lab: &Lab) {
    let ended = lab
        .sh("for i in $(seq 1000); do (exit 3); done; for i in $(seq 200); do sh -c 'exit 3' & done; wait; echo $?")
        .await;
    assert_eq!(ended.stdout(), ["0"]);
}

pub async fn orphans_are_not_taken_for_the_command(lab: &Lab) {
    let ended = lab
        .sh("for i in $(seq 100); do (sh -c 'exit 9' &) ; done; sleep 1; exit 3")
        .await;
    assert_eq!(ended.code(), 3);
}
