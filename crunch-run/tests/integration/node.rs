//! Commands of a dispatcher that only has a shell on the node: variables on stdin, `--list`,
//! `--kill`.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::run_lab::World;
use arvados_client::records::ContainerState;
use serde_json::{Value, json};

fn crunch_run(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
    command.args(words).env_clear().env("PATH", "/usr/bin:/bin");
    command
}

fn listed() -> Vec<String> {
    let output = crunch_run(&["-list", "-stdin-prices"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(str::to_owned).collect()
}

fn with_input(mut command: Command, text: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    child.wait_with_output().unwrap()
}

#[tokio::test]
async fn a_run_is_started_from_stdin_listed_and_killed() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let temp_dir = tempfile::tempdir().unwrap();
    let job = world.lock(&["sleep", "1000"], json!({})).await;
    let uuid = job.uuid.as_str();
    let mut env = world.environment();
    env.insert("ARVADOS_API_TOKEN".into(), job.token.expose().to_owned());
    env.insert("OF_STDIN".into(), "yes".into());
    let config = json!({"Env": env, "KeepBuffers": 1, "EC2SpotCheck": false, "Cluster": null});
    let cache = temp_dir.path().join("cache");
    let mut start = crunch_run(&["-detach", "-stdin-config", "-runtime-engine=builtin"]);
    start
        .arg(format!("--cache-dir={}", cache.display()))
        .arg(uuid)
        .env("TMPDIR", temp_dir.path());
    let output = with_input(start, &config.to_string());
    assert!(output.status.success(), "{output:?}");
    let reply: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(reply["UUID"], uuid);
    let pid = reply["PID"].as_u64().unwrap();

    world.until_running(&job).await;
    assert!(listed().contains(&uuid.to_owned()));
    let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap();
    let (environ, cmdline) = (read("environ"), read("cmdline"));
    let has = |bytes: &[u8], text: &str| bytes.windows(text.len()).any(|w| w == text.as_bytes());
    assert!(has(&environ, "OF_STDIN=yes"));
    let secret = job.token.expose().rsplit('/').next().unwrap();
    assert!(!has(&environ, secret) && !has(&cmdline, secret));

    // crunch-run ends its container first, which takes longer than `--kill` waits.
    let kill = crunch_run(&["--kill", "15", uuid]).output().unwrap();
    assert!(kill.status.code().is_some_and(|code| code <= 1), "{kill:?}");
    let until = Instant::now() + suite_tests::STEP_TIMEOUT;
    while listed().contains(&uuid.to_owned()) {
        assert!(Instant::now() < until, "it does not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(world.record(&job).await.state, ContainerState::Cancelled);
    // No process is left, which is success.
    let again = crunch_run(&["-kill=15", uuid]).output().unwrap();
    assert!(again.status.success(), "{again:?}");
    assert_eq!(
        leavings(temp_dir.path()),
        ["lock", "exit", "output.log"].len()
    );
}

/// Number of files that crunch-run made in the job directory.
fn leavings(path: &Path) -> usize {
    let is_dir = |name: &str| name.starts_with("crunch-run.");
    let dir = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| is_dir(path.file_name().unwrap().to_str().unwrap()))
        .expect("a job directory");
    fs::read_dir(dir).unwrap().count()
}

#[test]
fn a_bad_text_on_stdin_is_refused_and_not_shown() {
    let uuid = "zzzzz-dz642-0123456789abcde";
    let start = crunch_run(&["--stdin-config", uuid]);
    let output = with_input(start, r#"{"Env": {"ARVADOS_API_TOKEN": "v2/x/hidden""#);
    assert_eq!(output.status.code(), Some(78), "{output:?}");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("stdin") && !stderr.contains("hidden"),
        "{stderr}"
    );
}

#[test]
fn a_wrong_kill_says_what_is_wrong() {
    for (words, part) in [
        (&["--kill"][..], "needs the number"),
        (&["--kill", "soon", "u"], "soon"),
        (&["--kill", "15", "u"], "\"u\" is not a container's uuid"),
    ] {
        let output = crunch_run(words).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{stderr}");
        assert!(stderr.contains(part), "{stderr}");
    }
}

#[test]
fn the_manual_page_names_every_flag() {
    let output = crunch_run(&["man"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let page = String::from_utf8(output.stdout).unwrap().replace('\\', "");
    assert!(
        page.starts_with(".ie") || page.contains(".TH crunch-run 1"),
        "{page}"
    );
    for flag in [
        "--runtime-engine",
        "--cache-size",
        "--delivery-timeout",
        "--stdin-config",
        // Words of other commands of the program.
        "--offline",
        "--json",
        "<DIR>",
    ] {
        assert!(page.contains(flag), "{flag}");
    }
    for section in ["RESUME", "CHECK", "CACHE LS", "CACHE GC", "CACHE VERIFY"] {
        let section = format!(".SH CRUNCH-RUN {section}\n");
        assert!(page.contains(&section), "{section}");
    }
    assert_eq!(page.matches(".TH ").count(), 1);
}
