//! `main` of a dispatcher: the manual page, flags and configuration file, then the program.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use super::{exit_config_error, man_page};
use crate::config::{self, Config, FileDefault, Key, ValueSources};

/// Reads the flags, for which the configuration file supplies defaults by the keys in `own` and as
/// `more` says, and runs `program`.
pub fn main<F: Parser>(
    own: &[Key],
    more: impl Fn(&Config) -> Vec<FileDefault>,
    program: impl FnOnce(F, ValueSources, Option<Arc<Config>>) -> ExitCode,
) -> ExitCode {
    if let Some(code) = man_page::run_if_requested::<F>() {
        return code;
    }
    match config::parse::<F>(std::env::args_os(), own, more) {
        Ok((flags, origins, config)) => program(flags, origins, config.map(Into::into)),
        Err(error) => exit_config_error(&error.to_string()),
    }
}
