//! A throwaway Slurm whose daemons can be killed and started again, and dispatch-slurm on it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use arvados_client::ContainerUuid;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::STEP_TIMEOUT;
use crate::fail_point_dir::FailPointDir;
use crate::lab::Lab;
use crate::processes::is_gone;
use crate::program::{Program, binary, copy_program};
use crate::stack::{Servers, Stack, points_in, wait_for};

/// A crunch-run with a grace period so long that Slurm kills both first, however slow it is.
pub fn patient_crunch_run() -> String {
    format!("{} --stop-grace=60s", binary("crunch-run").display())
}

fn give(path: &Path, user: &str) {
    let done = Command::new("chown")
        .args([user, path.to_str().unwrap()])
        .status();
    assert!(done.unwrap().success());
}

pub struct Cluster {
    pub lab: Lab,
}

impl Cluster {
    /// The cluster that others use, too: see [`Lab::shared`]. It has two nodes of six CPUs.
    pub fn shared() -> Self {
        Self {
            lab: Lab::shared("slurm"),
        }
    }

    pub fn up(args: &[&str]) -> Self {
        let mut all = vec!["-N"];
        all.extend(args);
        Self {
            lab: Lab::up("slurm", &all),
        }
    }

    /// The Slurm of the next Debian release.
    pub fn newer(args: &[&str]) -> Self {
        Self::up(&[args, &["-R", "trixie"]].concat())
    }

    /// A cluster with accounting. `None` where slurmdbd and MariaDB are not installed; with `CI`
    /// they must be.
    pub fn with_accounts(args: &[&str]) -> Option<Self> {
        let programs = ["/usr/sbin/slurmdbd", "/usr/sbin/mariadbd"];
        if let Some(absent) = programs.iter().find(|file| !Path::new(file).is_file()) {
            crate::skip(format_args!(
                "this test needs {absent} (contrib/install-deps labs)"
            ));
            return None;
        }
        let mut all = vec!["-d"];
        all.extend(args);
        Some(Self::up(&all))
    }

    fn dir(&self) -> PathBuf {
        let conf = Path::new(self.lab.variable("SLURM_CONF"));
        conf.parent().unwrap().to_owned()
    }

    /// The process of a daemon that the lab started, or this did after it: `slurmctld`,
    /// `slurmd.n1`.
    fn process(&self, daemon: &str) -> Pid {
        let pids = fs::read_to_string(self.dir().join("pids")).unwrap();
        let line = pids
            .lines()
            .rfind(|line| line.ends_with(&format!(" {daemon}")));
        let pid = line.unwrap().split(' ').next().unwrap().parse().unwrap();
        Pid::from_raw(pid).unwrap()
    }

    /// Stops a daemon and waits until it is gone.
    pub fn end(&self, daemon: &str, signal: Signal) {
        let process = self.process(daemon);
        kill_process(process, signal).unwrap();
        wait_for("a daemon to be gone", STEP_TIMEOUT, || {
            is_gone(process).then_some(())
        });
    }

    /// Starts the controller again. The lab stops it with the other daemons.
    pub fn start_controller(&self) {
        let dir = self.dir();
        // Starts slurmctld as the lab does: detached, so that no process must wait for it.
        let script = "setsid \"$0\" -D >/dev/null 2>&1 </dev/null & echo $!";
        let output = Command::new("bash")
            .args(["-c", script])
            .arg(dir.join("bin/slurmctld"))
            .env("SLURM_CONF", self.lab.variable("SLURM_CONF"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let pid = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let started = stat.split(' ').nth(21).unwrap();
        let mut pids = fs::read_to_string(dir.join("pids")).unwrap();
        pids.push_str(&format!("{pid} {started} slurmctld\n"));
        fs::write(dir.join("pids"), pids).unwrap();
    }

    /// The cluster's name in Slurm's accounting.
    pub fn name(&self) -> String {
        let config = self.lab.run("scontrol", &["show", "config"]);
        let line = config.lines().find(|line| line.starts_with("ClusterName"));
        line.unwrap().split('=').nth(1).unwrap().trim().to_owned()
    }

    /// Jobs of a container that are not over.
    pub fn jobs(&self, container: &ContainerUuid) -> Vec<String> {
        let name = container.as_str();
        let query = ["--noheader", "--array", "--format=%i", "--name", name];
        let answer = self.lab.run("squeue", &query);
        answer.lines().map(|line| line.trim().to_owned()).collect()
    }

    /// Number of jobs that have not ended.
    pub fn all_jobs(&self) -> usize {
        let answer = self.lab.run("squeue", &["--noheader", "--format=%i"]);
        answer.lines().count()
    }

    /// The one job of a container, as soon as there is one.
    pub fn job(&self, container: &ContainerUuid) -> String {
        wait_for("the container's job", STEP_TIMEOUT, || {
            self.jobs(container).pop()
        })
    }

    /// A job's field, as squeue prints it with `format`.
    pub fn job_field(&self, job: &str, format: &str) -> String {
        let format = format!("--format={format}");
        let query = ["--noheader", "--states=all", "--jobs", job, &format];
        self.lab.run("squeue", &query).trim().to_owned()
    }

    /// Whether `scontrol` refuses to do this.
    pub fn is_refused(&self, words: &[&str]) -> bool {
        let status = Command::new("scontrol")
            .args(words)
            .env("PATH", self.lab.path())
            .env("SLURM_CONF", self.lab.variable("SLURM_CONF"))
            .status();
        !status.unwrap().success()
    }

    /// Runs `scontrol` with these arguments.
    pub fn control(&self, words: &[&str]) {
        self.lab.run("scontrol", words);
    }

    /// The servers and dispatch-slurm with `more` arguments.
    pub async fn stack(&self, more: &[&str]) -> Stack {
        Stack::with(|servers, dir| self.dispatcher(servers, &dir.join("shared"), more)).await
    }

    /// A dispatch-slurm on this cluster.
    pub fn dispatcher(&self, servers: &Servers, shared: &Path, more: &[&str]) -> Program {
        self.dispatcher_with(servers, shared, more, &[])
    }

    /// The servers and a dispatch-slurm of an ordinary user, whose crunch-run has these flags too.
    pub async fn stack_of_user(&self, user: &str, flags: &[&str], more: &[&str]) -> Stack {
        Stack::with(|servers, dir| self.dispatcher_of(user, servers, dir, flags, more)).await
    }

    fn dispatcher_of(
        &self,
        user: &str,
        servers: &Servers,
        dir: &Path,
        flags: &[&str],
        more: &[&str],
    ) -> Program {
        let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        mode(dir, 0o755).unwrap();
        FailPointDir::open_to_all(&points_in(dir));
        let [shared, cache, temporary] = ["shared", "cache", "tmp"].map(|name| {
            let path = dir.join(name);
            fs::create_dir(&path).unwrap();
            give(&path, user);
            path.to_str().unwrap().to_owned()
        });
        let copy = |from: &Path, name: &str, access| {
            let to = dir.join(name);
            copy_program(from, &to);
            mode(&to, access).unwrap();
            give(&to, user);
            to.to_str().unwrap().to_owned()
        };
        let of = |value: &Value| PathBuf::from(value.as_str().unwrap());
        let token = copy(
            &of(&servers.ready["tokens"]["dispatch"]),
            "dispatch-token",
            0o600,
        );
        let certificate = copy(&of(&servers.ready["certificate"]), "certificate.pem", 0o644);
        let program = copy(&binary("dispatch-slurm"), "dispatch-slurm", 0o755);
        let crunch_run = copy(&binary("crunch-run"), "crunch-run", 0o755);
        let temporary = format!("TMPDIR={temporary}");
        let words = [
            "/usr/bin/env",
            &temporary,
            &crunch_run,
            "--cache-dir",
            &cache,
        ];
        let crunch_run = shlex::try_join(words.iter().chain(flags).copied()).unwrap();
        let mut args = vec!["--state-dir", &shared, "--token-file", &token];
        args.extend(["--crunch-run", &crunch_run]);
        args.extend(more);
        let path = self.lab.path();
        let env = [
            ("SLURM_CONF", self.lab.variable("SLURM_CONF")),
            ("PATH", path.as_str()),
            ("SSL_CERT_FILE", &certificate),
        ];
        let dispatcher = servers
            .dispatcher("dispatch-slurm", &args, &env)
            .run_as(user, program.into());
        self.lab.cancel_jobs_of(dispatcher, Path::new(&shared))
    }

    /// The same with additional environment variables.
    pub fn dispatcher_with(
        &self,
        servers: &Servers,
        shared: &Path,
        more: &[&str],
        variables: &[(&'static str, &str)],
    ) -> Program {
        let crunch_run = binary("crunch-run");
        let mut args = vec!["--state-dir", shared.to_str().unwrap()];
        args.extend(["--crunch-run", crunch_run.to_str().unwrap()]);
        args.extend(more);
        let path = self.lab.path();
        let conf = self.lab.variable("SLURM_CONF");
        let mut env = vec![("SLURM_CONF", conf), ("PATH", path.as_str())];
        env.extend(variables);
        let dispatcher = servers.dispatcher("dispatch-slurm", &args, &env);
        self.lab.cancel_jobs_of(dispatcher, shared)
    }
}
