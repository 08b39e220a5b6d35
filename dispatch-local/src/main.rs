//! dispatch-local: runs containers on this machine, one crunch-run each.

mod admit;
mod executor;
mod gpus;
mod job_dir;
mod load;
mod local;
mod machine;
mod process;
mod reservation;
mod undelivered;

use std::path::PathBuf;
use std::process::ExitCode;

use bytesize::ByteSize;
use clap::Parser;
use dispatch_core::home::Home;
use dispatch_core::{manual, program};

use executor::Executor;
use local::Local;
use machine::Offer;

/// Runs the containers of an Arvados-style queue on this machine.
///
/// Needs no scheduler and no container engine. SIGTERM stops taking containers and leaves the running ones alone; the
/// next dispatch-local with the same --run-dir takes them up again.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, after_help = manual::HELP)]
struct Flags {
    /// Directory of the jobs' state; one dispatch-local per directory
    #[arg(long, value_name = "DIR")]
    run_dir: PathBuf,
    /// Where containers get their scratch space; the default is in the run directory
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
    /// Where images are kept unpacked; the default is in the run directory
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// The crunch-run program; else the one beside this program, or in PATH
    #[arg(long, value_name = "FILE")]
    crunch_run: Option<PathBuf>,
    /// One more argument for crunch-run; may be given several times
    #[arg(
        long = "crunch-run-argument",
        value_name = "ARG",
        allow_hyphen_values = true
    )]
    crunch_run_arguments: Vec<String>,
    /// Use at most so many CPUs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// Use at most so much memory, like 16GiB
    #[arg(long, value_name = "SIZE")]
    ram: Option<ByteSize>,
    #[command(flatten)]
    common: program::Flags,
}

fn main() -> ExitCode {
    if let Some(code) = manual::asked::<Flags>() {
        return code;
    }
    let flags = Flags::try_parse().unwrap_or_else(|error| program::refuse_flags(error));
    program::run(flags.common.clone(), async || {
        let run_dir = Home::take(&flags.run_dir)?;
        let program = Executor::find(flags.crunch_run.as_deref()).ok_or(
            "cannot find crunch-run: put it beside dispatch-local or into PATH, or name it with --crunch-run",
        )?;
        let executor = Executor {
            program,
            scratch: run_dir.directory(flags.scratch, "scratch")?,
            cache: run_dir.directory(flags.cache, "cache")?,
            arguments: flags.crunch_run_arguments,
        };
        let offer = Offer {
            cpus: flags.cpus,
            ram: flags.ram.map(|size| size.as_u64()),
        };
        let label = run_dir.label()?;
        let scratch = executor.scratch.clone();
        Ok((Local::new(run_dir, scratch, offer, executor)?, label))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_well_formed() {
        super::Flags::command().debug_assert();
    }
}
