//! The same file in JSON, for programs that read no Lisp. Units are the same, too.

use serde::{Deserialize, Serialize};

use crate::value::{ARGUMENTS, EXECUTABLE, INTERVAL, MEMBER, NEEDED, Raw, STATUS, TIMESTAMP};
use crate::{Demand, ReadError, UNIVERSAL_EPOCH};

#[derive(Serialize, Deserialize)]
struct Twin {
    computation_status: String,
    timestamp: u64,
    member_id: String,
    update_interval: u64,
    slaves_needed: u64,
    slave_executable: String,
    #[serde(default)]
    slave_libraries: Vec<String>,
    slave_arguments: Vec<String>,
}

/// The file, on several lines.
pub fn to_json(demand: &Demand) -> Result<String, serde_json::Error> {
    let worker = demand.worker.clone();
    let twin = Twin {
        computation_status: demand.status.word().to_owned(),
        timestamp: demand.written_at + UNIVERSAL_EPOCH,
        member_id: demand.member_id.clone(),
        update_interval: demand.update_interval,
        slaves_needed: demand.needed.into(),
        slave_executable: worker.program,
        slave_libraries: worker.libraries,
        slave_arguments: worker.arguments,
    };
    Ok(serde_json::to_string_pretty(&twin)? + "\n")
}

/// Reads it. A key that is there twice is an error of its type's, and unknown ones are passed over.
pub fn read(text: &str) -> Result<Demand, ReadError> {
    let twin: Twin =
        serde_json::from_str(text).map_err(|error| ReadError::Json(error.to_string()))?;
    let raw = Raw {
        status: twin.computation_status,
        timestamp: twin.timestamp,
        member_id: twin.member_id,
        update_interval: twin.update_interval,
        needed: twin.slaves_needed,
        program: twin.slave_executable,
        libraries: twin.slave_libraries,
        arguments: twin.slave_arguments,
    };
    raw.check().map_err(|(key, problem)| ReadError::Value {
        key: json_key(key),
        problem,
    })
}

fn json_key(key: &'static str) -> &'static str {
    match key {
        STATUS => "computation_status",
        TIMESTAMP => "timestamp",
        MEMBER => "member_id",
        INTERVAL => "update_interval",
        NEEDED => "slaves_needed",
        EXECUTABLE => "slave_executable",
        ARGUMENTS => "slave_arguments",
        other => other,
    }
}
