//! Starts `crunch-run --detach` for one job directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use arvados_client::ContainerUuid;
use fail_points::fail_point;
use serde::Deserialize;
use tokio::process::Command;

use crate::job_dir::{JobDir, Notes};

/// How long it may take until the worker runs.
const PATIENCE: Duration = Duration::from_secs(60);
/// crunch-run, and what every call of it is told.
#[derive(Debug, Clone)]
pub struct Executor {
    /// The program.
    pub program: PathBuf,
    /// Where containers get their scratch space.
    pub scratch: PathBuf,
    /// Where images are kept unpacked.
    pub cache: PathBuf,
    /// More arguments, as the admin gave them.
    pub arguments: Vec<String>,
    /// Where the API server is, for crunch-run: variables without any token.
    pub server: BTreeMap<String, String>,
}

/// Why a job did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The job directory could not be prepared.
    #[error("its job directory could not be made: {0}")]
    Directory(#[from] io::Error),
    /// The program could not be run.
    #[error("{} could not be run: {source}", program.display())]
    Program {
        /// Which.
        program: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// crunch-run said no.
    #[error("crunch-run did not start (exit code {code}): {words}")]
    Refused {
        /// Its exit code.
        code: i32,
        /// What it said.
        words: String,
    },
    /// It may run, or not.
    #[error("{0}")]
    Unknown(String),
}

#[derive(Deserialize)]
struct Started {
    #[serde(rename = "PID")]
    pid: u32,
}

/// Variables of this process that crunch-run gets as they are. `InstanceType` describes the machine with its price.
const INHERITED: [&str; 3] = ["PATH", "TMPDIR", "InstanceType"];

impl Executor {
    /// The whole environment of crunch-run. A variable that is set but empty counts as not set.
    fn environment(&self) -> impl Iterator<Item = (&str, OsString)> {
        let inherited = INHERITED
            .iter()
            .chain(fail_points::ENVIRONMENT)
            .filter_map(|name| Some((*name, std::env::var_os(name).filter(|v| !v.is_empty())?)));
        let server = self.server.iter();
        server
            .map(|(name, value)| (name.as_str(), OsString::from(value)))
            .chain(inherited)
    }

    /// Finds crunch-run: where it was said to be, beside this program, or in PATH.
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

    /// Starts a job; its pid.
    pub async fn start(&self, dir: &JobDir, notes: &Notes) -> Result<u32, StartError> {
        let mut command = Command::new(&self.program);
        command
            .args(self.arguments(dir, notes))
            .env_clear()
            .envs(self.environment())
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
        let output = match tokio::time::timeout(PATIENCE, child.wait_with_output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(error)) => {
                return Err(StartError::Unknown(format!(
                    "crunch-run could not be waited for: {error}"
                )));
            }
            Err(_) => {
                return Err(StartError::Unknown(format!(
                    "crunch-run did not answer within {} s",
                    PATIENCE.as_secs()
                )));
            }
        };
        fail_point("local.executor-answered");
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => match serde_json::from_slice::<Started>(&output.stdout) {
                Ok(started) => Ok(started.pid),
                Err(error) => Err(StartError::Unknown(format!(
                    "crunch-run answered with something else than its pid: {error}"
                ))),
            },
            Some(code) => Err(StartError::Refused { code, words }),
            None => Err(StartError::Unknown(format!(
                "crunch-run was killed while it started: {words}"
            ))),
        }
    }

    /// Delivers what an attempt left in its directory; its exit code, or none if it was killed.
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
            // Not killed with this process: it may go on alone, and may be repeated.
            let output = command.spawn()?.wait_with_output().await?;
            let words = String::from_utf8_lossy(&output.stderr);
            for line in words.lines() {
                tracing::debug!("crunch-run resume: {line}");
            }
            Ok(output.status.code())
        }
    }

    /// Removes what killed crunch-runs of this container left in the scratch space.
    pub fn clear_scratch(&self, container: &ContainerUuid) -> io::Result<()> {
        let prefix = format!("crunch-run.{container}.");
        for entry in std::fs::read_dir(&self.scratch)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
        Ok(())
    }

    fn arguments(&self, dir: &JobDir, notes: &Notes) -> Vec<std::ffi::OsString> {
        let mut arguments: Vec<std::ffi::OsString> = vec![
            "--detach".into(),
            "--job-dir".into(),
            dir.path().into(),
            "--token-file".into(),
            dir.token_file().into(),
            "--scratch".into(),
            self.scratch.clone().into(),
            "--cache".into(),
            self.cache.clone().into(),
        ];
        let cpus = notes.reservation.cpu_list();
        if !cpus.is_empty() {
            arguments.extend(["--cpuset".into(), cpus.into()]);
        }
        if let Some(first) = notes.reservation.gpus.first() {
            let ids: Vec<&str> = notes
                .reservation
                .gpus
                .iter()
                .map(|g| g.id.as_str())
                .collect();
            arguments.extend(["--gpu-stack".into(), first.stack.as_str().into()]);
            arguments.extend(["--gpu-ids".into(), ids.join(",").into()]);
        }
        arguments.extend(self.arguments.iter().map(Into::into));
        arguments.push(dir.container.as_str().into());
        arguments
    }
}
