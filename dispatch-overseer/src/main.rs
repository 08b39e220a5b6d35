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

use controller::{ExitReason, Overseer};
use flags::{Flags, SchedulerName};
use workers::WorkerBackend;
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
    let (command_timeout, resources) = (flags.command_timeout, flags.resources());
    let submit_options = flags.submit_options.clone();
    tracing::info!(label, file = %flags.file.display(), "started");
    match flags.scheduler {
        SchedulerName::Local => {
            let dir = home.directory(None, "workers")?;
            run_overseer(Local { dir }, home, flags).await
        }
        SchedulerName::Slurm => {
            let logs = home.directory(None, "logs")?;
            let slurm = Slurm {
                label,
                logs,
                command_timeout,
                resources,
                extra_arguments: submit_options,
            };
            run_overseer(slurm, home, flags).await
        }
        SchedulerName::Condor => {
            let logs = home.directory(None, "logs")?;
            let condor = Condor {
                label,
                logs,
                command_timeout,
                resources,
                extra_lines: submit_options,
            };
            run_overseer(condor, home, flags).await
        }
    }
}

async fn run_overseer<W: WorkerBackend>(
    backend: W,
    home: StateDir,
    flags: &Flags,
) -> Result<(), Box<dyn Error>> {
    let overseer = Overseer::new(
        backend,
        home,
        &flags.file,
        flags.stale_after,
        flags.settings(),
    )?;
    match overseer.run().await? {
        ExitReason::Finished => tracing::info!("the computation is finished"),
        ExitReason::Stopped => {
            tracing::info!("stopped by a signal; worker jobs are left as they are")
        }
    }
    Ok(())
}
