//! A throwaway cluster of a real scheduler, started and stopped by the scripts in tests/labs.

use std::path::PathBuf;
use std::process::{Command, Output};

pub struct Lab {
    down: PathBuf,
    dir: tempfile::TempDir,
    env: Vec<(String, String)>,
}

fn script(name: &str) -> PathBuf {
    crate::workspace().join("tests/labs").join(name)
}

impl Lab {
    /// Starts a lab with `NAME-up DIR ARGS`. `SLURM_LAB_RELEASE` names a Debian release whose Slurm
    /// is used; see the Makefile's `test-slurm`.
    pub fn up(name: &str, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lab_dir = dir.path().join("lab");
        let release = std::env::var("SLURM_LAB_RELEASE").ok();
        let release = release.filter(|_| name == "slurm" && !args.contains(&"-R"));
        let output = Command::new("bash")
            .arg(script(&format!("{name}-up")))
            .arg(&lab_dir)
            .args(args)
            .args(release.iter().flat_map(|release| ["-R", release]))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{name}-up failed: {text}\n{stderr}"
        );
        let exports = text.lines().filter_map(|line| line.strip_prefix("export "));
        let env = exports
            .flat_map(|line| shlex::split(line).unwrap())
            .filter_map(|word| {
                let (key, value) = word.split_once('=')?;
                Some((key.to_owned(), value.to_owned()))
            })
            .collect();
        Self {
            down: script(&format!("{name}-down")),
            dir,
            env,
        }
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
        let path = self.path();
        let file = std::env::split_paths(&path)
            .map(|dir| dir.join(program))
            .find(|file| file.is_file());
        Command::new(file.unwrap_or_else(|| panic!("no {program} in {path}")))
            .args(args)
            .envs(self.env.iter().map(|(k, v)| (k, v)))
            .env("PATH", &path)
            .env("SLURM_TIME_FORMAT", "%s")
            .current_dir("/")
            .output()
            .unwrap()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let output = Command::new("bash")
            .arg(&self.down)
            .arg(self.dir.path().join("lab"))
            .output();
        if !output.is_ok_and(|output| output.status.success()) {
            eprintln!("{} did not end its cluster", self.down.display());
        }
    }
}
