//! The holder: the first process of the pid namespace that a container lives in which some other program makes.
//! It runs that program, tells the keeper how the container ended, and takes everything with it when it dies.

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
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal};
use serde::{Deserialize, Serialize};

use super::protocol::receive_stdio;
use crate::engine::ExitStatus;
use crate::engine::oci::Bundle;

/// The holder's first argument.
pub const HOLDER_ARGUMENT: &str = "__hold-container";
const HYBRID: &str = "/sys/fs/cgroup/unified";

/// What the keeper says first. Then it says "start".
#[derive(Debug, Serialize, Deserialize)]
pub struct Setup {
    pub way: Way,
}

/// How the container is made.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// By a runtime that makes it first and starts it later.
    Oci(Bundle),
    /// By a program that runs it from beginning to end.
    Command {
        program: PathBuf,
        arguments: Vec<OsString>,
        environment: Vec<(String, String)>,
    },
}

/// What the holder says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
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
    let made = prepare(&setup.way).and_then(|()| make(setup.way, stdio));
    let made = match made {
        Ok(made) => made,
        Err(error) => return keeper.say(&Word::Failed(error.to_string())),
    };
    keeper.say(&Word::Created)?;
    if keeper.line()?.is_none() {
        return Ok(());
    }
    let first = match made.start() {
        Ok(first) => first,
        Err(error) => return keeper.say(&Word::Failed(error.to_string())),
    };
    keeper.say(&Word::Started)?;
    let status = wait(first)?;
    keeper.say(&Word::Ended {
        status,
        largest_process: largest_process(),
    })
}

enum Made {
    Oci(Bundle, Pid),
    Command(Box<Command>),
}

fn make(way: Way, [stdin, stdout, stderr]: [OwnedFd; 3]) -> io::Result<Made> {
    match way {
        Way::Oci(bundle) => {
            let first = bundle.create([stdin, stdout, stderr])?;
            Ok(Made::Oci(bundle, first))
        }
        Way::Command {
            program,
            arguments,
            environment,
        } => {
            let mut command = Command::new(program);
            command
                .args(arguments)
                .env_clear()
                .envs(environment)
                .stdin(stdin)
                .stdout(stdout)
                .stderr(stderr);
            Ok(Made::Command(Box::new(command)))
        }
    }
}

impl Made {
    /// The process whose end is the container's.
    fn start(self) -> io::Result<Pid> {
        match self {
            Self::Oci(bundle, first) => bundle.start().map(|()| first),
            // With the command this process lets go of the container's files too.
            Self::Command(mut command) => Ok(Pid::from_child(&command.spawn()?)),
        }
    }
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
fn prepare(way: &Way) -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)?;
    match way {
        Way::Oci(_) => hide_hybrid(flags),
        Way::Command { .. } => {
            rustix::thread::set_no_new_privs(true)?;
            // Such a program shows the container this /sys: one of its own network, and nothing to write
            // to. With the node's network an ordinary user gets none, and may write to nothing anyway.
            let _ = mount("sysfs", "/sys", "sysfs", flags | MountFlags::RDONLY, None);
            Ok(())
        }
    }
}

/// Beside v1 an empty v2 hierarchy is of no use, and crun 1.8 refuses to work where it sees one.
fn hide_hybrid(flags: MountFlags) -> io::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    if mounts.lines().any(|l| l.split(' ').nth(1) == Some(HYBRID)) {
        mount("tmpfs", HYBRID, "tmpfs", flags, None)?;
    }
    Ok(())
}

/// Of the processes that were waited for, and of those that they waited for. A new process begins with the
/// figure of its parent, so one that is no higher than this process's own says nothing.
fn largest_process() -> Option<u64> {
    let most = |whose| {
        let kibibytes = getrusage(whose).ok()?.max_rss();
        u64::try_from(kibibytes).ok()?.checked_mul(1 << 10)
    };
    let own = most(UsageWho::RUSAGE_SELF)?;
    most(UsageWho::RUSAGE_CHILDREN).filter(|bytes| *bytes > own)
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
