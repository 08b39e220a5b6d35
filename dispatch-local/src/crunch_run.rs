//! Runs crunch-run: starts `crunch-run --detach` for a job directory, and `crunch-run resume` for
//! undelivered results.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use arvados_client::ContainerUuid;
use crunch_contract::{LEAVE_TO_DISPATCHER, MACHINE_CLAIM, StatusLine};
use fail_points::fail_point;
use host_state::trash;
use serde::Deserialize;
use tokio::process::Command;

use crate::job_dir::{JobDir, JobRecord};

/// Timeout of `crunch-run --detach`, which returns as soon as the worker runs.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The crunch-run program, and the arguments and variables of every call.
#[derive(Debug, Clone)]
pub struct CrunchRun {
    pub program: PathBuf,
    /// Directory of containers' scratch space.
    pub scratch: PathBuf,
    /// Directory of unpacked images.
    pub cache: PathBuf,
    /// Additional arguments from the admin.
    pub arguments: Vec<String>,
    /// Variables that name the API server, without a token.
    pub server: BTreeMap<String, String>,
}

/// Why a job did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("cannot create the job directory: {0}")]
    Directory(#[from] io::Error),
    #[error("{} could not be run: {source}", program.display())]
    Program { program: PathBuf, source: io::Error },
    /// crunch-run exited with an error before the worker ran.
    #[error("crunch-run did not start (exit code {code}): {words}")]
    Refused {
        code: i32,
        /// Standard error of crunch-run.
        words: String,
    },
    /// The worker may run or not.
    #[error("{0}")]
    Unknown(String),
}

#[derive(Deserialize)]
struct StartReply {
    #[serde(rename = "PID")]
    pid: u32,
}

/// Variables of this process that crunch-run inherits. `InstanceType` describes this machine with
/// its price.
const INHERITED_VARIABLES: [&str; 3] = ["PATH", "TMPDIR", "InstanceType"];

impl CrunchRun {
    /// The whole environment of crunch-run. A variable that is empty counts as unset.
    fn environment(&self) -> impl Iterator<Item = (&str, OsString)> {
        let inherited = INHERITED_VARIABLES
            .iter()
            .chain(fail_points::ENVIRONMENT)
            .filter_map(|name| Some((*name, std::env::var_os(name).filter(|v| !v.is_empty())?)));
        let server = self.server.iter();
        server
            .map(|(name, value)| (name.as_str(), OsString::from(value)))
            .chain(inherited)
    }

    /// Finds crunch-run: at the given path, beside this program, or in PATH.
    pub fn find(given: Option<&Path>) -> Option<PathBuf> {
        if let Some(given) = given {
            return which::which(given).ok();
        }
        let beside = std::env::current_exe()
            .ok()
            .and_then(|own| Some(own.parent()?.join("crunch-run")))
            .filter(|program| program.is_file());
        beside.or_else(|| which::which("crunch-run").ok())
    }

    /// Starts a job; returns the pid of the worker.
    /// The worker removes `claim` when the command has ended: it may deliver results for long after
    /// its dispatcher is gone.
    pub async fn start(
        &self,
        dir: &JobDir,
        record: &JobRecord,
        claim: Option<PathBuf>,
    ) -> Result<u32, StartError> {
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments(dir, record))
            .env_clear()
            .envs(self.environment())
            .envs(claim.map(|path| (MACHINE_CLAIM, path)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        fail_point("local.before-spawn");
        let child = command.spawn().map_err(|source| StartError::Program {
            program: self.program.clone(),
            source,
        })?;
        fail_point("local.spawned");
        let answer = tokio::time::timeout(START_TIMEOUT, child.wait_with_output()).await;
        let answer = answer.map_err(|_| {
            let seconds = START_TIMEOUT.as_secs();
            StartError::Unknown(format!("crunch-run did not answer within {seconds} s"))
        })?;
        let output = answer
            .map_err(|error| StartError::Unknown(format!("cannot wait for crunch-run: {error}")))?;
        fail_point("local.executor-answered");
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => match serde_json::from_slice::<StartReply>(&output.stdout) {
                Ok(started) => Ok(started.pid),
                Err(error) => Err(StartError::Unknown(format!(
                    "cannot parse the answer of crunch-run, which should be its pid: {error}"
                ))),
            },
            Some(code) => {
                let (text, status_line) = crunch_contract::split_output(&words);
                let reason = status_line.as_ref().and_then(StatusLine::reason);
                let words = reason.unwrap_or(text.trim()).to_owned();
                Err(StartError::Refused { code, words })
            }
            None => Err(StartError::Unknown(format!(
                "crunch-run was killed while it started: {words}"
            ))),
        }
    }

    /// Delivers the results in a job directory; returns the exit code, or none if crunch-run was
    /// killed.
    pub fn resume(
        &self,
        dir: &JobDir,
    ) -> impl Future<Output = io::Result<Option<i32>>> + Send + use<> {
        let mut command = Command::new(&self.program);
        command
            .arg("resume")
            .arg(dir.path())
            .env_clear()
            .envs(self.environment())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        async move {
            // The process outlives this dispatcher. A second delivery is harmless.
            let output = command.spawn()?.wait_with_output().await?;
            let words = String::from_utf8_lossy(&output.stderr);
            for line in words.lines() {
                tracing::debug!("crunch-run resume: {line}");
            }
            Ok(output.status.code())
        }
    }

    /// Moves the scratch space that killed crunch-runs of this container left into the trash.
    pub fn discard_scratch(&self, container: &ContainerUuid) -> io::Result<()> {
        let prefix = format!("crunch-run.{container}.");
        for entry in std::fs::read_dir(&self.scratch)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                trash::discard(&entry.path())?;
            }
        }
        Ok(())
    }

    fn arguments(&self, dir: &JobDir, record: &JobRecord) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            "--detach".into(),
            LEAVE_TO_DISPATCHER.into(),
            "--job-dir".into(),
            dir.path().into(),
            "--token-file".into(),
            dir.token_file().into(),
            "--scratch-dir".into(),
            self.scratch.clone().into(),
            "--cache-dir".into(),
            self.cache.clone().into(),
        ];
        let cpus = record.reservation.cpu_list();
        if !cpus.is_empty() {
            arguments.extend(["--cpuset".into(), cpus.into()]);
        }
        if let Some(first) = record.reservation.gpus.first() {
            let gpus = record.reservation.gpus.iter();
            let ids: Vec<&str> = gpus.map(|gpu| gpu.id.as_str()).collect();
            arguments.extend(["--gpu-stack".into(), first.stack.as_str().into()]);
            arguments.extend(["--gpu-ids".into(), ids.join(",").into()]);
        }
        arguments.extend(self.arguments.iter().map(Into::into));
        arguments.push(dir.container.as_str().into());
        arguments
    }
}
