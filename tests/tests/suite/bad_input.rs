//! Mistakes of users: each gives one clear sentence where the user looks, and loses nothing.

use std::process::Command;
use std::time::Duration;

use crate::program::binary;
use crate::stack::wait_for;
use crate::up::Up;

/// One sentence that names all of `words`.
fn is_a_sentence(said: &str, words: &[&str]) {
    assert_eq!(said.lines().count(), 1, "not one line: {said}");
    assert!(
        !said.contains("panicked") && !said.contains("Error {"),
        "not for people: {said}"
    );
    for word in words {
        assert!(said.contains(word), "{word:?} is not in: {said}");
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
    assert!(submit(&["--mem", "4"]).contains("4GiB"));
    assert!(submit(&["--time", "4"]).contains("4m"));
    is_a_sentence(&up.fails(&["show", "99"]).1, &["99"]);
    // Nothing of all that became a job.
    assert_eq!(up.ok(&["list", "--json"]).trim(), "[]");
}

#[test]
fn what_goes_wrong_in_a_container_is_said_by_its_record() {
    let up = Up::start();
    up.add_image();
    let run = |command: &[&str]| {
        let mut args = vec![
            "submit",
            "--image",
            "busybox:test",
            "--mem",
            "32MiB",
            "--wait",
            "--",
        ];
        args.extend(command);
        up.fails(&args)
    };
    let (_, said) = run(&["no-such-program"]);
    assert!(said.contains("no-such-program"), "{said}");
    let (_, said) = run(&["sh", "-c", "ln -s ../../../etc/passwd /out/link"]);
    assert!(said.contains("link"), "{said}");
    let (code, said) = run(&["dd", "if=/dev/zero", "of=/dev/null", "bs=128M", "count=1"]);
    assert!(
        code == 137 && said.contains("memory limit"),
        "{code} {said}"
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
    let why = wait_for("the reason", Duration::from_secs(20), || {
        let said = up.ok(&["explain", "1"]);
        said.contains("4000 CPUs").then_some(said)
    });
    assert!(why.contains("this machine has"), "{why}");
    let shown = up.ok(&["show", "--json", "1"]);
    assert!(
        shown.contains(r#""state":"Queued""#),
        "it is not Queued any more: {shown}"
    );
    // It does not stand in the way of others.
    up.ok(&[
        "submit",
        "--image",
        "busybox:test",
        "--mem",
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
