//! dispatch-slurm with a configuration file, on a real Slurm: its check, its dry run, its
//! explanations and its epilog.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::records::ContainerState;
use serde_json::{Value, json};

use crate::secrets::{Secrets, add_credentials, files, found_in, processes, secret};
use suite_tests::program::{binary, write_script};
use suite_tests::stack::client;

mod site;

use site::{Site, executor, shared};
use suite_tests::STEP_TIMEOUT;

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_what_slurm_then_has() {
    let site = Site::shared(&["--poll-interval", "1s"]).await;
    let more = json!({
        "scheduling_parameters": {"max_run_time": 3601, "partitions": ["main"]},
        "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 30}},
    });
    let container = site.running("shown", more).await;
    let shown = site.answer(&["--dry-run", container.as_str()]);
    let not_now = shown["not_now"].as_str().unwrap();
    assert!(not_now.starts_with("it is "), "{shown}");
    let arguments: Vec<(String, String)> = shown["arguments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|a| {
            let text = |key: &str| a[key].as_str().unwrap().to_owned();
            (text("value"), text("from"))
        })
        .collect();
    let value = |option: &str| {
        let option = format!("{option}=");
        let found = arguments
            .iter()
            .rfind(|(text, _)| text.starts_with(&option));
        found
            .unwrap_or_else(|| panic!("no {option} in {arguments:?}"))
            .0[option.len()..]
            .to_owned()
    };
    let attempt = site
        .stack
        .container(&container)
        .await
        .locked_by_uuid
        .unwrap();
    let id = site.job(&container);
    let job = site
        .lab
        .run("scontrol", &["--oneliner", "show", "job", &id]);
    // 3601 s are 61 minutes, and an hour for staging.
    assert_eq!(value("--time"), "121");
    assert_eq!(value("--mem"), "582");
    // Slurm's copy differs: the first job of an account has 0, and the others are put in order.
    assert_eq!(value("--nice"), "10000");
    for (field, expected) in [
        ("JobName=", value("--job-name")),
        ("Requeue=", "0".to_owned()),
        ("TimeLimit=", "02:01:00".to_owned()),
        ("MinMemoryNode=", format!("{}M", value("--mem"))),
        ("CPUs/Task=", value("--cpus-per-task")),
        ("MinTmpDiskNode=", format!("{}M", value("--tmp"))),
        ("Features=", "small".to_owned()),
        ("Partition=", "main".to_owned()),
        ("StdOut=", value("--output")),
        ("WorkDir=", value("--chdir")),
        (
            "Comment=",
            value("--comment").replace("ATTEMPT", attempt.as_str()),
        ),
    ] {
        let expected = format!("{field}{expected} ");
        assert!(job.contains(&expected), "{expected:?} is not in {job}");
    }
    let from = |text: &str| {
        let found = arguments.iter().find(|(value, _)| value.starts_with(text));
        found.unwrap().1.clone()
    };
    assert_eq!(
        from("--mem="),
        "Containers.SLURM.SbatchArgumentsList: --mem=%M"
    );
    assert_eq!(from("--constraint="), "Containers.SLURM.Constraint: %I");
    assert!(from("--signal=").starts_with("default of --warn-before-end"));

    let script = site
        .lab
        .run("scontrol", &["write", "batch_script", &id, "-"]);
    let expected = shown["script"].as_str().unwrap();
    assert_eq!(
        script.trim(),
        expected.replace("ATTEMPT", attempt.as_str()).trim()
    );
    let (_, environment) = executor(&container);
    let environment = String::from_utf8_lossy(&environment);
    let has = |text: &str| {
        environment
            .split('\0')
            .any(|variable| variable.starts_with(text))
    };
    let host = format!(
        "ARVADOS_API_HOST={}",
        site.stack.ready["host"].as_str().unwrap()
    );
    assert!(has("SITE_MARK=here") && has(&host), "{environment}");
    assert!(
        !has(&format!("TMPDIR={}", site.stack.dir.path().display())) && !has("ARVADOS_API_TOKEN"),
        "{environment}"
    );
    assert!(
        !has("SLURM_GET_USER_ENV"),
        "a login shell was run: {environment}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn explain_says_why_a_container_runs_or_does_not() {
    let site = Site::up(&[], &["--poll-interval", "1s"]).await;
    let (_, quick) = site.stack.submit("quick", "exit 3", json!({})).await;
    site.stack.end(&quick, STEP_TIMEOUT).await;
    assert_eq!(site.why(&quick), "it has ended, with exit code 3");

    let large = json!({"runtime_constraints": {"vcpus": 9, "ram": 32 << 20}});
    let (_, large) = site.stack.submit("large", "true", large).await;
    site.wait_for_why(
        &large,
        "this dispatcher cannot run it: none of the 2 instance types",
    )
    .await;

    let all = json!({"runtime_constraints": {"vcpus": 4, "ram": 32 << 20}});
    let holder = site.running("holder", all.clone()).await;
    let answer = site.answer(&["explain", holder.as_str()]);
    let why = answer["why"].as_str().unwrap();
    assert!(why.contains("it runs as job "), "{answer}");
    let (request, behind) = site.stack.submit("behind", "true", all).await;
    site.wait_for_why(&behind, "waits for").await;
    assert_eq!(
        site.stack.container(&large).await.state,
        ContainerState::Queued
    );

    let hold = json!({"priority": 0});
    site.stack
        .user
        .update_container_request(&request, hold)
        .await
        .unwrap();
    site.wait_for_why(&behind, "its priority is 0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_finds_what_works_and_what_does_not() {
    let site = Site::shared(&["--poll-interval", "1s"]).await;
    let report = site.answer(&["check", "--submit-test"]);
    assert_eq!(report["ok"], true, "{report}");
    let findings = |report: &Value, what: &str| -> Vec<String> {
        let all = report["findings"].as_array().unwrap().iter();
        // A finding about a node begins with its name.
        let about = all.filter(|finding| {
            let name = finding["what"].as_str().unwrap();
            name == what || (what.starts_with(", ") && name.ends_with(what))
        });
        about
            .map(|f| format!("{}: {}", f["level"], f["finding"]))
            .collect()
    };
    let test = findings(&report, "submit test");
    assert!(test[0].contains("checked its node as uid "), "{test:?}");
    assert!(test[0].contains("on n"), "{test:?}");
    for what in [", kernel", ", engine builtin", ", cache", ", API server"] {
        let found = findings(&report, what);
        assert!(!found.is_empty(), "{what}: {report}");
    }
    assert!(
        findings(&report, "partitions")[0].contains("main (2 nodes)"),
        "{report}"
    );
    assert!(
        findings(&report, "dispatch token")
            .iter()
            .any(|f| f.contains("may mint and revoke attempt tokens")),
        "{report}"
    );
    let outputs = site
        .lab
        .run("squeue", &["--noheader", "--Format=STDOUT:400"]);
    let own = site.stack.dir.path().to_str().unwrap();
    assert!(!outputs.contains(own), "{outputs}");
    let left = std::fs::read_dir(shared(site.stack.dir.path())).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains("check")),
        "{left:?}"
    );

    let output = site.subcommand(&[
        "--crunch-run",
        "/no/such/crunch-run",
        "check",
        "--submit-test",
    ]);
    assert_eq!(output.status.code(), Some(78));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let test = findings(&report, "submit test");
    assert!(
        test[0].starts_with("\"fail\"") && test[0].contains("/no/such/crunch-run"),
        "{test:?}"
    );

    let blind = format!("{} --ca-certs=/no/such.pem", binary("crunch-run").display());
    let output = site.subcommand(&["--crunch-run", &blind, "check", "--submit-test"]);
    assert_eq!(output.status.code(), Some(78));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let test = findings(&report, "submit test");
    assert!(test[0].starts_with("\"ok\""), "{test:?}");
    let server = findings(&report, ", API server");
    assert!(server[0].contains("/no/such.pem"), "{report}");

    let token = site.stack.dir.path().join("wrong-token");
    std::fs::write(&token, "wrongwrongwrong").unwrap();
    let output = site.subcommand(&["--token-file", token.to_str().unwrap(), "check"]);
    assert_eq!(output.status.code(), Some(78));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        findings(&report, "dispatch token")[0].contains("it is wrong"),
        "{report}"
    );
}

/// Only the epilog can report the end so soon: the next poll is ten minutes away.
#[tokio::test(flavor = "multi_thread")]
async fn an_epilog_tells_at_once_that_a_job_has_ended() {
    let root = suite_tests::workspace();
    let script = root.join("contrib/slurm/epilog");
    let dir = tempfile::tempdir().unwrap();
    let epilog = dir.path().join("epilog");
    let shared = dir.path().join("shared");
    let of_site = format!(
        "#!/bin/sh\nDISPATCH_STATE_DIR={} exec {}\n",
        shared.display(),
        script.display()
    );
    write_script(&epilog, &of_site);
    let line = format!("Epilog={}", epilog.display());
    let flags = [
        "--poll-interval",
        "600s",
        "--state-dir",
        shared.to_str().unwrap(),
    ];
    let site = Site::up(&["-x", &line], &flags).await;
    // Two listings are needed, two seconds apart without the epilog. A slow machine needs several
    // tries until one is fast.
    let mut times = Vec::new();
    while times.iter().all(|time| *time >= Duration::from_secs(2)) {
        assert!(times.len() < 10, "{times:?}");
        let container = site.running("one of several", json!({})).await;
        site.silence().await;
        let (pid, _) = executor(&container);
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        let killed = Instant::now();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let record = site.stack.end(&container, STEP_TIMEOUT).await;
        times.push(killed.elapsed());
        assert_eq!(record.state, ContainerState::Cancelled);
    }
    eprintln!("final state seen so long after the end of the job: {times:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_slurm_or_in_a_process() {
    let site = Site::shared(&["--poll-interval", "1s"]).await;
    let container = site.running("secretive", json!({})).await;
    let dir = site.stack.dir.path();
    let mut secrets = Secrets::new();
    for who in ["dispatch", "root", "user"] {
        let token = std::fs::read_to_string(site.stack.ready["tokens"][who].as_str().unwrap());
        secrets.insert(format!("{who} token"), secret(&token.unwrap()));
    }
    let attempt = site
        .stack
        .container(&container)
        .await
        .locked_by_uuid
        .unwrap();
    let token = shared(dir)
        .join(container.as_str())
        .join(format!("token-{attempt}"));
    let token = add_credentials(&mut secrets, &token);
    assert!(secrets.contains_key("gateway secret"));
    let as_attempt =
        client(&site.stack.ready, "user").with_token(arvados_client::Token::new(token));
    assert_eq!(
        as_attempt.container(&container).await.unwrap().uuid,
        container
    );

    let id = site.job(&container);
    // Root sees more than any other user.
    for (program, args) in [
        ("scontrol", &["show", "job", "--details", &id][..]),
        ("scontrol", &["write", "batch_script", &id, "-"]),
        ("squeue", &["--format=%all", "--jobs", &id]),
        ("squeue", &["--json"]),
    ] {
        let shown = site.lab.run(program, args);
        assert!(
            shown.contains(container.as_str()),
            "{program} {args:?}: {shown}"
        );
        assert_eq!(
            found_in(&secrets, shown.as_bytes()),
            None,
            "{program} {args:?}"
        );
    }
    // Files of slurmctld and slurmd about the job, with script and environment.
    let lab = Path::new(site.lab.variable("SLURM_CONF")).parent().unwrap();
    let job_files = files(lab);
    let holds = |path: &PathBuf, text: &str| {
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).contains(text)
    };
    assert!(
        job_files.iter().any(|path| holds(path, "SITE_MARK=here")),
        "{job_files:?}"
    );
    for file in &job_files {
        let content = std::fs::read(file).unwrap_or_default();
        assert_eq!(found_in(&secrets, &content), None, "{}", file.display());
    }
    others_find_none(&site, &secrets, &id);
    for (pid, _, command, environment) in processes() {
        assert_eq!(found_in(&secrets, &command), None, "argv of {pid}");
        assert_eq!(
            found_in(&secrets, &environment),
            None,
            "environment of {pid}"
        );
    }
    for shown in [
        &["--dry-run", container.as_str()][..],
        &["explain", container.as_str()],
        &["check"],
    ] {
        let output = site.subcommand(shown);
        for text in [&output.stdout, &output.stderr] {
            assert_eq!(found_in(&secrets, text), None, "{shown:?}");
        }
    }
    let log = site.stack.dispatcher.log_text();
    assert!(log.contains(container.as_str()));
    assert_eq!(found_in(&secrets, log.as_bytes()), None);
}

/// The same search as another user, with his file permissions: Slurm's answers and files, the
/// service's directories, all processes.
fn others_find_none(site: &Site, secrets: &Secrets, job: &str) {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::process::{Command, Stdio};
    let as_other = |program: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]);
        command.arg(program);
        command.env("SLURM_CONF", site.lab.variable("SLURM_CONF"));
        command.current_dir("/");
        command
    };
    let service = site.stack.dir.path();
    let lab = Path::new(site.lab.variable("SLURM_CONF")).parent().unwrap();
    // The test opens its own directories, so that only the programs' permissions keep that user
    // out.
    for dir in [service, lab.parent().unwrap()] {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let fields = "JobID,Name:100,Comment:200,Command:200,STDOUT:300,WorkDir:200,AdminComment";
    for (program, args, answers) in [
        ("scontrol", &["show", "job", "--details", job][..], true),
        ("scontrol", &["write", "batch_script", job, "-"], false),
        ("squeue", &["--Format", fields], true),
        ("squeue", &["--format=%all"], true),
    ] {
        let output = as_other(program).args(args).output().unwrap();
        assert_eq!(
            !output.stdout.is_empty(),
            answers,
            "{program} {args:?}: {output:?}"
        );
        for shown in [&output.stdout, &output.stderr] {
            assert_eq!(found_in(secrets, shown), None, "{program} {args:?}");
        }
    }
    let hunt = || -> Vec<PathBuf> {
        let search = "exec grep -rlsF -f - \"$@\" /proc/[0-9]*/cmdline /proc/[0-9]*/environ";
        let mut grep = as_other("sh")
            .args(["-c", search, "sh"])
            .args([service, lab])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let all: Vec<&str> = secrets.values().map(String::as_str).collect();
        let mut input = grep.stdin.take().unwrap();
        input.write_all(all.join("\n").as_bytes()).unwrap();
        drop(input);
        let output = grep.wait_with_output().unwrap();
        let found = String::from_utf8(output.stdout).unwrap();
        found.lines().map(PathBuf::from).collect()
    };
    assert_eq!(hunt(), Vec::<PathBuf>::new());
    // He would have found it.
    let planted = service.join("planted");
    std::fs::write(&planted, secrets.values().next().unwrap()).unwrap();
    std::fs::set_permissions(&planted, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(hunt(), std::slice::from_ref(&planted));
    std::fs::remove_file(&planted).unwrap();
}
