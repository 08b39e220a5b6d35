//! Faults that a test can ask an emulated server for.
//!
//! `POST /_emulation/fault` with an administrator's token and `{"fault": NAME, "seconds": N}`: for N seconds, every
//! second request to the API ends with that fault.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{ApiError, Result};

pub const PATH: &str = "/_emulation/fault";

/// Longest time that a fault lasts.
const LONGEST: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// Processes hold connections to a database that was restarted: valid tokens are answered 401.
    DatabaseRestart,
    /// The queue of requests is full: 503 with an empty body.
    Overload,
    /// The controller gave a request up: 500.
    Cancelled,
}

impl Fault {
    fn parse(name: &str) -> Option<Fault> {
        match name {
            "database-restart" => Some(Fault::DatabaseRestart),
            "overload" => Some(Fault::Overload),
            "context-canceled" => Some(Fault::Cancelled),
            _ => None,
        }
    }

    fn error(self) -> ApiError {
        match self {
            Fault::DatabaseRestart => ApiError::NotLoggedIn,
            Fault::Overload => ApiError::Busy,
            Fault::Cancelled => ApiError::Cancelled,
        }
    }
}

#[derive(Default)]
pub struct Faults(Mutex<Option<Present>>);

struct Present {
    fault: Fault,
    until: Instant,
    requests: u64,
}

impl Faults {
    /// Begin what the body asks for.
    pub fn begin(&self, fault: &Value, seconds: &Value) -> Result<Value> {
        let wanted = fault.as_str().and_then(Fault::parse).ok_or_else(|| {
            ApiError::invalid("fault must be database-restart, overload or context-canceled")
        })?;
        let length = seconds.as_u64().map(Duration::from_secs);
        let length = length
            .filter(|length| *length <= LONGEST)
            .ok_or_else(|| ApiError::invalid("seconds must be a number from 0 to 600"))?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Present {
            fault: wanted,
            until: Instant::now() + length,
            requests: 0,
        });
        Ok(json!({"fault": fault, "seconds": length.as_secs()}))
    }

    /// The end of this request, if it is one of those that end with a fault.
    pub fn strike(&self) -> Result<()> {
        let mut present = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(now) = present.as_mut().filter(|now| now.until > Instant::now()) else {
            return Ok(());
        };
        now.requests += 1;
        match now.requests % 2 {
            1 => Err(now.fault.error()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_request_ends_with_the_fault_for_its_time() {
        let faults = Faults::default();
        faults.strike().unwrap();
        faults
            .begin(&json!("database-restart"), &json!(60))
            .unwrap();
        let statuses: Vec<bool> = (0..4).map(|_| faults.strike().is_err()).collect();
        assert_eq!(statuses, [true, false, true, false]);
        faults.begin(&json!("overload"), &json!(0)).unwrap();
        faults.strike().unwrap();
        assert!(faults.begin(&json!("fire"), &json!(1)).is_err());
        assert!(faults.begin(&json!("overload"), &json!(601)).is_err());
    }
}
