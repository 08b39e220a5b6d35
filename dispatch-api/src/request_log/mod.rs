//! What the log says about requests: the access log, and warnings about rejected requests.

pub mod access_log;
pub mod redact;
pub mod rejection_log;
