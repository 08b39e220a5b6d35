//! dispatch-slurm as an admin sets it up: by a configuration file, on a real Slurm, with its check, its dry run, its
//! explanations and its epilog.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use serde_json::{Value, json};

use crate::lab::Lab;
use crate::program::{Program, binary};
use crate::secrets::{Secrets, files, found_in, processes, secret};
use crate::stack::{Stack, client};

const PATIENCE: Duration = Duration::from_secs(90);

/// A cluster, and a service that knows everything from its configuration file.
struct Site {
    stack: Stack,
    lab: Lab,
}

fn shared(dir: &Path) -> PathBuf {
    dir.join("shared")
}

/// A PATH with a squeue that writes a line for each time it is asked.
fn counting_squeue(dir: &Path) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = std::env::var("PATH").unwrap();
    let mut places = std::env::split_paths(&path).map(|place| place.join("squeue"));
    let real = places.find(|file| file.is_file()).unwrap();
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let asked = dir.join("squeue-was-asked");
    let script = format!(
        "#!/bin/sh\necho >> {}\nexec {} \"$@\"\n",
        asked.display(),
        real.display()
    );
    let wrapper = bin.join("squeue");
    std::fs::write(&wrapper, script).unwrap();
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{path}", bin.display())
}

/// What a site sets, in the file's own words.
fn configuration(ready: &Value) -> Value {
    let token = std::fs::read_to_string(ready["tokens"]["dispatch"].as_str().unwrap()).unwrap();
    let host = ready["host"].as_str().unwrap();
    json!({"Clusters": {"zzzzz": {
        "SystemRootToken": token.trim(),
        "Services": {"Controller": {"ExternalURL": format!("https://{host}/")}},
        "PostgreSQL": {"Connection": {}},
        "Containers": {
            "CrunchRunCommand": binary("crunch-run"),
            "ReserveExtraRAM": "550MiB",
            "MinRetryPeriod": "1s",
            "SLURM": {
                "SbatchArgumentsList": ["--job-name=%U", "--mem=%M", "--cpus-per-task=%C", "--tmp=%T", "--partition=%P"],
                "SbatchEnvironmentVariables": {"SITE_MARK": "here"},
                "Constraint": {"*": "%I"},
            },
        },
        "InstanceTypes": {
            "small": {"VCPUs": 4, "RAM": "4GB", "IncludedScratch": "50GB", "Price": 0.1},
            "large": {"VCPUs": 8, "RAM": "8GB", "IncludedScratch": "50GB", "Price": 0.2},
        },
    }}})
}

impl Site {
    async fn up(slurm: &[&str], more: &[&str]) -> Self {
        let mut all = vec!["-n", "1", "-c", "4", "-m", "4000", "-F", "small,fast", "-N"];
        all.extend(slurm);
        let lab = Lab::up("slurm", &all);
        let stack = Stack::with(|servers, dir| {
            let (path, own) = (dir.join("config.yml"), dir.join("tmp"));
            std::fs::create_dir(&own).unwrap();
            let text = configuration(&servers.ready).to_string();
            std::fs::write(&path, text).unwrap();
            let (path, shared) = (path.to_str().unwrap(), shared(dir));
            let mut args = vec!["--config", path, "--shared-dir", shared.to_str().unwrap()];
            args.extend(["--log-level", "debug,hyper_util=info,reqwest=info"]);
            args.extend(more);
            let certificate = servers.ready["certificate"].as_str().unwrap();
            let env = [
                ("SSL_CERT_FILE", certificate),
                ("SLURM_CONF", lab.variable("SLURM_CONF")),
                // A node has its own.
                ("TMPDIR", own.to_str().unwrap()),
                ("PATH", &counting_squeue(dir)),
            ];
            Program::new("dispatch-slurm", &dir.join("dispatcher"), &args, &env)
        })
        .await;
        Self { stack, lab }
    }

    /// dispatch-slurm with the service's flags and these; what it did.
    fn errand(&self, more: &[&str]) -> Output {
        let dir = self.stack.dir.path();
        Command::new(binary("dispatch-slurm"))
            .args(["--config", dir.join("config.yml").to_str().unwrap()])
            .args(["--shared-dir", shared(dir).to_str().unwrap()])
            .args(["--format", "json"])
            .args(more)
            .env_clear()
            .env("PATH", std::env::var("PATH").unwrap())
            .env("SLURM_CONF", self.lab.variable("SLURM_CONF"))
            .env(
                "SSL_CERT_FILE",
                self.stack.ready["certificate"].as_str().unwrap(),
            )
            .output()
            .unwrap()
    }

    fn answer(&self, more: &[&str]) -> Value {
        let output = self.errand(more);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more:?}: {said}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn why(&self, container: &ContainerUuid) -> String {
        let told = self.answer(&["explain", container.as_str()]);
        told["why"].as_str().unwrap().to_owned()
    }

    async fn wait_for_why(&self, container: &ContainerUuid, words: &str) {
        let until = Instant::now() + PATIENCE;
        loop {
            let why = self.why(container);
            if why.contains(words) {
                return;
            }
            assert!(Instant::now() < until, "{container}: {why}, not {words}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn running(&self, name: &str, more: Value) -> ContainerUuid {
        let script = "while ! [ -e /out/stop ]; do sleep 0.1; done";
        let (_, container) = self.stack.submit(name, script, more).await;
        let runs = |c: &arvados_client::records::Container| c.state == ContainerState::Running;
        self.stack.wait_until(&container, PATIENCE, runs).await;
        container
    }

    /// Until the service has not asked squeue for longer than it ever waits when it expects something.
    async fn silence(&self) {
        let asked = self.stack.dir.path().join("squeue-was-asked");
        let count = || std::fs::metadata(&asked).unwrap().len();
        let until = Instant::now() + PATIENCE;
        let (mut last, mut since) = (count(), Instant::now());
        while since.elapsed() < Duration::from_secs(5) {
            assert!(Instant::now() < until, "squeue is asked all the time");
            tokio::time::sleep(Duration::from_millis(100)).await;
            if count() != last {
                (last, since) = (count(), Instant::now());
            }
        }
    }

    fn job(&self, container: &ContainerUuid) -> String {
        let name = format!("--name={container}");
        let listed = self
            .lab
            .ask("squeue", &["--noheader", "--format=%i", &name]);
        listed.trim().to_owned()
    }
}

/// The crunch-run of this container: process number and environment.
fn executor(container: &ContainerUuid) -> (String, Vec<u8>) {
    let words = |command: &[u8]| {
        let words: Vec<String> = command
            .split(|byte| *byte == 0)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .collect();
        words[0].ends_with("crunch-run") && words.contains(&container.to_string())
    };
    let mut all = processes().into_iter();
    let found = all.find(|(_, _, command, _)| words(command));
    let (pid, _, _, environment) = found.expect("a crunch-run of the container");
    (pid, environment)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_shows_what_slurm_then_has() {
    let site = Site::up(&[], &["--poll-interval", "1s"]).await;
    let more = json!({
        "scheduling_parameters": {"max_run_time": 3601, "partitions": ["main"]},
        "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 30}},
    });
    let container = site.running("shown", more).await;
    let shown = site.answer(&["--dry-run", container.as_str()]);
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
        .ask("scontrol", &["--oneliner", "show", "job", &id]);
    // 3601 s are 61 minutes, and an hour for staging.
    assert_eq!(value("--time"), "121");
    assert_eq!(value("--mem"), "582");
    for (field, expected) in [
        ("JobName=", value("--job-name")),
        ("Nice=", value("--nice")),
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
        .ask("scontrol", &["write", "batch_script", &id, "-"]);
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
async fn it_is_explained_why_a_container_runs_or_does_not() {
    let site = Site::up(&[], &["--poll-interval", "1s"]).await;
    let (_, quick) = site.stack.submit("quick", "exit 3", json!({})).await;
    site.stack.end(&quick, PATIENCE).await;
    assert_eq!(site.why(&quick), "it has ended, with exit code 3");

    let large = json!({"runtime_constraints": {"vcpus": 9, "ram": 32 << 20}});
    let (_, large) = site.stack.submit("large", "true", large).await;
    site.wait_for_why(
        &large,
        "it cannot run here, though another dispatcher may run it: none of the 2 instance types",
    )
    .await;

    let all = json!({"runtime_constraints": {"vcpus": 4, "ram": 32 << 20}});
    let holder = site.running("holder", all.clone()).await;
    let told = site.answer(&["explain", holder.as_str()]);
    let why = told["why"].as_str().unwrap();
    assert!(why.contains("it runs as job "), "{told}");
    let (request, behind) = site.stack.submit("behind", "true", all).await;
    site.wait_for_why(&behind, "waits in Slurm").await;
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
    site.wait_for_why(&behind, "nobody wants it now").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_finds_what_works_and_what_does_not() {
    let site = Site::up(&[], &["--poll-interval", "1s"]).await;
    let report = site.answer(&["check", "--submit-test"]);
    assert_eq!(report["ok"], true, "{report}");
    let findings = |report: &Value, what: &str| -> Vec<String> {
        let all = report["findings"].as_array().unwrap().iter();
        let about = all.filter(|finding| finding["what"] == what);
        about
            .map(|f| format!("{}: {}", f["level"], f["finding"]))
            .collect()
    };
    let test = findings(&report, "submit test");
    assert!(test[0].contains("ran crunch-run "), "{test:?}");
    assert!(test[0].contains("on n1 after"), "{test:?}");
    assert!(
        findings(&report, "partitions")[0].contains("main (1 nodes)"),
        "{report}"
    );
    assert!(
        findings(&report, "dispatch token")
            .iter()
            .any(|f| f.contains("may make and end tokens")),
        "{report}"
    );
    assert_eq!(site.lab.ask("squeue", &["--noheader"]).trim(), "");
    let left = std::fs::read_dir(shared(site.stack.dir.path())).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().contains("check")),
        "{left:?}"
    );

    let output = site.errand(&[
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

    let token = site.stack.dir.path().join("wrong-token");
    std::fs::write(&token, "wrongwrongwrong").unwrap();
    let output = site.errand(&["--token-file", token.to_str().unwrap(), "check"]);
    assert_eq!(output.status.code(), Some(78));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(
        findings(&report, "dispatch token")[0].contains("it is wrong"),
        "{report}"
    );
}

/// Nothing else could tell so soon: the next look by itself is ten minutes away.
#[tokio::test(flavor = "multi_thread")]
async fn an_epilog_tells_at_once_that_a_job_has_ended() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let script = root.join("contrib/slurm/epilog");
    let dir = tempfile::tempdir().unwrap();
    let epilog = dir.path().join("epilog");
    let place = dir.path().join("shared");
    let of_site = format!(
        "#!/bin/sh\nDISPATCH_SHARED_DIR={} exec {}\n",
        place.display(),
        script.display()
    );
    std::fs::write(&epilog, of_site).unwrap();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(&epilog, std::fs::Permissions::from_mode(0o755)).unwrap();
    let line = format!("Epilog={}", epilog.display());
    let flags = [
        "--poll-interval",
        "600s",
        "--shared-dir",
        place.to_str().unwrap(),
    ];
    let site = Site::up(&["-x", &line], &flags).await;
    let container = site.running("killed", json!({})).await;
    site.silence().await;
    let (pid, _) = executor(&container);
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    let killed = Instant::now();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    let record = site.stack.end(&container, Duration::from_secs(30)).await;
    eprintln!(
        "final state seen {:?} after the end of the job",
        killed.elapsed()
    );
    assert_eq!(record.state, ContainerState::Cancelled);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_in_slurm_or_in_a_process() {
    let site = Site::up(&[], &["--poll-interval", "1s"]).await;
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
    let token = std::fs::read_to_string(token).unwrap();
    secrets.insert("attempt token".to_owned(), secret(&token));
    let as_attempt =
        client(&site.stack.ready, "user").with_token(arvados_client::Token::new(token.trim()));
    assert_eq!(
        as_attempt.container(&container).await.unwrap().uuid,
        container
    );

    let id = site.job(&container);
    // As root, who is shown more than any other user.
    for (program, args) in [
        ("scontrol", &["show", "job", "--details", &id][..]),
        ("scontrol", &["write", "batch_script", &id, "-"]),
        ("squeue", &["--format=%all", "--jobs", &id]),
        ("squeue", &["--json"]),
    ] {
        let shown = site.lab.ask(program, args);
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
    // What slurmctld and slurmd keep of the job, script and environment among it.
    let lab = Path::new(site.lab.variable("SLURM_CONF")).parent().unwrap();
    let kept = files(lab);
    let holds = |path: &PathBuf, text: &str| {
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).contains(text)
    };
    assert!(
        kept.iter().any(|path| holds(path, "SITE_MARK=here")),
        "{kept:?}"
    );
    for file in &kept {
        let content = std::fs::read(file).unwrap_or_default();
        assert_eq!(found_in(&secrets, &content), None, "{}", file.display());
    }
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
        let output = site.errand(shown);
        for text in [&output.stdout, &output.stderr] {
            assert_eq!(found_in(&secrets, text), None, "{shown:?}");
        }
    }
    let log = site.stack.dispatcher.said();
    assert!(log.contains(container.as_str()));
    assert_eq!(found_in(&secrets, log.as_bytes()), None);
}
