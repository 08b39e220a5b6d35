//! dispatch-condor: hands containers to HTCondor, one job each.

mod analysis;
mod beside;
mod capacity;
mod check;
mod complaint;
mod condor;
mod dry_run;
mod ending;
mod events;
mod flags;
mod halves;
mod hand_over;
mod lines;
mod listing;
mod policy;
mod pool;
mod prio;
mod quote;
mod submission;
mod unmatched;
mod waiting;

use std::process::ExitCode;

use dispatch_core::home::Home;
use dispatch_core::{config, errand, manual, program};

use beside::Program;
use condor::Condor;
use flags::Flags;

fn main() -> ExitCode {
    if let Some(code) = manual::asked::<Flags>() {
        return code;
    }
    let parsed = config::parse::<Flags>(std::env::args_os(), flags::given);
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
        let jobs = Home::take(&flags.job_dir)?;
        let label = jobs.label()?;
        let patience = flags.common.command_timeout;
        let condor = Condor::new(settings, jobs, label.clone(), patience).that_serves();
        condor.check().await?;
        Ok((condor, label))
    })
}
