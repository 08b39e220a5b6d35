//! A fake scheduler for tests. One program acts as the command it is called by. A directory holds
//! the state:
//! - `state.json`: settings and faults;
//! - `jobs.jsonl`: the jobs;
//! - `calls.jsonl`: every call with its arguments;
//! - `bin/`: the commands.
//!
//! The formats are those of Slurm 22.05 and HTCondor 23. An option that they do not have is an
//! error here, too.
//!
//! With [`Settings::real_path`] the commands of a real scheduler do the work. The faults and the
//! log of the calls are the fake's.

mod condor_ads;
mod condor_queue;
mod condor_submit;
mod control;
mod fault;
mod job_runner;
mod options;
mod real_commands;
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

/// The commands that it can be called as.
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
/// The copy of this program in the fake's directory. Its path tells which fake it belongs to, even
/// without environment.
const PROGRAM: &str = "fake-sched";
/// Name of the one node.
const NODE: &str = "node1";
/// Variable set for the process that does a command's work after its caller's timeout.
const LATE_CALL_VARIABLE: &str = "FAKE_SCHED_LATE";
/// Interval between two reads of the state while waiting for a change.
const STATE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// A line of the call log.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// Unix time.
    pub time: f64,
    /// The command.
    pub name: String,
    /// Arguments of the call.
    pub arguments: Vec<String>,
    /// The fault applied to it.
    pub fault: Option<Fault>,
}

/// A command's output and exit status.
#[derive(Debug, Clone, Default)]
pub struct Reply {
    /// Bytes for stdout.
    pub output: Vec<u8>,
    /// Text for stderr.
    pub errors: String,
    /// Exit status.
    pub status: u8,
}

impl Reply {
    /// Success.
    pub fn with_output(output: impl Into<Vec<u8>>) -> Self {
        Self {
            output: output.into(),
            ..Self::default()
        }
    }

    /// A failure without stdout.
    pub fn failed(status: u8, say: &str) -> Self {
        let errors = match say.is_empty() {
            true => String::new(),
            false => format!("{say}\n"),
        };
        Self {
            output: Vec::new(),
            errors,
            status,
        }
    }
}

/// A command at work.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Invocation<'a> {
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
    match fake_dir().and_then(|dir| answer(&Store::new(&dir), &name, &arguments)) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("{name}: fake-sched: {error}");
            ExitCode::from(255)
        }
    }
}

fn fake_dir() -> std::io::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let dir = program.parent().ok_or(std::io::ErrorKind::NotFound)?;
    Ok(dir.to_owned())
}

fn answer(store: &Store, name: &str, arguments: &[String]) -> std::io::Result<u8> {
    if name == job_runner::PROGRAM_NAME {
        return job_runner::run_job(store, arguments).map(|()| 0);
    }
    let mut input = String::new();
    if matches!(name, "sbatch" | "condor_submit" | "scontrol") {
        std::io::stdin().read_to_string(&mut input)?;
    }
    let call = Invocation {
        store,
        name,
        arguments,
        input: &input,
    };
    if std::env::var_os(LATE_CALL_VARIABLE).is_some() {
        while !store.read_rest()?.late {
            std::thread::sleep(STATE_POLL_INTERVAL);
        }
        return run_command(call).map(|reply| reply.status);
    }
    // These calls ask no controller or submit nothing: the faults are for other calls, unless a
    // rule names the test.
    let is_version = arguments == ["--version"];
    if is_version || fault::is_test(name, arguments) {
        if let Some(fault) =
            store.change_rest(|state| fault::pick(&mut state.rules, name, arguments))?
        {
            return print_reply(&fault.apply(Reply::default()));
        }
        return print_reply(&match store.read_rest()?.settings.real_path {
            Some(path) => real_commands::run(&path, call)?,
            None if is_version => Reply::with_output("slurm-wlm 22.05.8\n"),
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
        return print_reply(&run_command(call)?);
    };
    fault.wait();
    let reply = match fault.effect() {
        Effect::Done => run_command(call)?,
        Effect::None => Reply::default(),
        Effect::Later => run_command_later(call)?,
    };
    if fault.hangs() {
        hang(store);
    }
    print_reply(&fault.apply(reply))
}

fn print_reply(reply: &Reply) -> std::io::Result<u8> {
    // The caller may have closed its end of the pipe.
    let _ = std::io::stderr().write_all(reply.errors.as_bytes());
    let _ = std::io::stdout().write_all(&reply.output);
    Ok(reply.status)
}

fn run_command(call: Invocation<'_>) -> std::io::Result<Reply> {
    if let Some(path) = call.store.read_rest()?.settings.real_path {
        return real_commands::run(&path, call);
    }
    match call.name {
        "sbatch" => sbatch::sbatch(call),
        "squeue" => squeue::squeue(call),
        "scancel" => slurm_control::scancel(call),
        "scontrol" => slurm_control::scontrol(call),
        "sacct" => slurm_tables::sacct(call),
        "sinfo" => slurm_tables::sinfo(call),
        "condor_submit" => condor_submit::condor_submit(call),
        "condor_q" => condor_queue::condor_q(call),
        "condor_history" => condor_queue::condor_history(call),
        "condor_status" => condor_queue::condor_status(call),
        "condor_rm" => condor_queue::condor_rm(call),
        "condor_prio" => condor_queue::condor_prio(call),
        "condor_qedit" => condor_queue::condor_qedit(call),
        name => Ok(Reply::failed(
            127,
            &format!("fake-sched is called {name:?}, which is none of its names"),
        )),
    }
}

/// Leaves the work to a process that outlives its caller's timeout.
fn run_command_later(call: Invocation<'_>) -> std::io::Result<Reply> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg0(call.name)
        .args(call.arguments)
        .env(LATE_CALL_VARIABLE, "1")
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(call.input.as_bytes())?;
    }
    Ok(Reply::default())
}

/// Waits until the caller kills it or ends, or the test is over.
fn hang(store: &Store) {
    let caller = rustix::process::getppid();
    while rustix::process::getppid() == caller
        && store.read_rest().is_ok_and(|state| !state.closing)
    {
        std::thread::sleep(STATE_POLL_INTERVAL);
    }
}
