//! Mistakes of users: each gives one clear sentence where the user looks, and loses no data.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::up::Up;
use suite_tests::STEP_TIMEOUT;
use suite_tests::program::{Program, binary};
use suite_tests::stack::{environment, wait_for};

/// Checks that it is one sentence with all of `words`.
fn is_a_sentence(sentence: &str, words: &[&str]) {
    assert_eq!(sentence.lines().count(), 1, "not one line: {sentence}");
    assert!(
        !sentence.contains("panicked") && !sentence.contains("Error {"),
        "not for people: {sentence}"
    );
    for word in words {
        assert!(sentence.contains(word), "{word:?} is not in: {sentence}");
    }
}

#[test]
fn what_is_wrong_with_a_request_is_said_at_once() {
    let up = Up::start();
    up.add_image();
    let submit = |more: &[&str]| {
        let mut args = vec!["submit", "--image", "busybox:test"];
        args.extend(more);
        args.extend(["--", "true"]);
        up.fails(&args).1
    };
    is_a_sentence(
        &up.fails(&["submit", "--image", "nosuch", "--", "true"]).1,
        &["nosuch", "image"],
    );
    is_a_sentence(&submit(&["--input", "a=missing.txt"]), &["missing.txt"]);
    let gone = "d41d8cd98f00b204e9800998ecf8427f+10";
    is_a_sentence(&submit(&["--input", &format!("a={gone}")]), &[gone]);
    assert!(submit(&["--memory", "4"]).contains("4GiB"));
    assert!(submit(&["--time", "4"]).contains("4m"));
    is_a_sentence(&up.fails(&["show", "99"]).1, &["99"]);
    // None of the refused requests became a job.
    assert_eq!(up.ok(&["list", "--json"]).trim(), "[]");
}

#[test]
fn what_goes_wrong_in_a_container_is_said_by_its_record() {
    let up = Up::start();
    up.add_image();
    let words = |command: &[&'static str]| {
        let mut args = vec![
            "submit",
            "--image",
            "busybox:test",
            "--memory",
            "32MiB",
            "--wait",
            "--",
        ];
        args.extend(command);
        args
    };
    let run = |command: &[&'static str]| up.fails(&words(command));
    let (_, sentence) = run(&["no-such-program"]);
    assert!(sentence.contains("no-such-program"), "{sentence}");
    // A bad link costs itself.
    let done = up.dispatch(&words(&["sh", "-c", "ln -s ../../../etc/passwd /out/link"]));
    let told = String::from_utf8(done.stderr).unwrap();
    assert!(
        done.status.success() && told.contains("/out/link leads to /etc/passwd"),
        "{told}"
    );
    let (code, sentence) = run(&["dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"]);
    assert!(
        code == 137 && sentence.contains("memory limit"),
        "{code} {sentence}"
    );
    let (code, _) = run(&["sh", "-c", "exit 7"]);
    assert_eq!(code, 7);
}

#[test]
fn a_request_larger_than_the_machine_waits_and_says_why() {
    let up = Up::start();
    up.add_image();
    up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--cpus",
        "4000",
        "--",
        "true",
    ]);
    let why = wait_for("the reason", STEP_TIMEOUT, || {
        let answer = up.ok(&["explain", "1"]);
        answer.contains("this machine has").then_some(answer)
    });
    assert!(
        why.contains("4000 CPUs") && why.contains("submit it anew"),
        "{why}"
    );
    let shown = up.ok(&["show", "--json", "1"]);
    assert!(
        shown.contains(r#""state":"Queued""#),
        "it is not Queued any more: {shown}"
    );
    // The broken request does not block others.
    up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--memory",
        "32MiB",
        "--wait",
        "--",
        "true",
    ]);
    up.ok(&["kill", "1"]);
}

#[test]
fn a_wrong_token_is_said_so() {
    let up = Up::start();
    let environment = up.environment();
    let with = |name: &str, value: &str| {
        let output = Command::new(binary("dispatch"))
            .arg("list")
            .env_clear()
            .envs(environment.iter().map(|(k, v)| (k, v)))
            .env(name, value)
            .output()
            .unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap().trim().to_owned()
    };
    is_a_sentence(
        &with("ARVADOS_API_TOKEN", "v2/local-gj3su-000000000000000/wrong"),
        &["token"],
    );
    is_a_sentence(&with("ARVADOS_API_HOST", "127.0.0.1:1"), &["127.0.0.1:1"]);
}

/// A file system of its own, so small that it is soon full.
struct SmallDisk<'a>(&'a Path);

impl<'a> SmallDisk<'a> {
    fn mount(dir: &'a Path) -> Self {
        std::fs::create_dir(dir).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=12m", "tmpfs"])
            .arg(dir)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(dir)
    }
}

impl Drop for SmallDisk<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_said_so_and_what_was_accepted_stays() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let disk = SmallDisk::mount(&state);
    let args = ["--state-dir", state.to_str().unwrap()];
    let mut api = Program::new("dispatch-api", &dir.path().join("api"), &args, &[]);
    api.start();
    let ready = wait_for("dispatch-api", STEP_TIMEOUT, || {
        serde_json::from_str::<Value>(api.stdout_text().lines().next()?).ok()
    });
    let dispatch = |args: &[&str]| {
        Command::new(binary("dispatch"))
            .args(args)
            .env_clear()
            .envs(environment(&ready))
            .current_dir(dir.path())
            .output()
            .unwrap()
    };
    std::fs::write(dir.path().join("small"), "kept").unwrap();
    std::fs::write(dir.path().join("large"), vec![7; 32 << 20]).unwrap();
    let small = dispatch(&["put", "small"]);
    assert!(
        small.status.success(),
        "{}",
        String::from_utf8_lossy(&small.stderr)
    );
    let kept = String::from_utf8(small.stdout).unwrap();
    let kept = kept.split_whitespace().next().unwrap();
    let begin = Instant::now();
    let large = dispatch(&["put", "large"]);
    assert!(!large.status.success());
    assert!(
        begin.elapsed() < Duration::from_secs(30),
        "a full disk was asked again and again"
    );
    is_a_sentence(String::from_utf8(large.stderr).unwrap().trim(), &["full"]);
    let read = || dispatch(&["get", &format!("{kept}:small"), "-"]).stdout;
    assert_eq!(read(), b"kept");
    // The same after a crash on the full disk.
    api.kill();
    api.start();
    wait_for("dispatch-api again", STEP_TIMEOUT, || {
        (read() == b"kept").then_some(())
    });
    drop(api);
    drop(disk);
}

/// A service manager that starts a program again need not try these.
#[test]
fn wrong_flags_are_a_configuration_that_cannot_work() {
    for program in [
        "dispatch-api",
        "dispatch-local",
        "dispatch-slurm",
        "dispatch-condor",
        "dispatch-overseer",
        "crunch-run",
    ] {
        let run = |word: &str| Command::new(binary(program)).arg(word).output().unwrap();
        let wrong = run("--no-such-flag");
        assert_eq!(wrong.status.code(), Some(78), "{program}: {wrong:?}");
        let stderr = String::from_utf8_lossy(&wrong.stderr);
        assert!(stderr.contains("--no-such-flag"), "{program}: {stderr}");
        assert_eq!(run("--help").status.code(), Some(0), "{program}");
        let manual = run("man");
        let page = String::from_utf8_lossy(&manual.stdout);
        assert!(
            manual.status.success() && page.contains(".SH NAME"),
            "{program}: {page}"
        );
    }
}
