//! crunch-run executes one container: inputs, image, engine, limits, statistics, logs, output.

pub mod attempt;
pub mod commands;
pub mod environment;
pub mod error_chain;
pub mod flags;
pub mod gateway;
pub mod gpu;
pub mod inputs;
pub mod limits;
pub mod logs;
pub mod node;
pub mod output;
mod own_record;
pub mod stats;
pub mod status_line;
pub mod undelivered;
pub mod verdict;
