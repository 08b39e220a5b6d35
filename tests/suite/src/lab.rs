//! A throwaway cluster of a real scheduler, started and stopped by the scripts in tests/labs: one
//! of a test's own, or that which all tests of a run share.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::program::Program;

pub struct Lab {
    scheduler: &'static str,
    /// `None` for a cluster that others share.
    dir: Option<tempfile::TempDir>,
    env: Vec<(String, String)>,
}

/// The variable with the file of a shared cluster's variables: tests/labs/with-daemons sets it.
fn shared_variable(scheduler: &str) -> String {
    format!("{}_LAB_ENV", scheduler.to_uppercase())
}

fn script(name: &str) -> PathBuf {
    crate::workspace().join("tests/labs").join(name)
}

impl Lab {
    /// Starts a lab with `NAME-up DIR ARGS`. `SLURM_LAB_RELEASE` names a Debian release whose Slurm
    /// is used; see the Makefile's `test-slurm`.
    pub fn up(scheduler: &'static str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lab_dir = dir.path().join("lab");
        let release = std::env::var("SLURM_LAB_RELEASE").ok();
        let release = release.filter(|_| scheduler == "slurm" && !args.contains(&"-R"));
        let output = Command::new("bash")
            .arg(script(&format!("{scheduler}-up")))
            .arg(&lab_dir)
            .args(args)
            .args(release.iter().flat_map(|release| ["-R", release]))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{scheduler}-up failed: {text}\n{stderr}"
        );
        Self {
            scheduler,
            dir: Some(dir),
            env: variables(&text),
        }
    }

    /// The cluster that all tests of this run share: `NAME-up DIR --shared` says what it has. A
    /// test that is run without such a cluster starts one for itself.
    ///
    /// Others' jobs run on it. So a test looks at the jobs of its own containers only, changes
    /// nothing of the cluster, and gives each of its dispatchers to [`Self::cancel_jobs_of`].
    pub fn shared(scheduler: &'static str) -> Self {
        let Some(file) = std::env::var_os(shared_variable(scheduler)) else {
            return Self::up(scheduler, &["--shared"]);
        };
        Self {
            scheduler,
            dir: None,
            env: variables(&std::fs::read_to_string(file).unwrap()),
        }
    }

    /// Cancels the jobs of this dispatcher when it is dropped: a cluster that others share goes on.
    pub fn cancel_jobs_of(&self, dispatcher: Program, state_dir: &Path) -> Program {
        if self.dir.is_some() {
            return dispatcher;
        }
        let mut command = self.command("timeout");
        command.args(["2m", "bash"]).arg(script("cancel-jobs"));
        command.arg(self.scheduler);
        let instance_id = state_dir.join("label");
        dispatcher.at_end(move || {
            // A dispatcher that never started has no jobs.
            if let Ok(instance_id) = std::fs::read_to_string(instance_id) {
                command.arg(instance_id);
                if !command.status().is_ok_and(|status| status.success()) {
                    eprintln!("jobs were left: {command:?}");
                }
            }
        })
    }

    /// A variable that its clients need.
    pub fn variable(&self, name: &str) -> &str {
        let found = self.env.iter().find(|(key, _)| key == name);
        &found
            .unwrap_or_else(|| panic!("{name} is not among {:?}", self.env))
            .1
    }

    /// The PATH for its clients.
    pub fn path(&self) -> String {
        let own = std::env::var("PATH").unwrap();
        let found = self.env.iter().find(|(key, _)| key == "PATH");
        found.map_or(own.clone(), |(_, path)| path.replace("$PATH", &own))
    }

    /// Runs one of the cluster's clients. Returns its output.
    pub fn run(&self, program: &str, args: &[&str]) -> String {
        let output = self.output(program, args);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {args:?}: {stderr}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Like [`Self::run`]; `None` if the program fails.
    pub fn try_run(&self, program: &str, args: &[&str]) -> Option<String> {
        let output = self.output(program, args);
        let text = String::from_utf8(output.stdout).unwrap();
        output.status.success().then_some(text)
    }

    fn output(&self, program: &str, args: &[&str]) -> Output {
        self.command(program).args(args).output().unwrap()
    }

    fn command(&self, program: &str) -> Command {
        let path = self.path();
        let file = std::env::split_paths(&path)
            .map(|dir| dir.join(program))
            .find(|file| file.is_file());
        let mut command = Command::new(file.unwrap_or_else(|| panic!("no {program} in {path}")));
        command
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .env("PATH", &path)
            .env("SLURM_TIME_FORMAT", "%s")
            .current_dir("/");
        command
    }
}

/// The variables of shell lines like `export A=b C=d`.
fn variables(text: &str) -> Vec<(String, String)> {
    let exports = text.lines().filter_map(|line| line.strip_prefix("export "));
    let words = exports.flat_map(|line| shlex::split(line).unwrap());
    words
        .filter_map(|word| {
            let (key, value) = word.split_once('=')?;
            Some((key.to_owned(), value.to_owned()))
        })
        .collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        let Some(dir) = &self.dir else { return };
        let down = script(&format!("{}-down", self.scheduler));
        let output = Command::new("bash")
            .arg(&down)
            .arg(dir.path().join("lab"))
            .output();
        if !output.is_ok_and(|output| output.status.success()) {
            eprintln!("{} did not end its cluster", down.display());
        }
    }
}
