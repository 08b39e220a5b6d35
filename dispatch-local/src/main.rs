//! dispatch-local: runs containers on this machine, one crunch-run each.

mod backfill;
mod crunch_run;
mod crunch_run_process;
mod fairness;
mod gpu_discovery;
mod job_dir;
mod local;
mod machine;
mod machine_claims;
mod redelivery;
mod reservation;
mod resources;
mod scan;
mod scheduler;
mod start;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use dispatch_core::config;
use dispatch_core::config::{Config, FileDefault, Form, Key, ValueSources};
use dispatch_core::service::state_dir::StateDir;
use dispatch_core::service::{self, man_page};

use crunch_run::CrunchRun;
use local::Local;
use machine::ResourceCaps;
use machine_claims::MachineClaims;

/// Run the containers of an Arvados-style queue on this machine
///
/// It needs no scheduler and no container engine. SIGTERM stops the dispatcher and leaves running
/// containers alone; the next dispatch-local with the same --state-dir takes them over.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, after_help = man_page::help())]
struct Flags {
    /// Directory of job directories and other state; each dispatcher needs its own
    #[arg(long, value_name = "DIR")]
    state_dir: PathBuf,
    /// Directory for the files of running containers [default: scratch in --state-dir]
    #[arg(long, value_name = "DIR")]
    scratch_dir: Option<PathBuf>,
    /// Directory for cached images and data [default: cache in --state-dir]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    /// Path of crunch-run [default: beside this program, else in PATH]
    #[arg(long, value_name = "FILE")]
    crunch_run: Option<PathBuf>,
    /// Additional argument of crunch-run; may be given several times
    #[arg(
        long = "crunch-run-argument",
        value_name = "ARG",
        allow_hyphen_values = true
    )]
    crunch_run_arguments: Vec<String>,
    /// Maximum number of CPUs for containers [default: all of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    cpus: Option<u32>,
    /// Maximum memory for containers [default: all of this machine]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_positive_size)]
    memory: Option<u64>,
    /// Directory in which the dispatchers of this machine tell each other what their jobs hold, so
    /// that together they do not use more than it has [default: none, the machine is not shared]
    #[arg(long, value_name = "DIR")]
    machine_dir: Option<PathBuf>,
    /// No other dispatcher takes containers from this server: what a workflow waits for and can
    /// never start is cancelled, so that the workflow fails instead of waiting
    #[arg(long)]
    only_dispatcher: bool,
    #[command(flatten)]
    file: config::Flag,
    #[command(flatten)]
    common: service::Flags,
}

/// A key for other dispatchers, which the configuration file may have.
const KEYS: [Key; 1] = [Key::new("Containers.StagingAllowance", "", Form::Text)];

/// The defaults of crunch-run's flags in the configuration file.
fn crunch_run_defaults(config: &Config) -> Vec<FileDefault> {
    let (command, arguments, engine) = config.crunch_run_keys();
    let engine = engine.map(|engine| format!("--runtime-engine={engine}"));
    let arguments = arguments.into_iter().map(str::to_owned);
    let ours = [
        FileDefault {
            flag: "crunch_run",
            key: "Containers.CrunchRunCommand",
            values: command.into_iter().map(str::to_owned).collect(),
        },
        FileDefault {
            flag: "crunch_run_arguments",
            key: "Containers.RuntimeEngine, CrunchRunArgumentsList",
            values: engine.into_iter().chain(arguments).collect(),
        },
    ];
    ours.into_iter()
        .filter(|ours| !ours.values.is_empty())
        .collect()
}

fn main() -> ExitCode {
    service::main(&KEYS, crunch_run_defaults, run)
}

fn run(mut flags: Flags, _: ValueSources, config: Option<Arc<Config>>) -> ExitCode {
    flags.common.config = config;
    service::run(flags.common.clone(), async || {
        let state_dir = StateDir::acquire(&flags.state_dir)?;
        let program = CrunchRun::find(flags.crunch_run.as_deref()).ok_or(
            "cannot find crunch-run: put it beside dispatch-local or into PATH, or name it with --crunch-run",
        )?;
        let crunch_run = CrunchRun {
            program,
            scratch: state_dir.directory(flags.scratch_dir, "scratch")?,
            cache: state_dir.directory(flags.cache_dir, "cache")?,
            arguments: flags.crunch_run_arguments,
            server: flags.common.job_environment(),
        };
        let offer = ResourceCaps {
            cpus: flags.cpus,
            ram: flags.memory,
        };
        let label = state_dir.instance_id()?;
        let scratch = crunch_run.scratch.clone();
        let claims = flags.machine_dir.and_then(|dir| {
            // Another user may have put something else there. Jobs run without it.
            MachineClaims::open(&dir, &label)
                .inspect_err(|error| tracing::warn!(path = %dir.display(), %error, "this machine is not shared with other dispatchers: --machine-dir cannot be used"))
                .ok()
        });
        let mut local = Local::new(state_dir, scratch, offer, crunch_run, claims)?;
        local.only_dispatcher = flags.only_dispatcher;
        Ok((local, label))
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use dispatch_core::config;

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
        let arguments = ["x", "--state-dir=/r", "--config", path].map(std::ffi::OsString::from);
        let parsed =
            config::parse::<super::Flags>(arguments, &super::KEYS, super::crunch_run_defaults);
        let (flags, _, _) = parsed.unwrap();
        assert_eq!(flags.crunch_run.unwrap().to_str(), Some("/opt/crunch-run"));
        assert_eq!(
            flags.crunch_run_arguments,
            ["--runtime-engine=oci", "--pids-limit=9"]
        );
        assert_eq!(flags.common.reserve_extra_ram, 1024);
    }
}
