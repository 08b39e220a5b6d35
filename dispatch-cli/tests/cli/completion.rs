//! Completion of words in a real bash, by the script that `dispatch completions bash` prints.

use std::path::Path;

use arvados_client::Client;
use arvados_client::client::Call;
use assert_cmd::Command;
use serde_json::{Value, json};

use crate::fixture::{CommandResult, Fixture, bare};

/// Presses the tabulator at the end of a line, as bash does, and prints what is offered.
const PRESS_TAB: &str = r#"
PATH=$(dirname "$1"):$PATH
shift
source <(dispatch completions bash)
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
_clap_complete_dispatch dispatch "${!#}" ""
printf '%s\n' "${COMPREPLY[@]}"
"#;

/// bash, with the words of a line, in the environment of a command.
fn tab(command: &Command, line: &[&str]) -> Command {
    let program = assert_cmd::cargo::cargo_bin!("dispatch");
    let mut bash = Command::new("bash");
    bash.args(["-c", PRESS_TAB, "bash"]).arg(program);
    bash.arg("dispatch").args(line).env_clear();
    for (name, value) in command.get_envs() {
        value.map(|value| bash.env(name, value));
    }
    bash.env("PATH", std::env::var_os("PATH").unwrap());
    bash.current_dir(command.get_current_dir().unwrap_or(Path::new("/")));
    bash
}

fn offered(result: CommandResult) -> Vec<String> {
    assert_eq!(result.err, "");
    result.ok().lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_shell_completes_jobs_images_and_collections() {
    let fixture = Fixture::with_image().await;
    let output = fixture.path("result");
    std::fs::write(&output, "0123456789").unwrap();
    let stored = fixture.run(&["put", output.to_str().unwrap()]).await.ok();
    let collection = stored.split_whitespace().next().unwrap();
    for name in ["a", "b"] {
        fixture.submit(name).await;
    }
    let complete = async |line: &[&str]| {
        let bash = tab(&fixture.command(&[]), line);
        offered(crate::fixture::run(bash).await)
    };
    for command in ["show", "logs", "explain", "wait", "kill", "get", "retry"] {
        let jobs = complete(&[command, ""]).await;
        assert_eq!(&jobs[..2], ["2", "1"], "{command} {jobs:?}");
    }
    name_another_way(&fixture, &fixture.user, "zzz$(touch${IFS}pwned):latest").await;
    name_another_way(&fixture, &fixture.dispatch, "not-mine:latest").await;
    let listed = fixture.run(&["image", "list"]).await.ok();
    assert!(
        listed.contains("not-mine") && listed.contains("zzz$("),
        "{listed}"
    );
    assert_eq!(complete(&["submit", "--image", ""]).await, ["tool"]);
    assert_eq!(complete(&["image", "rm", "to"]).await, ["tool"]);
    let collections = complete(&["collection", "rm", "local-"]).await;
    assert!(collections.iter().any(|uuid| uuid == collection));
    assert_eq!(complete(&["collection", "restore", "local-"]).await, [""]);
    fixture.run(&["collection", "rm", collection]).await.ok();
    let trash = complete(&["collection", "restore", "local-"]).await;
    assert_eq!(trash, [collection]);
}

/// Gives the image another name, which all users see.
async fn name_another_way(fixture: &Fixture, by: &Client, name: &str) {
    let images = fixture.run(&["--json", "image", "list"]).await.json();
    let collection = &images[0]["collection"];
    let link = |link: Value| by.send::<Value>(Call::post("links", json!({ "link": link })));
    let named = json!({"link_class": "docker_image_repo+tag", "name": name,
                       "head_uuid": collection});
    let named = link(named).await.unwrap();
    let everybody = json!({"link_class": "permission", "name": "can_read",
        "tail_uuid": "local-j7d0g-fffffffffffffff", "head_uuid": named["uuid"]});
    link(everybody).await.unwrap();
}

#[test]
fn without_a_server_the_shell_still_completes_commands_and_files() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("table.csv"), "").unwrap();
    let complete = |line: &[&str]| {
        let mut bash = tab(&bare(home.path(), &[]), line);
        offered(CommandResult::of(&mut bash))
    };
    assert_eq!(complete(&["expl"]), ["explain"]);
    assert_eq!(complete(&["submit", "--scr"]), ["--scratch"]);
    assert_eq!(complete(&["put", "ta"]), ["table.csv"]);
    assert_eq!(complete(&["kill", "1"]), [""]);
}
