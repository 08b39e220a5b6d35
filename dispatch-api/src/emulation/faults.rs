//! Faults that a test can start on an emulated server.
//!
//! `POST /_emulation/fault` with an administrator's token and `{"fault": NAME, "seconds": N}`: for
//! N seconds, every second API request fails with this fault.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::error::{ApiError, Result};

pub const FAULT_PATH: &str = "/_emulation/fault";

const MAX_FAULT_DURATION: Duration = Duration::from_secs(600);

/// The error with which a request fails.
fn error_of(fault: &str) -> Option<fn() -> ApiError> {
    match fault {
        // The database was restarted under open connections: valid tokens get status 401.
        "database-restart" => Some(|| ApiError::NotLoggedIn),
        // The request queue is full: status 503 with an empty body.
        "overload" => Some(|| ApiError::Busy),
        // The controller cancelled the request: status 500.
        "context-canceled" => Some(|| ApiError::Cancelled),
        _ => None,
    }
}

#[derive(Default)]
pub struct Faults(Mutex<Option<ActiveFault>>);

struct ActiveFault {
    error: fn() -> ApiError,
    until: Instant,
    requests: u64,
}

impl Faults {
    /// Starts the fault that the request body names.
    pub fn start(&self, fault: &Value, seconds: &Value) -> Result<Value> {
        let error = fault.as_str().and_then(error_of).ok_or_else(|| {
            ApiError::invalid("fault must be database-restart, overload or context-canceled")
        })?;
        let length = seconds.as_u64().map(Duration::from_secs);
        let length = length
            .filter(|length| *length <= MAX_FAULT_DURATION)
            .ok_or_else(|| ApiError::invalid("seconds must be a number from 0 to 600"))?;
        *self.0.lock() = Some(ActiveFault {
            error,
            until: Instant::now() + length,
            requests: 0,
        });
        Ok(json!({"fault": fault, "seconds": length.as_secs()}))
    }

    /// Fails every second request while a fault is active.
    pub fn inject(&self) -> Result<()> {
        let mut active = self.0.lock();
        let Some(now) = active.as_mut().filter(|now| now.until > Instant::now()) else {
            return Ok(());
        };
        now.requests += 1;
        match now.requests % 2 {
            1 => Err((now.error)()),
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
        faults.inject().unwrap();
        faults
            .start(&json!("database-restart"), &json!(60))
            .unwrap();
        let statuses: Vec<bool> = (0..4).map(|_| faults.inject().is_err()).collect();
        assert_eq!(statuses, [true, false, true, false]);
        faults.start(&json!("overload"), &json!(0)).unwrap();
        faults.inject().unwrap();
        assert!(faults.start(&json!("fire"), &json!(1)).is_err());
        assert!(faults.start(&json!("overload"), &json!(601)).is_err());
    }
}
