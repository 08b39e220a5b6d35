//! The commands, one file per command.

pub mod collection;
pub mod completions;
pub mod demand;
pub mod env;
pub mod explain;
pub mod gc;
pub mod get;
pub mod hold;
pub mod image;
pub mod info;
pub mod kill;
pub mod list;
pub mod logs;
pub mod priority;
pub mod put;
pub mod retry;
pub mod rm;
pub mod run_job;
pub mod show;
pub mod submit;
pub mod token;
pub mod up;
pub mod user;
pub mod wait;
