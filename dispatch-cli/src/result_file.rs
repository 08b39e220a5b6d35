//! Reads `result.json` in the log of a job: resource usage measured by crunch-run. Other executors
//! do not write it.

use arvados_client::Client;
use arvados_client::keep::KeepClient;
use serde_json::Value;

use crate::job::Job;
use crate::saved_log;

/// Content of `result.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct ResultFile(Value);

/// Reads the file, if the job has one.
pub async fn read(client: &Client, keep: &KeepClient, job: &Job) -> Option<ResultFile> {
    let bytes = saved_log::read_small_file(client, keep, job, "result.json").await?;
    serde_json::from_slice(&bytes).ok().map(ResultFile)
}

impl ResultFile {
    /// Peak memory, in bytes.
    pub fn peak_memory(&self) -> Option<u64> {
        self.0.get("peak_memory_bytes")?.as_u64()
    }

    /// CPU time, in seconds.
    pub fn cpu_seconds(&self) -> Option<f64> {
        self.0.get("cpu_seconds")?.as_f64()
    }

    /// The whole document.
    pub fn value(&self) -> &Value {
        &self.0
    }
}
