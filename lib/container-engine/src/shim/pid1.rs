//! Pid 1 of the namespace of a container that another program creates (an OCI runtime, Apptainer).
//! It runs that program and reports to the shim how the container ended. When it dies, the kernel
//! kills everything in the namespace.

use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;

use nix::sched::{CloneFlags, unshare};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::SigSet;
use oci_spec::runtime::LinuxSeccomp;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal};
use seccompiler::{BpfProgram, apply_filter};
use serde::{Deserialize, Serialize};

use super::command_watch::CommandWatch;
use super::oci_bundle::Bundle;
use super::protocol::receive_stdio;
use crate::ExitStatus;
use crate::seccomp::compile;

/// First argument of this process.
pub const PID1_ARGUMENT: &str = "__hold-container";
const HYBRID: &str = "/sys/fs/cgroup/unified";

/// First line from the shim. The second is "start".
#[derive(Debug, Serialize, Deserialize)]
pub struct Pid1Config {
    pub method: LaunchMethod,
}

/// Launches the container.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaunchMethod {
    /// A runtime that creates the container first and starts it later.
    Oci(Bundle),
    /// A program that runs the container from beginning to end.
    Command {
        program: PathBuf,
        arguments: Vec<OsString>,
        environment: Vec<(String, String)>,
        /// Filter of the program and of all that it starts.
        seccomp: Option<LinuxSeccomp>,
        /// The program of the container's command, which is opened when the command starts.
        command_file: Option<PathBuf>,
    },
}

/// Message to the shim.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pid1Message {
    Created,
    Failed(String),
    Started,
    Ended {
        status: ExitStatus,
        /// Highest resident memory of one process, in bytes.
        largest_process: Option<u64>,
    },
}

/// Runs until the container ends.
pub fn run() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The shim blocks some signals; the container must not inherit that.
    SigSet::empty().thread_set_mask()?;
    // The socket is passed as stdin; child processes must not inherit it.
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(fs::File::open("/dev/null")?)?;
    let stdio = receive_stdio(&control)?;
    let mut shim = ShimConnection(BufReader::new(UnixStream::from(control)));
    let config: Pid1Config = match shim.read_line()? {
        Some(read_line) => serde_json::from_str(&read_line)?,
        None => return Ok(()),
    };
    let launch = prepare_mounts(&config.method).and_then(|()| prepare_launch(config.method, stdio));
    let launch = match launch {
        Ok(launch) => launch,
        Err(error) => return shim.send(&Pid1Message::Failed(error.to_string())),
    };
    shim.send(&Pid1Message::Created)?;
    if shim.read_line()?.is_none() {
        return Ok(());
    }
    let first = match launch.start() {
        Ok(first) => first,
        Err(error) => return shim.send(&Pid1Message::Failed(error.to_string())),
    };
    shim.send(&Pid1Message::Started)?;
    let status = wait(first)?;
    shim.send(&Pid1Message::Ended {
        status,
        largest_process: largest_process(),
    })
}

enum PreparedLaunch {
    Oci(Bundle, Pid),
    Command(Box<Command>, Vec<BpfProgram>, Option<CommandWatch>),
}

fn prepare_launch(
    method: LaunchMethod,
    [stdin, stdout, stderr]: [OwnedFd; 3],
) -> io::Result<PreparedLaunch> {
    match method {
        LaunchMethod::Oci(bundle) => {
            let first = bundle.create([stdin, stdout, stderr])?;
            Ok(PreparedLaunch::Oci(bundle, first))
        }
        LaunchMethod::Command {
            program,
            arguments,
            environment,
            seccomp,
            command_file,
        } => {
            let filter = seccomp.as_ref().map(compile).transpose();
            let filter = filter.map_err(io::Error::other)?.unwrap_or_default();
            let mut command = Command::new(program);
            command
                .args(arguments)
                .env_clear()
                .envs(environment)
                .stdin(stdin)
                .stdout(stdout)
                .stderr(stderr);
            let watch = command_file.and_then(|file| CommandWatch::new(&file).ok());
            Ok(PreparedLaunch::Command(Box::new(command), filter, watch))
        }
    }
}

impl PreparedLaunch {
    /// The process whose end is the container's. An error means that the command did not start.
    fn start(self) -> io::Result<Pid> {
        match self {
            Self::Oci(bundle, first) => bundle.start().map(|()| first),
            // Dropping the command closes the container's files.
            Self::Command(mut command, filter, watch) => {
                for program in &filter {
                    apply_filter(program).map_err(io::Error::other)?;
                }
                let first = Pid::from_child(&command.spawn()?);
                drop(command);
                if let Some(watch) = watch {
                    watch.confirm_start(first)?;
                }
                Ok(first)
            }
        }
    }
}

struct ShimConnection(BufReader<UnixStream>);

impl ShimConnection {
    fn read_line(&mut self) -> io::Result<Option<String>> {
        let mut read_line = String::new();
        Ok((self.0.read_line(&mut read_line)? > 0).then_some(read_line))
    }

    fn send(&mut self, message: &Pid1Message) -> io::Result<()> {
        let mut read_line = serde_json::to_vec(message)?;
        read_line.push(b'\n');
        self.0.get_mut().write_all(&read_line)
    }
}

/// Mounts /proc of this namespace, and what the launch method needs.
fn prepare_mounts(method: &LaunchMethod) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    match method {
        LaunchMethod::Oci(_) => hide_hybrid(flags),
        LaunchMethod::Command { .. } => {
            rustix::thread::set_no_new_privs(true)?;
            // The program shows this /sys to the container: that of its own network, read-only.
            // With the node's network an ordinary user gets none, and cannot write to it anyway.
            let _ = mount("sysfs", "/sys", "sysfs", flags | MountFlags::RDONLY, None);
            Ok(())
        }
    }
}

/// Hides an empty v2 hierarchy beside v1: crun 1.8 refuses to work where it finds one.
fn hide_hybrid(flags: MountFlags) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if mounts.lines().any(|l| l.split(' ').nth(1) == Some(HYBRID)) {
        mount("tmpfs", HYBRID, "tmpfs", flags, None)?;
    }
    Ok(())
}

/// Highest resident memory of a process that was waited for, directly or not. A new process
/// inherits its parent's figure, so a value not above this process's own is meaningless.
fn largest_process() -> Option<u64> {
    let max_rss = |whose| {
        let kibibytes = getrusage(whose).ok()?.max_rss();
        u64::try_from(kibibytes).ok()?.checked_mul(1 << 10)
    };
    let own = max_rss(UsageWho::RUSAGE_SELF)?;
    max_rss(UsageWho::RUSAGE_CHILDREN).filter(|bytes| *bytes > own)
}

/// Waits for the container's first process. Also reaps orphans.
fn wait(first: Pid) -> io::Result<ExitStatus> {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == first => return Ok(ExitStatus::of(status)),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
