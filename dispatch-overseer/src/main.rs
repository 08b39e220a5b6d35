//! dispatch-overseer: keeps as many worker jobs in a scheduler as a demand file asks for.
//!
//! Exit status: 0 when the computation is finished or after a signal, 78 when it cannot start as configured.

mod decide;
mod flags;
mod job;
mod memory;
mod oversee;
mod reading;
mod workers;

use std::error::Error;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use dispatch_core::home::Home;
use dispatch_core::{manual, program};

use flags::{Flags, SchedulerName};
use oversee::{End, Overseer};
use workers::Workers;
use workers::condor::Condor;
use workers::local::Local;
use workers::slurm::Slurm;

fn main() -> ExitCode {
    if let Some(code) = manual::asked::<Flags>() {
        return code;
    }
    let flags = Flags::try_parse().unwrap_or_else(|error| program::refuse_flags(error));
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
        Err(error) => program::refuse(&error.to_string()),
    }
}

async fn serve(flags: &Flags) -> Result<(), Box<dyn Error>> {
    let home = Home::take(&flags.dir)?;
    let label = home.label()?;
    let (patience, size, more) = (flags.command_timeout, flags.size(), flags.lines.clone());
    tracing::info!(label, file = %flags.file.display(), "started");
    match flags.scheduler {
        SchedulerName::Local => {
            let dir = home.directory(None, "workers")?;
            oversee(Local { dir }, home, flags).await
        }
        SchedulerName::Slurm => {
            let logs = home.directory(None, "logs")?;
            let slurm = Slurm {
                label,
                logs,
                patience,
                size,
                more,
            };
            oversee(slurm, home, flags).await
        }
        SchedulerName::Condor => {
            let logs = home.directory(None, "logs")?;
            let condor = Condor {
                label,
                logs,
                patience,
                size,
                more,
            };
            oversee(condor, home, flags).await
        }
    }
}

async fn oversee<W: Workers>(workers: W, home: Home, flags: &Flags) -> Result<(), Box<dyn Error>> {
    let overseer = Overseer::new(
        workers,
        home,
        &flags.file,
        flags.stale_after,
        flags.settings(),
    )?;
    match overseer.run().await? {
        End::Finished => tracing::info!("the computation is finished"),
        End::Stopped => tracing::info!("stopped; jobs were left as they are"),
    }
    Ok(())
}
