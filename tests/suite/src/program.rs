//! A program of the suite as a process that can be killed and started again.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Path of a program that cargo built.
pub fn binary(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.ancestors().nth(2).unwrap().join(name);
    assert!(
        path.is_file(),
        "{name} is not built: run `make test`, or `cargo build --workspace --bins` before this"
    );
    path
}

/// Copies a program in another process. A file that this process writes could be inherited by a
/// child that is started at the same moment, and then cannot be executed ("text file busy").
pub fn copy_program(from: &Path, to: &Path) {
    let done = Command::new("cp").args([from, to]).status().unwrap();
    assert!(done.success(), "cp {} {}", from.display(), to.display());
}

/// Writes a script that any user may run, in another process: see [`copy_program`].
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
    /// Length of the log at the last start.
    earlier: usize,
    /// Runs when this is dropped, after the process has ended.
    at_end: Option<Box<dyn FnOnce() + Send + Sync>>,
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
            at_end: None,
        }
    }

    /// Has this run when the program is dropped, after its process has ended.
    pub fn at_end(mut self, what: impl FnOnce() + Send + Sync + 'static) -> Self {
        self.at_end = Some(Box::new(what));
        self
    }

    /// Runs the program as another user, from a copy that this user can execute.
    pub fn run_as(mut self, user: &str, program: PathBuf) -> Self {
        self.user = Some((user.to_owned(), program));
        self
    }

    /// The same program with `more` arguments.
    #[allow(dead_code, reason = "not every suite asks")]
    pub fn subcommand(&self, more: &[&str]) -> Command {
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
        self.earlier = self.log_text().len();
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

    /// The exit status if it has ended; then it can be started again.
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

    /// Sends TERM and waits for the end. Returns the exit status.
    pub fn terminate(&mut self, timeout: Duration) -> std::process::ExitStatus {
        let child = Pid::from_child(self.child.as_ref().unwrap());
        kill_process(child, Signal::TERM).unwrap();
        self.end(timeout)
    }

    /// Sends TERM and waits. A program that does not end is no failure here.
    pub fn try_terminate(&mut self, timeout: Duration) {
        let Some(child) = &self.child else { return };
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
        let until = Instant::now() + timeout;
        while self.is_running() && self.has_ended().is_none() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the end without a signal. Returns the exit status.
    pub fn end(&mut self, timeout: Duration) -> std::process::ExitStatus {
        let mut child = self.child.take().unwrap();
        let until = Instant::now() + timeout;
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            if Instant::now() > until {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} did not end:\n{}", self.name, self.log_text());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The program's stdout so far.
    pub fn stdout_text(&self) -> String {
        std::fs::read_to_string(self.log.with_extension("out")).unwrap_or_default()
    }

    /// Whether its stderr since the last start contains `words`.
    pub fn log_contains(&self, words: &str) -> bool {
        let log = self.log_text();
        log.get(self.earlier..)
            .is_some_and(|log| log.contains(words))
    }

    /// Its stderr since the last start.
    pub fn log_text(&self) -> String {
        std::fs::read_to_string(self.log.with_extension("log")).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if let Some(what) = self.at_end.take() {
            what();
        }
    }
}
