//! Runs one job: a process of its own starts the job's program, waits for it and records how it
//! ended.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::state::{Job, State, condor, now};
use super::{NODE, PROGRAM, STATE_POLL_INTERVAL, Store};

/// Name under which the program runs one job.
pub const PROGRAM_NAME: &str = "keep-job";

/// A job's program, and where and how it runs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// An absolute path, or a name in PATH.
    pub program: PathBuf,
    /// Arguments of the job's program.
    pub arguments: Vec<String>,
    /// The job's whole environment.
    pub environment: Vec<(String, String)>,
    /// Files to copy into the job's own directory, which is its working directory; none: it runs in
    /// `directory`.
    pub transfer: Option<Vec<PathBuf>>,
    /// The working directory if no files are transferred.
    pub directory: PathBuf,
    /// The file for stdout and stderr.
    pub output: PathBuf,
}

/// The directory of a job.
pub fn directory(store: &Store, id: &str) -> PathBuf {
    store.dir().join("jobs").join(id)
}

/// Writes a job's plan to its directory.
pub fn prepare(store: &Store, id: &str, plan: &Plan) -> io::Result<()> {
    let directory = directory(store, id);
    fs::create_dir_all(&directory)?;
    fs::write(directory.join("plan.json"), serde_json::to_vec(plan)?)
}

/// Starts the process that runs a job, and does not wait for it.
pub fn start(store: &Store, id: &str) -> io::Result<()> {
    Command::new(store.dir().join(PROGRAM))
        .arg0(PROGRAM_NAME)
        .arg(id)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map(drop)
}

/// Runs the job named by the only argument, from its start to its end.
pub fn run_job(store: &Store, arguments: &[String]) -> io::Result<()> {
    let id = arguments.first().ok_or(io::ErrorKind::InvalidInput)?;
    let plan = read_plan(store, id)?;
    let work_dir = prepare_work_dir(store, id, &plan);
    // In one step with the process: whoever cancels a started job must find its process.
    let begun = change(store, id, |job| {
        // The job may have been cancelled or held meanwhile.
        if !job.is_pending() || job.ended.is_some() {
            return None;
        }
        job.started = Some(now());
        mark_running(job);
        let launched = work_dir.and_then(|work_dir| launch(&work_dir, &plan));
        match &launched {
            Ok(child) => job.pid = Some(Pid::from_child(child).as_raw_pid()),
            Err(_) => mark_ended(job, Some(127), None),
        }
        Some(launched)
    })?;
    match begun {
        None => Ok(()),
        Some(Ok(child)) => wait(store, id, child),
        Some(Err(error)) => fs::write(
            &plan.output,
            format!("{}: {error}\n", plan.program.display()),
        ),
    }
}

/// Reads a job's plan. A job may be listed and started before its plan is written.
fn read_plan(store: &Store, id: &str) -> io::Result<Plan> {
    let until = Instant::now() + crate::STEP_TIMEOUT;
    loop {
        let text = fs::read(directory(store, id).join("plan.json"));
        let plan = text.and_then(|text| Ok(serde_json::from_slice(&text)?));
        if plan.is_ok() || Instant::now() > until {
            return plan;
        }
        std::thread::sleep(STATE_POLL_INTERVAL);
    }
}

/// Makes the directory that a job runs in, with the files transferred to it.
fn prepare_work_dir(store: &Store, id: &str, plan: &Plan) -> io::Result<PathBuf> {
    let Some(files) = &plan.transfer else {
        return Ok(plan.directory.clone());
    };
    let sandbox = directory(store, id).join("sandbox");
    fs::create_dir_all(&sandbox)?;
    for file in files {
        let name = file.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        fs::copy(file, sandbox.join(name))?;
    }
    Ok(sandbox)
}

fn launch(work_dir: &Path, plan: &Plan) -> io::Result<Child> {
    let output = open(&plan.output)?;
    let mut command = Command::new(&plan.program);
    command
        .args(&plan.arguments)
        .current_dir(work_dir)
        .env_clear()
        .envs(plan.environment.iter().cloned())
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

fn wait(store: &Store, id: &str, mut child: Child) -> io::Result<()> {
    let pid = Pid::from_child(&child);
    let (mut known, mut kill_at) = (None, None);
    loop {
        if let Some(status) = child.try_wait()? {
            return change(store, id, |job| finish(job, status)).map(drop);
        }
        // The directory is gone when the test is over.
        match store.version() {
            Ok(version) if known == Some(version) => {}
            Ok(version) => {
                known = Some(version);
                kill_at = store
                    .read()
                    .map_or(Some(0.0), |state| time_to_kill(&state, id));
            }
            Err(_) => kill_at = Some(0.0),
        }
        if kill_at.is_some_and(|at| at <= now()) {
            // The process may have ended just now.
            let _ = kill_process_group(pid, Signal::KILL);
        }
        std::thread::sleep(STATE_POLL_INTERVAL);
    }
}

/// The Unix time from which on the job's processes are to be killed, if there is one.
fn time_to_kill(state: &State, id: &str) -> Option<f64> {
    // Numbers are used again: the newest.
    let job = state.jobs.iter().rfind(|job| job.id == id);
    match state.closing {
        true => Some(0.0),
        false => job.and_then(|job| job.kill_at),
    }
}

fn change<T: Default>(
    store: &Store,
    id: &str,
    change: impl FnOnce(&mut Job) -> T,
) -> io::Result<T> {
    store.change(|state| {
        let job = state.jobs.iter_mut().rfind(|job| job.id == id);
        job.map(change).unwrap_or_default()
    })
}

fn finish(job: &mut Job, status: ExitStatus) {
    mark_ended(job, status.code(), status.signal());
}

/// Writes down the start of a job as its scheduler would.
pub fn mark_running(job: &mut Job) {
    job.state = "RUNNING".into();
    job.node = Some(NODE.into());
    if job.is_condor() {
        let slot = format!("slot1@{NODE}");
        job.ad.insert("LastRemoteHost".into(), slot.into());
        job.set_status(condor::RUNNING);
        job.ad.insert("NumJobStarts".into(), 1.into());
    }
}

/// Writes down the end of a job as its scheduler would.
pub fn mark_ended(job: &mut Job, exit: Option<i32>, signal: Option<i32>) {
    job.pid = None;
    job.ended = Some(now());
    (job.exit, job.signal) = (exit, signal);
    let (state, reason) = match (job.kill_at, exit) {
        (Some(_), _) => ("CANCELLED", "None"),
        (None, Some(0)) => ("COMPLETED", "None"),
        (None, Some(_)) => ("FAILED", "NonZeroExitCode"),
        (None, None) => ("FAILED", "RaisedSignal"),
    };
    job.state = state.into();
    job.reason = reason.into();
    if job.is_condor() {
        let status = match job.kill_at {
            Some(_) => condor::REMOVED,
            None => condor::COMPLETED,
        };
        job.set_status(status);
        if status == condor::COMPLETED {
            job.ad.insert("ExitBySignal".into(), exit.is_none().into());
            match (exit, signal) {
                (Some(code), _) => drop(job.ad.insert("ExitCode".into(), code.into())),
                (None, Some(signal)) => drop(job.ad.insert("ExitSignal".into(), signal.into())),
                (None, None) => {}
            }
        }
    }
}

/// Sends TERM to a job's processes, and KILL after `grace` seconds. A job without a process ends at
/// once.
pub fn request_stop(job: &mut Job, grace: f64) {
    job.kill_at = Some(now() + grace);
    match job.pid.and_then(Pid::from_raw) {
        Some(pid) => {
            let signal = if grace > 0.0 {
                Signal::TERM
            } else {
                Signal::KILL
            };
            // The process may have ended just now.
            let _ = kill_process_group(pid, signal);
        }
        None => mark_ended(job, None, None),
    }
}
