//! `result.json` in a job's log: what the job took, as crunch-run measured it. Other executors write none.

use arvados_client::Client;
use arvados_client::keep::KeepClient;
use serde_json::Value;

use crate::job::Job;
use crate::saved_log;

/// What was measured.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultFile(Value);

/// Reads it, if the job has one.
pub async fn read(client: &Client, keep: &KeepClient, job: &Job) -> Option<ResultFile> {
    let bytes = saved_log::small(client, keep, job, "result.json").await?;
    serde_json::from_slice(&bytes).ok().map(ResultFile)
}

impl ResultFile {
    /// Most memory in use at once, in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        self.0.get("peak_memory_bytes")?.as_u64()
    }

    /// CPU time, in seconds.
    pub fn cpu_seconds(&self) -> Option<f64> {
        self.0.get("cpu_seconds")?.as_f64()
    }

    /// All of it.
    pub fn value(&self) -> &Value {
        &self.0
    }
}
