//! dispatch-condor: hands containers to HTCondor, one job each.

mod condor;
mod control;
mod error;
mod flags;
mod preflight;
pub mod query;
mod scheduler;
mod subcommands;
mod submit;
mod wakeup;

use std::process::ExitCode;
use std::sync::Arc;

use dispatch_core::config::{Config, ValueSources};
use dispatch_core::service;
use dispatch_core::service::state_dir::StateDir;

use condor::Condor;
use flags::Flags;
use subcommands::Commands;

/// The program: reads the command line and the configuration, and runs until it is stopped.
pub fn main() -> ExitCode {
    service::main(&flags::KEYS, flags::crunch_run_default, run)
}

fn run(mut flags: Flags, origins: ValueSources, config: Option<Arc<Config>>) -> ExitCode {
    flags.common.config = config;
    if let Some(subcommand) = flags.subcommands.subcommand() {
        let commands = flags.settings().map(|settings| Commands {
            flags: &flags,
            origins: &origins,
            settings,
        });
        return service::subcommands::run(&subcommand, flags.subcommands.json, commands);
    }
    service::run(flags.common.clone(), async || {
        let settings = flags.settings()?;
        let jobs = StateDir::acquire(&flags.state_dir)?;
        let label = jobs.instance_id()?;
        let timeout = flags.common.command_timeout;
        let condor = Condor::new(settings, jobs, label.clone(), timeout).with_monitoring();
        condor.check_reachable().await?;
        Ok((condor, label))
    })
}
