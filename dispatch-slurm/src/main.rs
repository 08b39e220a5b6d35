//! dispatch-slurm: hands containers to Slurm, one job each.

mod accounting;
mod arrays;
mod beside;
mod capacity;
mod check;
mod dry_run;
mod ending;
mod flags;
mod gathering;
mod haste;
mod nice;
mod nodes;
mod refusals;
mod settings;
mod slurm;
mod squeue;
mod start;
mod submission;
mod waiting;
mod wake;

use std::process::ExitCode;

use dispatch_core::home::Home;
use dispatch_core::{config, errand, manual, program};

use beside::Program;
use flags::Flags;
use slurm::Slurm;

fn main() -> ExitCode {
    if let Some(code) = manual::asked::<Flags>() {
        return code;
    }
    let parsed = config::parse::<Flags>(std::env::args_os(), settings::given);
    let (mut flags, origins, config) = match parsed {
        Ok(parsed) => parsed,
        Err(error) => return program::refuse(&error.to_string()),
    };
    flags.common.config = config.map(Into::into);
    if let Some(errand) = flags.errands.errand() {
        let program = Program::new(&flags, &origins);
        return errand::run(&errand, flags.errands.format, program);
    }
    program::run(flags.common.clone(), async || {
        let settings = flags.settings()?;
        let home = Home::take(&flags.shared_dir)?;
        let label = home.label()?;
        let patience = flags.common.command_timeout;
        let slurm =
            Slurm::new(settings, home, label.clone(), patience).spread(flags.priority_spread);
        slurm.check().await?;
        Ok((slurm, label))
    })
}
