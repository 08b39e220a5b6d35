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
use dispatch_core::config::{Config, Given};
use dispatch_core::home::Home;
use dispatch_core::{config, manual, program};

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
    file: config::Flag,
    #[command(flatten)]
    common: program::Flags,
}

/// What the configuration file says, in terms of the flags.
fn given(config: &Config) -> Vec<Given> {
    let containers = &config.cluster.containers;
    let engine = containers.runtime_engine.as_deref();
    let arguments = containers.crunch_run_arguments_list.clone();
    let arguments: Vec<String> = engine
        .map(|engine| format!("--runtime-engine={engine}"))
        .into_iter()
        .chain(arguments.into_iter().flatten())
        .collect();
    let ours = [
        config::one(
            "crunch_run",
            "Containers.CrunchRunCommand",
            containers.crunch_run_command.clone(),
        ),
        config::list(
            "crunch_run_arguments",
            "Containers.RuntimeEngine, CrunchRunArgumentsList",
            Some(arguments).filter(|arguments| !arguments.is_empty()),
        ),
    ];
    ours.into_iter().flatten().chain(config.common()).collect()
}

fn main() -> ExitCode {
    if let Some(code) = manual::asked::<Flags>() {
        return code;
    }
    let (mut flags, _, config) = match config::parse::<Flags>(std::env::args_os(), given) {
        Ok(parsed) => parsed,
        Err(error) => return program::refuse(&error.to_string()),
    };
    flags.common.config = config.map(Into::into);
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
            server: flags.common.job_environment(),
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

    #[test]
    fn the_configuration_file_stands_for_flags() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        let text =
            "Clusters: {zzzzz: {Containers: {CrunchRunCommand: /opt/crunch-run, RuntimeEngine: oci,
            CrunchRunArgumentsList: [--pids-limit=9], ReserveExtraRAM: 1KiB}}}";
        std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
        let path = file.path().to_str().unwrap();
        let arguments = ["x", "--run-dir=/r", "--config", path].map(std::ffi::OsString::from);
        let parsed = dispatch_core::config::parse::<super::Flags>(arguments, super::given);
        let (flags, _, _) = parsed.unwrap();
        assert_eq!(flags.crunch_run.unwrap().to_str(), Some("/opt/crunch-run"));
        assert_eq!(
            flags.crunch_run_arguments,
            ["--runtime-engine=oci", "--pids-limit=9"]
        );
        assert_eq!(flags.common.reserve_extra_ram, 1024);
    }
}
