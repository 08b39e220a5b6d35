//! The holder: the first process of the pid namespace that a container of an external runtime lives in. It runs
//! the runtime, tells the keeper how the container ended, and takes everything with it when it dies.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigSet;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::{Dialect, Program};
use crate::engine::ExitStatus;
use crate::engine::kept::protocol::receive_stdio;

/// The holder's first argument.
pub const HOLDER_ARGUMENT: &str = "__hold-container";
const HYBRID: &str = "/sys/fs/cgroup/unified";

/// What the keeper says first. Then it says "start".
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    pub program: Program,
    /// In memory, and of this container alone.
    pub bundle: PathBuf,
    pub name: String,
    pub privileged: bool,
}

/// What the holder says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    Created,
    Failed(String),
    Started,
    Ended(ExitStatus),
}

/// Runs until the container ends.
pub fn hold() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The keeper holds some signals back; the container must not.
    SigSet::empty().thread_set_mask()?;
    // The socket came as stdin; what runs below must not inherit it.
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(fs::File::open("/dev/null")?)?;
    let stdio = receive_stdio(&control)?;
    let mut keeper = Keeper(BufReader::new(UnixStream::from(control)));
    let setup: Setup = match keeper.line()? {
        Some(line) => serde_json::from_str(&line)?,
        None => return Ok(()),
    };
    let first = match prepare().and_then(|()| create(&setup, stdio)) {
        Ok(first) => first,
        Err(error) => return keeper.say(&Word::Failed(error.to_string())),
    };
    keeper.say(&Word::Created)?;
    if keeper.line()?.is_none() {
        return Ok(());
    }
    match start(&setup) {
        Ok(()) => keeper.say(&Word::Started)?,
        Err(error) => return keeper.say(&Word::Failed(error.to_string())),
    }
    let status = wait(first)?;
    keeper.say(&Word::Ended(status))
}

struct Keeper(BufReader<UnixStream>);

impl Keeper {
    fn line(&mut self) -> io::Result<Option<String>> {
        let mut line = String::new();
        Ok((self.0.read_line(&mut line)? > 0).then_some(line))
    }

    fn say(&mut self, word: &Word) -> io::Result<()> {
        let mut line = serde_json::to_vec(word)?;
        line.push(b'\n');
        self.0.get_mut().write_all(&line)
    }
}

/// A view of processes that fits this namespace, and control groups as runtimes understand them.
fn prepare() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    // Beside v1 an empty v2 hierarchy is of no use, and crun 1.8 refuses to work where it sees one.
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let is_mounted = |dir: &str| mounts.lines().any(|l| l.split(' ').nth(1) == Some(dir));
    if is_mounted(HYBRID) {
        mount("tmpfs", HYBRID, "tmpfs", flags, None)?;
    }
    Ok(())
}

/// Has the runtime make the container, with these three files.
fn create(setup: &Setup, stdio: [OwnedFd; 3]) -> io::Result<Pid> {
    let pid_file = setup.bundle.join("pid");
    let [stdin, stdout, stderr] = stdio;
    let mut command = command(setup);
    command
        .args(["create", "--bundle"])
        .arg(&setup.bundle)
        .arg("--pid-file")
        .arg(&pid_file)
        .arg(&setup.name)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(stderr);
    run(command, setup)?;
    let pid = fs::read_to_string(&pid_file)?;
    pid.trim()
        .parse()
        .ok()
        .and_then(Pid::from_raw)
        .ok_or_else(|| io::Error::other(format!("the runtime says its process is \"{pid}\"")))
}

fn start(setup: &Setup) -> io::Result<()> {
    let mut command = command(setup);
    command.args(["start", &setup.name]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    run(command, setup)
}

fn command(setup: &Setup) -> Command {
    let mut command = Command::new(&setup.program.path);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .arg("--root")
        .arg(setup.bundle.join("state"))
        .arg("--log")
        .arg(log(setup))
        .args(["--log-format", "json"]);
    command.args(match (setup.program.dialect, setup.privileged) {
        (Dialect::Crun, true) => Some("--cgroup-manager=cgroupfs"),
        (Dialect::Crun, false) => Some("--cgroup-manager=disabled"),
        (Dialect::Runc, false) => Some("--rootless=true"),
        (Dialect::Runc, true) | (Dialect::Other, _) => None,
    });
    command
}

fn log(setup: &Setup) -> PathBuf {
    setup.bundle.join("log")
}

fn run(mut command: Command, setup: &Setup) -> io::Result<()> {
    let program = setup.program.path.display();
    let status = command.status().map_err(|error| {
        io::Error::new(error.kind(), format!("{program} cannot be run: {error}"))
    })?;
    if status.success() {
        return Ok(());
    }
    let reason = last_message(&fs::read_to_string(log(setup)).unwrap_or_default())
        .unwrap_or_else(|| status.to_string());
    Err(io::Error::other(format!("{program}: {reason}")))
}

/// What the runtime wrote last, one JSON value a line.
fn last_message(log: &str) -> Option<String> {
    let line = log.lines().rfind(|line| !line.trim().is_empty())?;
    let message = serde_json::from_str::<serde_json::Value>(line)
        .ok()
        .and_then(|entry| Some(entry.get("msg")?.as_str()?.to_owned()));
    Some(message.unwrap_or_else(|| line.to_owned()))
}

/// Waits for the container's first process. Orphans come here too.
fn wait(first: Pid) -> io::Result<ExitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == first => return Ok(ExitStatus::of(status)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
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
