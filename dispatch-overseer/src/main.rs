//! dispatch-overseer: keeps as many worker jobs in a scheduler as a demand file asks for.
//!
//! Exit status: 0 when the computation is finished or after a signal, 78 when it cannot start as
//! configured.

mod controller;
mod decide;
mod demand_file;
mod flags;
mod job;
mod start_journal;
mod workers;

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::{self, man_page};

use controller::Overseer;
use flags::{Flags, SchedulerName};
use workers::SchedulerJobs;
use workers::condor::Condor;
use workers::local::Local;
use workers::slurm::Slurm;

fn main() -> ExitCode {
    if let Some(code) = man_page::run_if_requested::<Flags>() {
        return code;
    }
    let flags = Flags::try_parse().unwrap_or_else(|error| service::exit_usage_error(error));
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let done = runtime
        .map_err(Into::into)
        .and_then(|runtime| runtime.block_on(serve(&flags)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => service::exit_config_error(&error.to_string()),
    }
}

async fn serve(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let home = StateDir::acquire(&flags.state_dir)?;
    let label = home.instance_id()?;
    tracing::info!(label, file = %flags.file.display(), "started");
    let jobs = || {
        Ok::<_, Box<dyn Error>>(SchedulerJobs {
            label,
            logs: home.directory(None, "logs")?,
            command_timeout: flags.command_timeout,
            cpus: flags.cpus,
            memory_mib: flags.memory.div_ceil(1 << 20),
            submit_options: flags.submit_options.clone(),
        })
    };
    match flags.scheduler {
        SchedulerName::Local => {
            let dir = home.directory(None, "workers")?;
            Overseer::new(Local { dir }, home, flags)?.run().await?;
        }
        SchedulerName::Slurm => {
            let slurm = Slurm(jobs()?);
            Overseer::new(slurm, home, flags)?.run().await?;
        }
        SchedulerName::Condor => {
            let condor = Condor(jobs()?);
            Overseer::new(condor, home, flags)?.run().await?;
        }
    }
    Ok(())
}
