//! A pool whose nodes share no files with the submit machine, and dispatch-condor that reads all
//! settings from its configuration file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use serde_json::{Value, json};

use suite_tests::lab::Lab;
use suite_tests::program::{Program, binary};
use suite_tests::stack::{Stack, wait_for};

use super::STEP_TIMEOUT;

/// Runs in place of crunch-run, which can run no container as an ordinary user here: records its
/// arguments and waits for TERM.
const EXECUTOR: &str = r#"#!/bin/sh
[ "$1" = --version ] && { echo "crunch-run that stands in"; exit 0; }
for last; do :; done
{ echo "user $(id -un)"; echo "argument $*"; stat -c 'file %a %n' token-* *.pem; env; } > "$SITE_NOTES/$last.new" 2>&1
cat token-* >> "$SITE_NOTES/$last.new"
mv "$SITE_NOTES/$last.new" "$SITE_NOTES/$last"
trap 'exit 75' TERM
while :; do sleep 0.2; done
"#;

/// A pool, and a service that is configured only by its configuration file.
pub struct Site {
    pub stack: Stack,
    pub lab: Lab,
    /// Environment variables besides the service's own.
    env: Vec<(&'static str, String)>,
}

pub fn jobs(dir: &Path) -> PathBuf {
    dir.join("jobs")
}

/// Directory where jobs record their environment.
pub fn notes(dir: &Path) -> PathBuf {
    dir.join("notes")
}

fn command(program: &str, args: &[&str]) {
    let done = Command::new(program).args(args).status().unwrap();
    assert!(done.success(), "{program} {args:?}");
}

/// Copies a file for the pool's user alone.
fn give(user: &str, mode: &str, from: &Path, to: &Path) {
    let owner = [&format!("--owner={user}"), &format!("--group={user}")];
    let args = [owner[0], owner[1], &format!("--mode={mode}")];
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    command("install", &[args[0], args[1], args[2], from, to]);
}

/// The site's configuration file.
fn configuration(ready: &Value, dir: &Path, executor: &Path, owners: &Path) -> Value {
    let token = std::fs::read_to_string(ready["tokens"]["dispatch"].as_str().unwrap()).unwrap();
    let host = ready["host"].as_str().unwrap();
    json!({"Clusters": {"zzzzz": {
        "SystemRootToken": token.trim(),
        "Services": {"Controller": {"ExternalURL": format!("https://{host}/")}},
        "Containers": {
            "CrunchRunCommand": executor,
            "CrunchRunArgumentsList": ["--mark=it's \"one\" $(HOME) word"],
            "ReserveExtraRAM": "550MiB",
            "MinRetryPeriod": "1s",
            "Condor": {
                "SubmitLines": ["+SiteSize = \"%C/%M/%G/%I\"", "+SiteQueue = \"%P\"", "+SiteMinutes = %W", "+SiteUser = \"%u\""],
                "AccountingGroup": "lab",
                "OwnerMap": owners,
                "ConcurrencyLimits": "licence:2",
                "Requirements": "TARGET.HasFileTransfer",
                "Rank": "Memory",
                "EnvironmentVariables": {"SITE_NOTES": notes(dir), "SITE_MARK": "here it's \"quoted\" $(HOME)"},
                "TransferCrunchRun": true,
            },
        },
        "InstanceTypes": {
            "small": {"VCPUs": 4, "RAM": "4GB", "IncludedScratch": "50GB", "Price": 0.1},
        },
    }}})
}

impl Site {
    /// A service on a pool of its own.
    pub async fn up() -> Self {
        Self::on(Lab::up("condor", &["--shared", "--slots", "4"]), &[]).await
    }

    /// A service on a pool of its own with two simulated GPUs.
    pub async fn with_gpus() -> Self {
        let args = ["--shared", "--slots", "4", "--gpus", "2"];
        Self::on(Lab::up("condor", &args), &[]).await
    }

    /// A service with `more` flags on the pool that others use, too: see [`Lab::shared`]. `DIR` in
    /// the flags is replaced by its directory.
    pub async fn shared(more: &[&str]) -> Self {
        Self::on(Lab::shared("condor"), more).await
    }

    /// The pool runs this service's jobs as nobody, who cannot read the submitting user's files.
    async fn on(lab: Lab, more: &[&str]) -> Self {
        let user = lab.variable("CONDOR_LAB_USER").to_owned();
        let mut env = Vec::new();
        let stack = Stack::with(|servers, dir| {
            std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
            let owner = format!("--owner={user}");
            command(
                "install",
                &["-d", "--mode=700", &owner, jobs(dir).to_str().unwrap()],
            );
            command(
                "install",
                &[
                    "-d",
                    "--mode=700",
                    &owner,
                    dir.join("own").to_str().unwrap(),
                ],
            );
            command(
                "install",
                &["-d", "--mode=777", notes(dir).to_str().unwrap()],
            );
            let own = |name: &str| dir.join("own").join(name);
            let draft = dir.join("draft");
            std::fs::write(&draft, EXECUTOR).unwrap();
            give(&user, "755", &draft, &own("executor"));
            let text = configuration(&servers.ready, dir, &own("executor"), &own("owners"));
            let text = text.to_string();
            std::fs::write(
                &draft,
                "user accounting_group=lab.%u '+SiteGroup=\"mapped\"'\n",
            )
            .unwrap();
            give(&user, "644", &draft, &own("owners"));
            std::fs::write(&draft, text).unwrap();
            give(&user, "600", &draft, &own("config.yml"));
            std::fs::remove_file(&draft).unwrap();
            let certificate = Path::new(servers.ready["certificate"].as_str().unwrap());
            give(&user, "600", certificate, &own("certificate.pem"));
            for name in ["crunch-run", "dispatch-condor"] {
                give(&user, "755", &binary(name), &own(name));
            }
            env = vec![
                ("CONDOR_CONFIG", lab.variable("CONDOR_CONFIG").to_owned()),
                // The programs themselves: the first directory of PATH holds wrappers for root.
                ("PATH", lab.path().split_once(':').unwrap().1.to_owned()),
                (
                    "SSL_CERT_FILE",
                    own("certificate.pem").display().to_string(),
                ),
            ];
            let path = own("config.yml");
            let (path, jobs) = (path.to_str().unwrap(), jobs(dir));
            let mut args = vec!["--config", path, "--state-dir", jobs.to_str().unwrap()];
            args.extend(["--poll-interval", "1s"]);
            args.extend(["--log-level", "debug,hyper_util=info,reqwest=info"]);
            let more = more
                .iter()
                .map(|word| word.replace("DIR", dir.to_str().unwrap()));
            let more: Vec<String> = more.collect();
            args.extend(more.iter().map(String::as_str));
            let env: Vec<_> = env.iter().map(|(k, v)| (*k, v.as_str())).collect();
            let log = dir.join("dispatcher");
            let dispatcher = Program::new("dispatch-condor", &log, &args, &env)
                .run_as(&user, own("dispatch-condor"));
            lab.cancel_jobs_of(dispatcher, &jobs)
        })
        .await;
        Self { stack, lab, env }
    }

    /// A file of the service's user.
    pub fn own(&self, name: &str) -> PathBuf {
        self.stack.dir.path().join("own").join(name)
    }

    /// A program as another user of this machine.
    pub fn run_as(&self, user: &str, program: &str, args: &[&str], input: &str) -> Output {
        use std::io::Write;
        let id = [format!("--reuid={user}"), "--clear-groups".to_owned()];
        let mut child = Command::new("setpriv")
            .args(id)
            .arg(program)
            .args(args)
            .env_clear()
            .envs(self.env.iter().map(|(k, v)| (*k, v)))
            .current_dir("/")
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input.as_bytes()).unwrap();
        drop(stdin);
        child.wait_with_output().unwrap()
    }

    /// Runs dispatch-condor with the service's settings and these arguments.
    pub fn subcommand(&self, more: &[&str]) -> Output {
        let dir = self.stack.dir.path();
        let (config, jobs) = (self.own("config.yml"), jobs(dir));
        let mut args = vec!["--config", config.to_str().unwrap()];
        args.extend(["--state-dir", jobs.to_str().unwrap()]);
        args.extend(more);
        let program = self.own("dispatch-condor");
        let user = self.lab.variable("CONDOR_LAB_USER");
        self.run_as(user, program.to_str().unwrap(), &args, "")
    }

    pub fn answer(&self, more: &[&str]) -> Value {
        let more: Vec<&str> = ["--json"].iter().chain(more).copied().collect();
        let output = self.subcommand(&more);
        let output_text =
            [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
        assert!(output.status.success(), "{more:?}: {output_text:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// A container whose job has started, and the environment that the job recorded.
    pub async fn started(&self, name: &str, more: Value) -> (ContainerUuid, String) {
        let (_, container) = self.stack.submit(name, "true", more).await;
        let notes = self.notes(&container).await;
        (container, notes)
    }

    /// The environment that this container's job recorded, once it has started.
    pub async fn notes(&self, container: &ContainerUuid) -> String {
        let file = notes(self.stack.dir.path()).join(container.as_str());
        let until = Instant::now() + STEP_TIMEOUT;
        while !file.exists() {
            assert!(
                Instant::now() < until,
                "{container} does not start: {}",
                self.stack.dispatcher.log_text()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        std::fs::read_to_string(file).unwrap()
    }

    /// The only job of this container in the queue: its number and its ad as text.
    pub fn job(&self, container: &ContainerUuid) -> (String, String) {
        let constraint = format!("ContainerUUID == \"{container}\"");
        let found = || {
            let args = ["-all", "-long", "-constraint", &constraint];
            let ad = self.lab.run("condor_q", &args).trim().to_owned();
            (!ad.is_empty()).then_some(ad)
        };
        let ad = wait_for("the container's job", STEP_TIMEOUT, found);
        assert!(!ad.contains("\n\n"), "more than one job: {ad}");
        let number = |name: &str| value(&ad, name).unwrap();
        let id = format!("{}.{}", number("ClusterId"), number("ProcId"));
        (id, ad)
    }
}

/// The value of an attribute in `condor_q -long`.
pub fn value<'a>(ad: &'a str, name: &str) -> Option<&'a str> {
    let attributes = ad.lines().filter_map(|line| line.split_once(" = "));
    attributes
        .filter(|(known, _)| known.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
        .next()
}
