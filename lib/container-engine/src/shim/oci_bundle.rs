//! The bundle of one container for an external OCI runtime, and the runtime's command line.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::Pid;
use serde::{Deserialize, Serialize};

use super::runtime::{Dialect, OciProgram};

#[derive(Debug, Serialize, Deserialize)]
pub struct Bundle {
    pub program: OciProgram,
    /// A tmpfs of this container alone.
    pub dir: PathBuf,
    pub name: String,
    pub privileged: bool,
}

impl Bundle {
    /// Runs `create` with the container's stdin, stdout and stderr.
    pub fn create(&self, stdio: [OwnedFd; 3]) -> io::Result<Pid> {
        let pid_file = self.dir.join("pid");
        let [stdin, stdout, stderr] = stdio;
        let mut command = self.command();
        command
            .args(["create", "--bundle"])
            .arg(&self.dir)
            .arg("--pid-file")
            .arg(&pid_file)
            .arg(&self.name)
            .stdin(stdin)
            .stdout(stdout)
            .stderr(stderr);
        self.run(command)?;
        let pid = fs::read_to_string(&pid_file)?;
        pid.trim()
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other(format!("the runtime says its process is \"{pid}\"")))
    }

    pub fn start(&self) -> io::Result<()> {
        let mut command = self.command();
        command.args(["start", &self.name]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.run(command)
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program.path);
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .arg("--root")
            .arg(self.dir.join("state"))
            .arg("--log")
            .arg(self.log())
            .args(["--log-format", "json"]);
        command.args(match (self.program.dialect, self.privileged) {
            (Dialect::Crun, true) => Some("--cgroup-manager=cgroupfs"),
            (Dialect::Crun, false) => Some("--cgroup-manager=disabled"),
            (Dialect::Runc, false) => Some("--rootless=true"),
            (Dialect::Runc, true) | (Dialect::Other, _) => None,
        });
        command
    }

    fn log(&self) -> PathBuf {
        self.dir.join("log")
    }

    fn run(&self, mut command: Command) -> io::Result<()> {
        let program = self.program.path.display();
        let status = command.status().map_err(|error| {
            io::Error::new(error.kind(), format!("{program} cannot be run: {error}"))
        })?;
        if status.success() {
            return Ok(());
        }
        let reason = last_message(&fs::read_to_string(self.log()).unwrap_or_default())
            .unwrap_or_else(|| status.to_string());
        Err(io::Error::other(format!("{program}: {reason}")))
    }
}

/// Last message of the runtime's log, which has one JSON value a line.
fn last_message(log: &str) -> Option<String> {
    let line = log.lines().rfind(|line| !line.trim().is_empty())?;
    let message = serde_json::from_str::<serde_json::Value>(line)
        .ok()
        .and_then(|entry| Some(entry.get("msg")?.as_str()?.to_owned()));
    Some(message.unwrap_or_else(|| line.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_s_last_message_is_the_reason() {
        for (log, expected) in [
            ("", None),
            ("plain words\n\n", Some("plain words")),
            (
                "{\"level\":\"warning\",\"msg\":\"a\"}\n{\"level\":\"error\",\"msg\":\"no \\\"x\\\"\"}\n",
                Some("no \"x\""),
            ),
        ] {
            assert_eq!(last_message(log).as_deref(), expected, "{log}");
        }
    }
}
