//! A Slurm cluster, and dispatch-slurm that reads all settings from its configuration file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use arvados_client::records::ContainerState;
use serde_json::{Value, json};

use crate::secrets::processes;
use suite_tests::lab::Lab;
use suite_tests::program::{Program, binary, write_script};
use suite_tests::stack::Stack;

use super::STEP_TIMEOUT;

/// A cluster, and a service that is configured only by its configuration file.
pub struct Site {
    pub stack: Stack,
    pub lab: Lab,
}

pub fn shared(dir: &Path) -> PathBuf {
    dir.join("shared")
}

/// A PATH with a squeue that appends a line per call.
pub fn counting_squeue(dir: &Path) -> String {
    let path = std::env::var("PATH").unwrap();
    let mut candidates = std::env::split_paths(&path).map(|place| place.join("squeue"));
    let real = candidates.find(|file| file.is_file()).unwrap();
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let calls = dir.join("squeue-was-asked");
    let script = format!(
        "#!/bin/sh\necho >> {}\nexec {} \"$@\"\n",
        calls.display(),
        real.display()
    );
    let wrapper = bin.join("squeue");
    write_script(&wrapper, &script);
    format!("{}:{path}", bin.display())
}

/// The site's configuration file.
pub fn configuration(ready: &Value) -> Value {
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
    /// A service on a cluster of its own.
    pub async fn up(slurm: &[&str], more: &[&str]) -> Self {
        let mut all = vec!["-n", "1", "-c", "4", "-m", "4000", "-F", "small,fast", "-N"];
        all.extend(slurm);
        Self::on(Lab::up("slurm", &all), more).await
    }

    /// A service on the cluster that others use, too: see [`Lab::shared`].
    pub async fn shared(more: &[&str]) -> Self {
        Self::on(Lab::shared("slurm"), more).await
    }

    async fn on(lab: Lab, more: &[&str]) -> Self {
        let stack = Stack::with(|servers, dir| {
            let (path, own) = (dir.join("config.yml"), dir.join("tmp"));
            std::fs::create_dir(&own).unwrap();
            let text = configuration(&servers.ready).to_string();
            std::fs::write(&path, text).unwrap();
            // The mode of docs/slurm.md, because the file contains a token.
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
            let (path, shared) = (path.to_str().unwrap(), shared(dir));
            let mut args = vec!["--config", path, "--state-dir", shared.to_str().unwrap()];
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
            let log = dir.join("dispatcher");
            let dispatcher = Program::new("dispatch-slurm", &log, &args, &env);
            lab.cancel_jobs_of(dispatcher, &shared)
        })
        .await;
        Self { stack, lab }
    }

    /// Runs dispatch-slurm with the service's flags and `more`. Returns its output.
    pub fn subcommand(&self, more: &[&str]) -> Output {
        let dir = self.stack.dir.path();
        Command::new(binary("dispatch-slurm"))
            .args(["--config", dir.join("config.yml").to_str().unwrap()])
            .args(["--state-dir", shared(dir).to_str().unwrap()])
            .arg("--json")
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

    pub fn answer(&self, more: &[&str]) -> Value {
        let output = self.subcommand(more);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{more:?}: {stderr}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn why(&self, container: &ContainerUuid) -> String {
        let answer = self.answer(&["explain", container.as_str()]);
        answer["why"].as_str().unwrap().to_owned()
    }

    pub async fn wait_for_why(&self, container: &ContainerUuid, words: &str) {
        let until = Instant::now() + STEP_TIMEOUT;
        loop {
            let why = self.why(container);
            if why.contains(words) {
                return;
            }
            assert!(Instant::now() < until, "{container}: {why}, not {words}");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    pub async fn running(&self, name: &str, more: Value) -> ContainerUuid {
        let script = "while ! [ -e /out/stop ]; do sleep 0.1; done";
        let (_, container) = self.stack.submit(name, script, more).await;
        let runs = |c: &arvados_client::records::Container| c.state == ContainerState::Running;
        self.stack.wait_until(&container, STEP_TIMEOUT, runs).await;
        container
    }

    /// Waits until the service has not called squeue for longer than its longest wait for an
    /// expected change.
    pub async fn silence(&self) {
        let calls = self.stack.dir.path().join("squeue-was-asked");
        let count = || std::fs::metadata(&calls).unwrap().len();
        let until = Instant::now() + STEP_TIMEOUT;
        let (mut last, mut since) = (count(), Instant::now());
        while since.elapsed() < Duration::from_secs(5) {
            assert!(Instant::now() < until, "squeue is asked all the time");
            tokio::time::sleep(Duration::from_millis(100)).await;
            if count() != last {
                (last, since) = (count(), Instant::now());
            }
        }
    }

    pub fn job(&self, container: &ContainerUuid) -> String {
        let name = format!("--name={container}");
        let listed = self
            .lab
            .run("squeue", &["--noheader", "--format=%i", &name]);
        listed.trim().to_owned()
    }
}

/// The crunch-run of this container: process number and environment.
pub fn executor(container: &ContainerUuid) -> (String, Vec<u8>) {
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
