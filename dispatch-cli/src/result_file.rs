//! Reads `result.json` in the log of a job: resource usage measured by crunch-run. Other executors
//! do not write it.

use arvados_client::Client;
use arvados_client::keep::KeepClient;
use serde_json::Value;

use crate::job::Job;
use crate::saved_log;

/// Reads the file, if the job has one.
pub async fn read(client: &Client, keep: &KeepClient, job: &Job) -> Option<Value> {
    let bytes = saved_log::read_small_file(client, keep, job, "result.json").await?;
    serde_json::from_slice(&bytes).ok()
}

/// Peak memory, in bytes.
pub fn peak_memory(result: &Value) -> Option<u64> {
    result.get("peak_memory_bytes")?.as_u64()
}
