//! What is left to deliver once the command has ended: on this node's disk from that moment on, so that
//! `crunch-run resume` can go on where this process gave up or was killed.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use arvados_client::records::{ContainerState, RuntimeStatus};
use arvados_client::{ContainerUuid, Endpoint, Pdh, TokenUuid};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::result;
use crate::engine::Exit;
use crate::job_dir::JobDir;
use crate::mounts::NotedMounts;
use crate::verdict::{Evidence, Verdict};

/// Another one is not understood.
const VERSION: u32 = 1;

/// No secret is in it: the token is named by its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Left {
    version: u32,
    pub container: ContainerUuid,
    pub attempt: TokenUuid,
    pub token_file: Option<PathBuf>,
    /// Where the API server is, as in the environment.
    pub environment: BTreeMap<String, String>,
    pub scratch: PathBuf,
    pub mounts: NotedMounts,
    pub evidence: Evidence,
    /// The largest output that is saved, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
    /// How the command ended by itself; without it there is a verdict.
    pub exit: Option<Exit>,
    /// At once where the output is not wanted, and else when it is known what became of it.
    pub verdict: Option<Verdict>,
    /// The log that the record has had since the start.
    pub first_log: Pdh,
    /// The log that goes with the verdict.
    pub log: Option<Pdh>,
    /// What the record says, once the API server has answered the final update: nothing is left to deliver then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<ContainerState>,
    /// What the machine cost, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// What `runtime_status` was to be at the end, but for the verdict: a dispatcher writes there that the results wait.
    #[serde(default)]
    pub status: RuntimeStatus,
    /// result.json, but for the verdict.
    result: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum LeftError {
    #[error("{path} cannot be read: {source}", path = path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{path} is of version {version}, and this crunch-run knows version {VERSION}: use the crunch-run that wrote it", path = path.display())]
    Version { path: PathBuf, version: u64 },
    #[error("{path} is damaged: {source}", path = path.display())]
    Damaged {
        path: PathBuf,
        #[source]
        source: serde_json::Error,
    },
}

/// What is known when the command has ended.
pub struct Remains<'a> {
    pub container: &'a ContainerUuid,
    pub attempt: &'a TokenUuid,
    pub token_file: Option<&'a Path>,
    pub endpoint: &'a Endpoint,
    pub scratch: &'a Path,
    pub mounts: NotedMounts,
    pub evidence: Evidence,
    pub output_limit: Option<u64>,
    pub exit: Option<Exit>,
    pub verdict: Option<Verdict>,
    pub first_log: &'a Pdh,
    pub result: Value,
}

impl Left {
    pub fn new(facts: Remains<'_>) -> Self {
        let Remains { endpoint, .. } = facts;
        let certificates = endpoint.ca_file.as_ref();
        let environment = [
            ("ARVADOS_API_HOST", Some(endpoint.host.clone())),
            (
                "ARVADOS_API_HOST_INSECURE",
                endpoint.insecure.then(|| "true".to_owned()),
            ),
            (
                "SSL_CERT_FILE",
                certificates.map(|path| path.to_string_lossy().into_owned()),
            ),
            (
                "ARVADOS_KEEP_SERVICES",
                (!endpoint.keep_services.is_empty()).then(|| endpoint.keep_services.join(" ")),
            ),
        ];
        Self {
            version: VERSION,
            container: facts.container.clone(),
            attempt: facts.attempt.clone(),
            token_file: facts.token_file.map(Path::to_owned),
            environment: environment
                .into_iter()
                .filter_map(|(name, value)| Some((name.to_owned(), value?)))
                .collect(),
            scratch: facts.scratch.to_owned(),
            mounts: facts.mounts,
            evidence: facts.evidence,
            output_limit: facts.output_limit,
            exit: facts.exit,
            verdict: facts.verdict,
            first_log: facts.first_log.clone(),
            log: None,
            recorded: None,
            cost: None,
            status: RuntimeStatus::default(),
            result: facts.result,
        }
    }

    /// `None` if nothing is.
    pub fn read(dir: &JobDir) -> Result<Option<Self>, LeftError> {
        let path = dir.undelivered();
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(LeftError::Read { path, source }),
        };
        let read = || -> serde_json::Result<Result<Self, u64>> {
            let value: Value = serde_json::from_slice(&text)?;
            match value["version"].as_u64() {
                Some(version) if version != u64::from(VERSION) => Ok(Err(version)),
                _ => serde_json::from_value(value).map(Ok),
            }
        };
        match read() {
            Ok(Ok(left)) => Ok(Some(left)),
            Ok(Err(version)) => Err(LeftError::Version { path, version }),
            Err(source) => Err(LeftError::Damaged { path, source }),
        }
    }

    /// Whole or not at all; what a process has written survives its end, though not a power cut at once.
    pub fn write(&self, dir: &JobDir) -> io::Result<()> {
        let partial = dir.undelivered().with_extension("partial");
        let mut file = fs::OpenOptions::new()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&partial)?;
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        file.write_all(&text)?;
        fs::rename(partial, dir.undelivered())
    }

    /// More is known of the run than at first.
    pub fn measured(&mut self, result: Value) {
        self.result = result;
    }

    /// result.json with this verdict.
    pub fn result(&self, verdict: &Verdict) -> Vec<u8> {
        let mut result = self.result.clone();
        result::judged(&mut result, verdict);
        result::text(&result)
    }
}
