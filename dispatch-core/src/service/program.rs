//! `main` of a dispatcher: the manual page, flags and configuration file, then the program.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;

use super::{exit_config_error, man_page};
use crate::config::{self, Config, FileDefault, ValueSources};

/// Reads the flags, for which the configuration file supplies defaults, and runs `program`.
pub fn main<F: Parser>(
    file_defaults: impl Fn(&Config) -> Vec<FileDefault>,
    program: impl FnOnce(F, ValueSources, Option<Arc<Config>>) -> ExitCode,
) -> ExitCode {
    if let Some(code) = man_page::run_if_requested::<F>() {
        return code;
    }
    match config::parse::<F>(std::env::args_os(), file_defaults) {
        Ok((flags, origins, config)) => program(flags, origins, config.map(Into::into)),
        Err(error) => exit_config_error(&error.to_string()),
    }
}
