//! The demand file in JSON, with the units of the Lisp form, for programs that do not read Lisp.

use crate::demand::{Demand, UNIVERSAL_EPOCH};
use crate::error::ReadError;
use crate::value::UncheckedDemand;

/// Writes the file, with indentation.
pub fn to_json(demand: &Demand) -> Result<String, serde_json::Error> {
    let worker = demand.worker.clone();
    let file = UncheckedDemand {
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
    let file: UncheckedDemand =
        serde_json::from_str(text).map_err(|error| ReadError::Json(error.to_string()))?;
    file.validate().map_err(|(key, problem)| ReadError::Value {
        // The keys of both forms differ in this alone.
        key: key.replace('-', "_"),
        problem,
    })
}
