//! One program of the suite as a process of its own, which can be killed and started again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Where cargo put the programs of the workspace.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    assert!(
        path.is_file(),
        "{name} is not built: run `make test`, or `cargo build --workspace --bins` before this"
    );
    path
}

/// Copies a program by another process: of a file that this one writes, what it starts at the same moment may hold a
/// descriptor, and a file that somebody writes cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").args([from, to]).status().unwrap();
    assert!(done.success(), "cp {} {}", from.display(), to.display());
}

/// A script of the test, which any user may run. It is written by another process too: see [`copy_program`].
pub fn write_script(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    std::fs::set_permissions(&draft, PermissionsExt::from_mode(0o755)).unwrap();
    copy_program(&draft, path);
}

pub struct Program {
    name: &'static str,
    args: Vec<String>,
    env: Vec<(&'static str, String)>,
    log: PathBuf,
    user: Option<(String, PathBuf)>,
    child: Option<Child>,
    /// How long its log was when it was started.
    earlier: usize,
}

impl Program {
    pub fn new(
        name: &'static str,
        log: &Path,
        args: &[&str],
        env: &[(&'static str, &str)],
    ) -> Self {
        Self {
            name,
            args: args.iter().map(|s| (*s).to_owned()).collect(),
            env: env.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
            log: log.to_owned(),
            user: None,
            child: None,
            earlier: 0,
        }
    }

    /// As another user of this machine, from a copy that this user can run.
    pub fn run_as(mut self, user: &str, program: PathBuf) -> Self {
        self.user = Some((user.to_owned(), program));
        self
    }

    /// The same program with `more` arguments, to be run beside it.
    #[allow(dead_code, reason = "not every suite asks")]
    pub fn errand(&self, more: &[&str]) -> Command {
        let mut command = self.command();
        command.args(more);
        command
    }

    fn command(&self) -> Command {
        let mut command = match &self.user {
            None => Command::new(binary(self.name)),
            Some((user, program)) => {
                let mut command = Command::new("/usr/bin/setpriv");
                let id = format!("--reuid={user}");
                command.args([&id, &format!("--regid={user}"), "--init-groups", "--"]);
                command.arg(program);
                command
            }
        };
        command
            .args(&self.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .envs(self.env.iter().map(|(k, v)| (*k, v)));
        command
    }

    fn append(&self, suffix: &str) -> File {
        let path = self.log.with_extension(suffix);
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap()
    }

    pub fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        self.earlier = self.said().len();
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(self.append("out"))
            .stderr(self.append("log"))
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// How it ended by itself, if it did; then it can be started again.
    pub fn has_ended(&mut self) -> Option<std::process::ExitStatus> {
        let status = self.child.as_mut()?.try_wait().unwrap()?;
        self.child = None;
        Some(status)
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn is_running(&self) -> bool {
        self.child.is_some()
    }

    /// TERM; how it ended.
    pub fn terminate(&mut self, patience: Duration) -> std::process::ExitStatus {
        let child = Pid::from_child(self.child.as_ref().unwrap());
        kill_process(child, Signal::TERM).unwrap();
        self.end(patience)
    }

    /// TERM where it runs, and no complaint if it does not end: a test that fails already is to say why.
    pub fn end_quietly(&mut self, patience: Duration) {
        let Some(child) = &self.child else { return };
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        let until = Instant::now() + patience;
        while self.is_running() && self.has_ended().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How it ended by itself, which it is about to do.
    pub fn end(&mut self, patience: Duration) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        let until = Instant::now() + patience;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} did not end:\n{}", self.name, self.said());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it wrote on stdout so far.
    pub fn answered(&self) -> String {
        std::fs::read_to_string(self.log.with_extension("out")).unwrap_or_default()
    }

    /// Whether it has written this on stderr since it was started.
    pub fn has_said(&self, words: &str) -> bool {
        let said = self.said();
        said.get(self.earlier..)
            .is_some_and(|said| said.contains(words))
    }

    /// What it wrote on stderr so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.log.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
