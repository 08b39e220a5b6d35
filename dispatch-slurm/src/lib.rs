//! dispatch-slurm: runs the containers of an Arvados-style queue as Slurm jobs, one job each.

mod control;
mod error;
mod flags;
mod job_comment;
mod preflight;
pub mod query;
mod scheduler;
mod settings;
mod slurm;
mod subcommands;
mod submit;
mod wakeup;

use std::process::ExitCode;
use std::sync::Arc;

use dispatch_core::config::{Config, ValueSources};
use dispatch_core::service;
use dispatch_core::service::state_dir::StateDir;

use flags::Flags;
use slurm::Slurm;
use subcommands::Commands;

/// The program: reads the command line and the configuration, and runs until it is stopped.
pub fn main() -> ExitCode {
    service::main(&settings::KEYS, settings::crunch_run_default, run)
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
        let home = StateDir::acquire(&flags.state_dir)?;
        let instance_id = home.instance_id()?;
        let timeout = flags.common.command_timeout;
        let slurm = Slurm::new(settings, home, instance_id.clone(), timeout);
        slurm.initialize().await?;
        Ok((slurm, instance_id))
    })
}
