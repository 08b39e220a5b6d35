//! A scheduler for tests. One program acts as whatever command it is called by; a directory is its whole state:
//! `state.json` (settings, faults), `jobs.jsonl`, `calls.jsonl` (every call with its arguments), `bin/` (the commands).
//!
//! The formats are those of Slurm 22.05 and HTCondor 23; an option they do not have is an error here, too.
//!
//! With [`Settings::beneath`] a real scheduler does the work: the commands are its own, what goes wrong with them and the
//! log of the calls are the fake's.

mod beneath;
mod condor_ads;
mod condor_queue;
mod condor_submit;
mod control;
mod fault;
mod keeper;
mod options;
mod sbatch;
mod slurm_control;
mod slurm_tables;
mod squeue;
mod state;
mod store;

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use control::FakeSched;
pub use fault::{Fault, Rule};
pub use state::{Job, Settings, State};
pub use store::Store;

use fault::Effect;

/// The commands it acts as.
pub const COMMANDS: [&str; 13] = [
    "sbatch",
    "squeue",
    "scontrol",
    "scancel",
    "sacct",
    "sinfo",
    "condor_submit",
    "condor_q",
    "condor_rm",
    "condor_prio",
    "condor_qedit",
    "condor_history",
    "condor_status",
];
/// The file of this program in the fake's directory: where it lies says which fake it acts for, whatever is left of its
/// environment.
const PROGRAM: &str = "fake-sched";
/// The one node.
const NODE: &str = "node1";
/// Set for the process that does a command's work after its caller gave up.
const LATE: &str = "FAKE_SCHED_LATE";
/// Between two looks at the state, where something is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// A line of the call log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// Unix time.
    pub time: f64,
    /// The command.
    pub name: String,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What went wrong with it.
    pub fault: Option<Fault>,
}

/// What a command answers.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// On stdout.
    pub output: Vec<u8>,
    /// On stderr.
    pub complaint: String,
    /// Exit status.
    pub status: u8,
}

impl Reply {
    /// Success.
    pub fn says(output: impl Into<Vec<u8>>) -> Self {
        Self {
            output: output.into(),
            ..Self::default()
        }
    }

    /// Nothing on stdout.
    pub fn failed(status: u8, say: &str) -> Self {
        let complaint = match say.is_empty() {
            true => String::new(),
            false => format!("{say}\n"),
        };
        Self {
            output: Vec::new(),
            complaint,
            status,
        }
    }
}

/// A command at work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Order<'a> {
    store: &'a Store,
    name: &'a str,
    arguments: &'a [String],
    input: &'a str,
}

/// Acts as the command that this process is called.
pub fn main() -> ExitCode {
    let mut words = std::env::args();
    let called = words.next().unwrap_or_default();
    let name = Path::new(&called)
        .file_name()
        .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let arguments: Vec<String> = words.collect();
    match place().and_then(|dir| answer(&Store::new(&dir), &name, &arguments)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{name}: fake-sched: {error}");
            ExitCode::from(255)
        }
    }
}

fn place() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().ok_or(std::io::ErrorKind::NotFound)?;
    Ok(dir.to_owned())
}

fn answer(store: &Store, name: &str, arguments: &[String]) -> std::io::Result<u8> {
    if name == keeper::NAME {
        return keeper::keep(store, arguments).map(|()| 0);
    }
    let mut input = String::new();
    if matches!(name, "sbatch" | "condor_submit" | "scontrol") {
        std::io::stdin().read_to_string(&mut input)?;
    }
    let order = Order {
        store,
        name,
        arguments,
        input: &input,
    };
    if std::env::var_os(LATE).is_some() {
        while !store.read_rest()?.late {
            std::thread::sleep(LOOK);
        }
        return act(order).map(|reply| reply.status);
    }
    // Asked of no controller, or a question and no submission: faults are those of the others.
    let is_version = arguments == ["--version"];
    if is_version || name == "sbatch" && arguments.iter().any(|a| a == "--test-only") {
        return tell(&match store.read_rest()?.settings.beneath {
            Some(path) => beneath::run(&path, order)?,
            None if is_version => Reply::says("slurm-wlm 22.05.8\n"),
            None => Reply::default(),
        });
    }
    let fault = store.change_rest(|state| fault::pick(&mut state.rules, name, arguments))?;
    store.log(&Call {
        time: state::now(),
        name: name.to_owned(),
        arguments: arguments.to_owned(),
        fault: fault.clone(),
    })?;
    let Some(fault) = fault else {
        return tell(&act(order)?);
    };
    fault.wait();
    let reply = match fault.effect() {
        Effect::Done => act(order)?,
        Effect::None => Reply::default(),
        Effect::Later => act_later(order)?,
    };
    if fault.hangs() {
        hang(store);
    }
    tell(&fault.spoil(reply))
}

fn tell(reply: &Reply) -> std::io::Result<u8> {
    // Nobody may be there to read it any more.
    let _ = std::io::stderr().write_all(reply.complaint.as_bytes());
    let _ = std::io::stdout().write_all(&reply.output);
    Ok(reply.status)
}

fn act(order: Order<'_>) -> std::io::Result<Reply> {
    if let Some(path) = order.store.read_rest()?.settings.beneath {
        return beneath::run(&path, order);
    }
    match order.name {
        "sbatch" => sbatch::sbatch(order),
        "squeue" => squeue::squeue(order),
        "scancel" => slurm_control::scancel(order),
        "scontrol" => slurm_control::scontrol(order),
        "sacct" => slurm_tables::sacct(order),
        "sinfo" => slurm_tables::sinfo(order),
        "condor_submit" => condor_submit::condor_submit(order),
        "condor_q" => condor_queue::condor_q(order),
        "condor_history" => condor_queue::condor_history(order),
        "condor_status" => condor_queue::condor_status(order),
        "condor_rm" => condor_queue::condor_rm(order),
        "condor_prio" => condor_queue::condor_prio(order),
        "condor_qedit" => condor_queue::condor_qedit(order),
        name => Ok(Reply::failed(
            127,
            &format!("fake-sched is called {name:?}, which is none of its names"),
        )),
    }
}

/// Leaves the work to a process that outlives its caller's patience.
fn act_later(order: Order<'_>) -> std::io::Result<Reply> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg0(order.name)
        .args(order.arguments)
        .env(LATE, "1")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(order.input.as_bytes())?;
    }
    Ok(Reply::default())
}

/// For ever: until the caller kills it, or is gone itself, or the test is over.
fn hang(store: &Store) {
    let caller = rustix::process::getppid();
    while rustix::process::getppid() == caller
        && store.read_rest().is_ok_and(|state| !state.closing)
    {
        std::thread::sleep(LOOK);
    }
}
