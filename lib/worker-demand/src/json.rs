//! The demand file in JSON, with the units of the Lisp form, for programs that do not read Lisp.

use serde::{Deserialize, Serialize};

use crate::demand::{Demand, UNIVERSAL_EPOCH};
use crate::error::ReadError;
use crate::value::{
    ARGUMENTS, EXECUTABLE, INTERVAL, MEMBER, NEEDED, STATUS, TIMESTAMP, UncheckedDemand,
};

#[derive(Serialize, Deserialize)]
struct JsonDemand {
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

/// Writes the file, with indentation.
pub fn to_json(demand: &Demand) -> Result<String, serde_json::Error> {
    let worker = demand.worker.clone();
    let file = JsonDemand {
        computation_status: demand.status.as_str().to_owned(),
        timestamp: demand.written_at + UNIVERSAL_EPOCH,
        member_id: demand.member_id.clone(),
        update_interval: demand.update_interval,
        slaves_needed: demand.needed.into(),
        slave_executable: worker.program,
        slave_libraries: worker.libraries,
        slave_arguments: worker.arguments,
    };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

/// Reads the file. A duplicate key is an error; an unknown key is ignored.
pub fn read(text: &str) -> Result<Demand, ReadError> {
    let file: JsonDemand =
        serde_json::from_str(text).map_err(|error| ReadError::Json(error.to_string()))?;
    let raw = UncheckedDemand {
        status: file.computation_status,
        timestamp: file.timestamp,
        member_id: file.member_id,
        update_interval: file.update_interval,
        needed: file.slaves_needed,
        program: file.slave_executable,
        libraries: file.slave_libraries,
        arguments: file.slave_arguments,
    };
    raw.validate().map_err(|(key, problem)| ReadError::Value {
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
