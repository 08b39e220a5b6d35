//! Observation: snapshots of the API server, and when to take them.
//!
//! Input: the [`Api`](crate::api::Api), its change events and poll intervals. Output: an
//! [`ApiSnapshot`](api_snapshot::ApiSnapshot) and the time of the next poll.

pub mod api_snapshot;
pub mod change_feed;
pub mod owners;
pub mod poll_schedule;
pub mod scheduler_silence;
pub mod token_scans;
