//! Containers and the requests for them: rules first (pure), then what happens in a transaction.

pub mod constraints;
pub mod image;
pub mod lifecycle;
pub mod mounts;
pub mod outcome;
pub mod ports;
pub mod priority;
pub mod request;
pub mod reuse;
pub mod spec;
pub mod state;
