//! The record of a run whose results are not delivered yet (undelivered.json).
//!
//! It is written when the command has ended, so that `crunch-run resume` can continue if this
//! process gives up or is killed.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use arvados_client::records::{ContainerState, RuntimeStatus};
use arvados_client::{ContainerUuid, Endpoint, Pdh, TokenUuid};
use host_state::file::{Durability, replace};
use host_state::private_dir;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::inputs::PersistedMounts;
use crate::node::job_dir::JobDir;
use crate::output::BadEntries;
use crate::verdict::result;
use crate::verdict::{Evidence, Verdict};
use container_engine::Exit;

/// Version of the format. Other versions are refused.
pub const VERSION: u32 = 1;

/// A run whose results are not delivered. It contains no secret: the token is named by its file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UndeliveredRun {
    pub version: u32,
    pub container: ContainerUuid,
    pub attempt: TokenUuid,
    pub token_file: Option<PathBuf>,
    /// Variables with the API endpoint.
    pub environment: BTreeMap<String, String>,
    pub scratch: PathBuf,
    pub mounts: PersistedMounts,
    pub evidence: Evidence,
    /// Maximum size of the output in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_limit: Option<u64>,
    /// What becomes of entries of the output that cannot be saved.
    #[serde(default)]
    pub bad_entries: BadEntries,
    /// Exit of a command that ended by itself. Otherwise there is a verdict.
    pub exit: Option<Exit>,
    /// The verdict; set at once if no output is saved, else after the output is saved.
    pub verdict: Option<Verdict>,
    /// The log of the record since the start.
    pub first_log: Pdh,
    /// The final log.
    pub log: Option<Pdh>,
    /// The recorded state, once the API server accepted the final update. Nothing is left to
    /// deliver then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recorded: Option<ContainerState>,
    /// Cost of the run, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<f64>,
    /// The final `runtime_status` without the verdict. A dispatcher overwrites it while results
    /// wait.
    #[serde(default)]
    pub status: RuntimeStatus,
    /// result.json without the verdict.
    pub result: Value,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
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

/// Variables with the API endpoint.
pub fn variables(endpoint: &Endpoint) -> BTreeMap<String, String> {
    let certificates = endpoint.ca_file.as_ref();
    let certificates = certificates.map(|path| path.to_string_lossy().into_owned());
    let services = (!endpoint.keep_services.is_empty()).then(|| endpoint.keep_services.join(" "));
    let insecure = endpoint.insecure.then(|| "true".to_owned());
    [
        ("ARVADOS_API_HOST", Some(endpoint.host.clone())),
        ("ARVADOS_API_HOST_INSECURE", insecure),
        ("SSL_CERT_FILE", certificates),
        ("ARVADOS_KEEP_SERVICES", services),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name.to_owned(), value?)))
    .collect()
}

impl UndeliveredRun {
    /// Reads the record; `None` if there is none.
    pub fn read(dir: &JobDir) -> Result<Option<Self>, RecordError> {
        let path = dir.undelivered();
        let text = match private_dir::read(&path) {
            Ok(Some(text)) => text,
            Ok(None) => return Ok(None),
            Err(source) => return Err(RecordError::Read { path, source }),
        };
        let read = || -> serde_json::Result<Result<Self, u64>> {
            let value: Value = serde_json::from_slice(&text)?;
            match value["version"].as_u64() {
                Some(version) if version != u64::from(VERSION) => Ok(Err(version)),
                _ => serde_json::from_value(value).map(Ok),
            }
        };
        match read() {
            Ok(Ok(undelivered_run)) => Ok(Some(undelivered_run)),
            Ok(Err(version)) => Err(RecordError::Version { path, version }),
            Err(source) => Err(RecordError::Damaged { path, source }),
        }
    }

    /// Writes the file atomically. It survives the end of the process, but perhaps not a power
    /// failure.
    pub fn write(&self, dir: &JobDir) -> io::Result<()> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        replace(&dir.undelivered(), &text, Durability::Process)
    }

    /// result.json with this verdict.
    pub fn result(&self, verdict: &Verdict) -> Vec<u8> {
        let mut result = self.result.clone();
        result::set_verdict(&mut result, verdict);
        result::to_bytes(&result)
    }
}
