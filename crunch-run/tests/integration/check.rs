//! `crunch-run check` on this machine: with a server and without, with a broken cache, as an
//! ordinary user. The findings themselves are tested beside the code. The server runs on a thread
//! of this process.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use crate::run_lab::World;
use serde_json::{Value, json};

/// A check takes at most half a minute; the rest is for a slow machine.
const MAX_CHECK_TIME: Duration = Duration::from_secs(90);

/// A check with a directory of its own, which it must leave empty.
struct Check {
    temp_dir: tempfile::TempDir,
    command: Command,
}

impl Check {
    fn new() -> Self {
        Self::of(Path::new(env!("CARGO_BIN_EXE_crunch-run")), &[])
    }

    /// `--check` before the arguments of a run; its token does not exist.
    fn of_a_run() -> Self {
        let mut check = Self::with_verb(Command::new(env!("CARGO_BIN_EXE_crunch-run")), "--check");
        let uuid = "zzzzz-dz642-0123456789abcde";
        check
            .command
            .args(["--token-file", "/no/such/token", "--stop-grace=1m", uuid]);
        check
    }

    fn of(program: &Path, before: &[&str]) -> Self {
        let mut words = before.iter().map(std::ffi::OsStr::new);
        let command = match words.next() {
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(program);
                command
            }
            None => Command::new(program),
        };
        Self::with_verb(command, "check")
    }

    fn with_verb(mut command: Command, verb: &str) -> Self {
        let temp_dir = tempfile::tempdir().unwrap();
        fs::set_permissions(temp_dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        command
            .arg(verb)
            .arg("--cache-dir")
            .arg(temp_dir.path().join("cache"))
            // However full the disk of this machine is.
            .args(["--cache-size=100%", "--cache-free=0"])
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin")
            .env("TMPDIR", temp_dir.path())
            .current_dir("/");
        Self { temp_dir, command }
    }

    fn with_server(mut self, world: &World) -> Self {
        self.command.envs(world.environment());
        self
    }

    fn token(mut self, token: &str) -> Self {
        self.command.env("ARVADOS_API_TOKEN", token);
        self
    }

    fn args(mut self, words: &[&str]) -> Self {
        self.command.args(words);
        self
    }

    fn output(mut self) -> Output {
        let began = Instant::now();
        let output = self.command.output().unwrap();
        assert!(began.elapsed() < MAX_CHECK_TIME, "{:?}", began.elapsed());
        let left: Vec<_> = fs::read_dir(self.temp_dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(left.is_empty(), "left behind: {left:?}");
        output
    }

    /// The exit status and the object, whose form is checked.
    fn json(self) -> (i32, Value) {
        let output = self.args(&["--json"]).output();
        let code = output.status.code().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let findings = report["findings"].as_array().unwrap();
        assert!(findings.len() > 10, "{report:#}");
        let mut fails = false;
        for finding in findings {
            let level = finding["level"].as_str().unwrap();
            assert!(["ok", "warn", "fail"].contains(&level), "{finding}");
            assert!(finding["what"].as_str().is_some_and(|t| !t.is_empty()));
            assert!(finding["finding"].as_str().is_some_and(|t| !t.is_empty()));
            assert_eq!(finding["mend"].is_string(), level != "ok", "{finding}");
            fails |= level == "fail";
        }
        assert_eq!(report["ok"], !fails);
        assert_eq!(code, if fails { 78 } else { 0 }, "{report:#}");
        for text in ["host", "version"] {
            assert!(report[text].is_string());
        }
        assert!(report["uid"].is_u64());
        (code, report)
    }
}

/// Level and text of every finding about `what`.
fn about<'a>(report: &'a Value, what: &str) -> Vec<(&'a str, &'a str)> {
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|finding| finding["what"] == what)
        .map(|f| (f["level"].as_str().unwrap(), f["finding"].as_str().unwrap()))
        .collect()
}

/// Subject, level and part of the text of a finding.
type Expected<'a> = (&'a str, &'a str, &'a str);

fn has(report: &Value, (what, level, words): &Expected) -> bool {
    let found = about(report, what);
    found
        .iter()
        .any(|(l, finding)| l == level && finding.contains(words))
}

#[track_caller]
fn says(report: &Value, what: &str, level: &str, words: &str) {
    let is_said = has(report, &(what, level, words));
    assert!(is_said, "{what}, {level}, {words}: {report:#}");
}

/// Tries up to three times: on a slow machine, a server or an engine may exceed its timeout.
#[track_caller]
fn expect(ask: impl Fn() -> (i32, Value), expected: &[Expected]) -> (i32, Value) {
    let mut result = ask();
    for _ in 0..2 {
        if expected.iter().all(|finding| has(&result.1, finding)) {
            break;
        }
        result = ask();
    }
    for (what, level, words) in expected {
        says(&result.1, what, level, words);
    }
    result
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_with_a_server_is_found_in_order() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let job = world.lock(&["true"], json!({})).await;
    let secret = job.token.expose().rsplit('/').next().unwrap().to_owned();
    let check = || Check::new().with_server(&world).token(job.token.expose());

    let expected = [
        ("API server", "ok", "cluster"),
        ("clock", "ok", "agrees"),
        ("token", "ok", job.attempt.as_str()),
        ("Keep", "ok", "services"),
        ("Keep", "ok", "read again"),
        ("engine builtin", "ok", "ran a container"),
        ("engine auto", "ok", "takes builtin"),
        ("cache", "ok", "will be made"),
    ];
    let (code, report) = expect(|| check().json(), &expected);
    assert_eq!(code, 0, "{report:#}");
    assert!(!report.to_string().contains(&secret));

    let mut output = check().output();
    // Retries like `expect`.
    for _ in 0..2 {
        if !output.status.success() {
            output = check().output();
        }
    }
    assert!(output.status.success(), "{output:?}");
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(page.contains("ok    Keep: a block was stored"), "{page}");
    assert!(
        !page.contains("FAIL  ") && !page.contains(&secret),
        "{page}"
    );

    let file = world.dir().join("token-file");
    fs::write(&file, job.token.expose()).unwrap();
    let flag = format!("--token-file={}", file.display());
    let with_file = || Check::new().with_server(&world).args(&[&flag]).json();
    expect(with_file, &[("token", "ok", job.attempt.as_str())]);

    let (code, report) = check().args(&["--offline"]).json();
    assert_eq!(code, 0);
    says(&report, "Keep", "ok", "--offline");
    assert!(!report.to_string().contains("revision"));

    // A token that does not exist, and one with a wrong secret.
    let wrong = format!("v2/{}/wr0ngsecret", job.attempt);
    let with_wrong = || Check::new().with_server(&world).token(&wrong).json();
    let (code, report) = expect(with_wrong, &[("token", "fail", "not accepted")]);
    assert_eq!(code, 78);
    assert!(!report.to_string().contains("wr0ngsecret"));
    let expected = [
        ("API server", "ok", "cluster"),
        ("token", "warn", "none given"),
    ];
    let (code, _) = expect(|| Check::new().with_server(&world).json(), &expected);
    assert_eq!(code, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_not_to_be_trusted_or_reached_fails() {
    if !crate::run_lab::can_run() {
        return;
    }
    let world = World::new().await;
    let another = World::new().await;
    let other = another.environment()["SSL_CERT_FILE"].clone();
    let with_other = || {
        let check = Check::new().with_server(&world).token("v2/x/5ecret");
        check.args(&["--ca-certs", &other]).json()
    };
    let (code, report) = expect(with_other, &[("API server", "fail", "certificate")]);
    assert_eq!(code, 78);
    assert!(!report.to_string().contains("5ecret"));

    // A closed port, and a server that never answers.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = crate::run_lab::server::port();
    for (host, words) in [
        (gone.local_addr().unwrap(), "refused"),
        (mute.local_addr().unwrap(), "timed out"),
    ] {
        let mut check = Check::new().token("v2/x/5ecret");
        check.command.env("ARVADOS_API_HOST", host.to_string());
        let (code, report) = check.json();
        assert_eq!(code, 78, "{report:#}");
        says(&report, "API server", "fail", words);
        assert!(!report.to_string().contains("5ecret"));
    }
    let mut check = Check::new();
    check.command.env("ARVADOS_API_HOST", "a/b");
    let (_, report) = check.json();
    says(&report, "API server", "fail", "not an API host");
    let (code, report) = Check::new().json();
    assert_eq!(code, 0);
    says(&report, "API server", "warn", "ARVADOS_API_HOST");
}

/// The check as a scheduler's submit test runs it: findings are reported, and the job does not
/// fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_may_look_instead() {
    if !crate::run_lab::can_run() {
        return;
    }
    let report_of = |check: Check| -> (i32, Value) {
        let output = check.output();
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        assert_eq!(output.stdout.iter().filter(|c| **c == b'\n').count(), 1);
        (0, serde_json::from_slice(&output.stdout).unwrap())
    };
    let world = World::new().await;
    let secret = "v2/zzzzz-gj3su-0123456789abcde/5ecret";
    let expected = [
        ("API server", "ok", "cluster"),
        ("token", "ok", "each attempt has a token of its own"),
        ("engine auto", "ok", "takes builtin"),
        ("cache", "ok", "will be made"),
    ];
    let (_, report) = expect(
        || report_of(Check::of_a_run().with_server(&world).token(secret)),
        &expected,
    );
    assert_eq!(report["ok"], true, "{report:#}");
    assert!(!report.to_string().contains("5ecret"));
    let (_, report) = report_of(Check::of_a_run());
    assert_eq!(report["ok"], false, "{report:#}");
    says(&report, "API server", "fail", "ARVADOS_API_HOST");
    let docker = ["--runtime-engine=docker", "--docker-socket=/nowhere"];
    let (_, report) = report_of(Check::of_a_run().with_server(&world).args(&docker));
    says(&report, "engine docker", "fail", "/nowhere");

    // Wrong flags of a run are still reported.
    let output = Check::of_a_run().args(&["--no-such-flag"]).output();
    assert_eq!(output.status.code(), Some(78), "{output:?}");
}

#[test]
fn a_cache_that_cannot_be_used_fails() {
    if !crate::run_lab::can_run() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let open_to_all = dir.path().join("open");
    fs::create_dir(&open_to_all).unwrap();
    fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o777)).unwrap();
    let theirs = dir.path().join("theirs");
    fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65534), Some(65534)).unwrap();
    for (path, words) in [
        (file, "not a directory"),
        (open_to_all, "(mode 777)"),
        (theirs, "is nobody's): others could store images in it"),
    ] {
        let path = path.to_str().unwrap();
        let (code, report) = Check::new()
            .args(&["--offline", "--cache-dir", path])
            .json();
        assert_eq!(code, 78, "{report:#}");
        says(&report, "cache", "fail", words);
    }
}

#[test]
fn an_engine_that_is_asked_for_must_work() {
    if !crate::run_lab::can_run() {
        return;
    }
    let words = [
        "--offline",
        "--runtime-engine=docker",
        "--docker-socket=/nowhere",
    ];
    let expected = [
        ("engine docker", "fail", "/nowhere"),
        ("engine builtin", "ok", "ran a container"),
    ];
    let (code, _) = expect(|| Check::new().args(&words).json(), &expected);
    assert_eq!(code, 78);
}

#[test]
fn an_ordinary_user_learns_what_is_different_for_him() {
    if !crate::run_lab::can_run_with("crun") {
        return;
    }
    // Other users may be unable to read this program's directory.
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("crunch-run");
    // Another process copies the program: a file that this process writes may be busy ("text file
    // busy") while another thread forks.
    let copy = [Path::new(env!("CARGO_BIN_EXE_crunch-run")), &program];
    assert!(Command::new("cp").args(copy).status().unwrap().success());
    let nobody = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let check = || Check::of(&program, &nobody).args(&["--offline"]);
    let expected = [
        ("engine builtin", "ok", "needs to be root"),
        ("engine oci", "ok", "ran a container"),
    ];
    let (code, report) = expect(|| check().json(), &expected);
    assert_eq!(report["uid"], 65534);
    assert_eq!(code, 0, "{report:#}");
    assert!(!about(&report, "user namespaces")[0].1.contains("root"));
    let closed = dir.path().join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
    let cache = closed.join("cache");
    let (code, report) = check()
        .args(&["--cache-dir", cache.to_str().unwrap()])
        .json();
    assert_eq!(code, 78);
    says(&report, "cache", "fail", "Permission denied");
}
