//! The command line's subcommands, and the run of a container.

pub mod cache;
pub mod check;
pub mod kill;
pub mod list;
pub mod man;
mod parse;
pub mod resume;
pub mod run;
pub mod stdin_config;

pub use parse::{Subcommand, parse};
