//! A control group for the containers of `dispatch up`, in which the kernel keeps their limits:
//! also for an ordinary user, who may make none elsewhere.
//!
//! systemd gives this process a scope with `Delegate=yes` (systemd.resource-control(5)). In cgroup
//! v2 a group with processes cannot pass controllers on (cgroups(7), "no internal processes"). So
//! this process goes one group down, and crunch-run makes the groups of containers beside that one.
//!
//! The scope of an ordinary user ends with the last session, and its containers with it. So there
//! is none unless the user lingers (loginctl(1)).

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cgroup::{Cgroup, Layout, Mode};
use nix::unistd::{Uid, User};
use rustix::process::{geteuid, getpid};

/// Set to the pid of a process that has asked for its scope.
const ASKED: &str = "DISPATCH_SCOPE_OF";
/// Name of the group that this process and those that it starts are in.
const OWN_GROUP: &str = "dispatch-up";
/// Timeout of systemd for a first scope, which only shows that there can be one.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(5);
const SYSTEMD_RUN: &str = "systemd-run";
const RUNTIME_DIR: &str = "XDG_RUNTIME_DIR";

/// What is known of this process and its machine.
#[derive(Debug, Clone, Copy)]
struct Facts {
    mode: Mode,
    /// Whether systemd is the first process of the machine, see sd_booted(3).
    has_systemd: bool,
    is_root: bool,
    lingers: bool,
    /// Whether this process was started in its scope.
    has_asked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// No group can be had.
    None,
    /// A group can be had once the user lingers.
    NeedsLinger,
    /// Start again in a scope.
    AskForScope,
    /// Go one group down from the scope.
    Enter,
}

impl Facts {
    fn here() -> Self {
        let mode = Layout::of_this_process().map_or(Mode::Absent, |layout| layout.mode);
        let asked = std::env::var(ASKED).ok();
        let has_systemd = Path::new("/run/systemd/system").is_dir();
        let is_root = geteuid().is_root();
        Self {
            mode,
            has_systemd,
            is_root,
            // A look into the directory of users, which may be slow.
            lingers: mode == Mode::V2 && has_systemd && !is_root && lingers(),
            has_asked: asked.is_some_and(|pid| pid == own_pid()),
        }
    }

    fn step(self) -> Step {
        match self.mode {
            Mode::V2 if self.has_asked => Step::Enter,
            Mode::V2 if !self.has_systemd => Step::None,
            Mode::V2 if self.is_root || self.lingers => Step::AskForScope,
            Mode::V2 => Step::NeedsLinger,
            _ => Step::None,
        }
    }
}

fn own_pid() -> String {
    getpid().as_raw_nonzero().to_string()
}

/// Whether the services of this user go on after the last session: systemd-logind(8) has a file
/// with the name of each such user.
fn lingers() -> bool {
    let user = User::from_uid(Uid::effective());
    matches!(user, Ok(Some(user)) if Path::new("/var/lib/systemd/linger").join(&user.name).exists())
}

/// Has this process in a group beside which containers get theirs, if there can be one. This may
/// start the program anew, with the same arguments and the same pid. Returns whether crunch-run can
/// make groups, or a sentence to print if it cannot and a user would want to know.
pub async fn enter() -> Result<bool, String> {
    match Facts::here().step() {
        Step::None => Ok(false),
        Step::NeedsLinger => Err(
            "the kernel can limit memory, CPUs and processes of containers after: loginctl enable-linger"
                .to_owned(),
        ),
        Step::AskForScope => match restart_in_scope().await {
            Ok(never) => match never {},
            // Root makes groups where it is.
            Err(_) if geteuid().is_root() => Ok(false),
            Err(error) => Err(format!("the kernel cannot limit containers: {error}")),
        },
        Step::Enter => match go_down() {
            Ok(()) => Ok(true),
            Err(error) => Err(format!("the control group of systemd cannot be used: {error}")),
        },
    }
}

/// systemd-run(1) for a scope, without the command.
fn systemd_run() -> Command {
    let user = geteuid();
    let mut command = Command::new(SYSTEMD_RUN);
    command.args(["--scope", "--quiet", "--collect"]);
    // Each container has a limit of processes of its own.
    command.args(["--property=Delegate=yes", "--property=TasksMax=infinity"]);
    if user.is_root() {
        command.arg("--system");
    } else {
        command.arg("--user");
        // cron and su do not set it, and systemd is found by it.
        let runtime_dir = format!("/run/user/{user}");
        if std::env::var_os(RUNTIME_DIR).is_none() && Path::new(&runtime_dir).is_dir() {
            command.env(RUNTIME_DIR, runtime_dir);
        }
    }
    command
}

/// Replaces this program by systemd-run, which asks for the scope and becomes this program again.
async fn restart_in_scope() -> io::Result<std::convert::Infallible> {
    // A first scope shows whether the second start will come about.
    let mut trial = tokio::process::Command::from(systemd_run());
    trial.arg("true").stdin(Stdio::null()).kill_on_drop(true);
    let trial = tokio::time::timeout(TRIAL_TIMEOUT, trial.output()).await??;
    if !trial.status.success() {
        let text = String::from_utf8_lossy(&trial.stderr);
        let reason = text.lines().next().unwrap_or("it failed");
        return Err(io::Error::other(format!("{SYSTEMD_RUN}: {reason}")));
    }
    let program = std::env::current_exe()?;
    Err(systemd_run()
        .arg("--")
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(ASKED, own_pid())
        .exec())
}

/// Moves this process into a group below its own.
fn go_down() -> io::Result<()> {
    let layout = Layout::of_this_process()?;
    let own = layout.v2().map(|v2| v2.own_dir());
    let own: PathBuf = own.ok_or_else(|| io::Error::other("this process is in no group"))?;
    let below = own.join(OWN_GROUP);
    std::fs::create_dir(&below)?;
    let group = Cgroup {
        v2: Some(below),
        ..Cgroup::default()
    };
    group.enter(getpid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_asked_for_once_and_only_where_containers_outlive_the_session() {
        let facts = |mode, has_systemd, is_root, lingers, has_asked| Facts {
            mode,
            has_systemd,
            is_root,
            lingers,
            has_asked,
        };
        for (facts, step) in [
            (facts(Mode::V1, true, true, true, false), Step::None),
            (facts(Mode::Hybrid, true, true, true, true), Step::None),
            (facts(Mode::Absent, true, true, true, false), Step::None),
            (facts(Mode::V2, false, true, true, false), Step::None),
            (facts(Mode::V2, true, true, false, false), Step::AskForScope),
            (facts(Mode::V2, true, false, true, false), Step::AskForScope),
            (
                facts(Mode::V2, true, false, false, false),
                Step::NeedsLinger,
            ),
            (facts(Mode::V2, true, false, true, true), Step::Enter),
            (facts(Mode::V2, true, true, false, true), Step::Enter),
        ] {
            assert_eq!(facts.step(), step, "{facts:?}");
        }
    }
}
