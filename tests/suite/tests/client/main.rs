//! The client library against the embedded API server, over its real TLS.

mod arvados;
mod attempts;
mod collections;
mod dispatcher;
mod dispatcher_tokens;
mod events;
mod failures;
mod fixture;
mod listing;
mod scripted;
mod snapshot;
mod workflows;
