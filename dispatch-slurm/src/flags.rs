//! Command line of dispatch-slurm.
//!
//! Input: arguments and the configuration file. Output: checked [`Settings`].

use std::error::Error;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum, value_parser};
use dispatch_core::config;
use dispatch_core::model::staging_allowance::StagingAllowance;
use dispatch_core::scheduler::owner_map::OwnerMap;
use dispatch_core::service::{self, man_page, subcommands};

use crate::settings::{ENVIRONMENT_KEY, PerPartition, Settings, check_argument};
use crate::submit::sbatch::{DEFAULT_ARGUMENTS, DEFAULT_GPU_ARGUMENTS};

/// Run the containers of an Arvados-style queue as Slurm jobs, one job each
///
/// Run it as an ordinary user that may submit jobs. SIGTERM stops the dispatcher and leaves its
/// jobs alone; the next dispatch-slurm with the same --state-dir takes them over.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, after_help = man_page::help())]
pub struct Flags {
    /// Directory that all nodes mount at the same path, for job output and token files (mode 0600)
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    #[command(flatten)]
    pub file: config::Flag,
    /// Command that starts crunch-run on the nodes, with arguments, quoted as in a shell
    #[arg(long, value_name = "COMMAND", default_value = "crunch-run")]
    pub crunch_run: String,
    /// Argument of sbatch for every container, a template with %U %C %M %T %G %W %P %I %N
    /// %u %g. May be given several times; replaces all defaults
    #[arg(long = "sbatch-argument", value_name = "ARG", allow_hyphen_values = true, default_values = DEFAULT_ARGUMENTS)]
    pub arguments: Vec<String>,
    /// Argument of sbatch for containers that request GPUs, a template. May be given several times;
    /// replaces the default
    #[arg(long = "sbatch-gpu-argument", value_name = "ARG", allow_hyphen_values = true, default_values = DEFAULT_GPU_ARGUMENTS)]
    pub gpu_arguments: Vec<String>,
    /// Argument of sbatch for preemptible containers, a template, like --partition=low. May be
    /// given several times
    #[arg(
        long = "preemptible-sbatch-argument",
        value_name = "ARG",
        allow_hyphen_values = true
    )]
    pub preemptible_arguments: Vec<String>,
    /// Name of the GPUs that have a hardware target, for %N, like 8.0=a100; may be given several
    /// times
    #[arg(long = "gpu-model", value_name = "TARGET=NAME", value_parser = parse_gpu_model)]
    pub gpu_models: Vec<(String, String)>,
    /// File that maps users and projects to arguments of sbatch, such as an account; read again
    /// when it changes
    #[arg(long, value_name = "FILE")]
    pub owner_map: Option<PathBuf>,
    /// Account that jobs are charged to, for one partition or for all others; may be given
    /// several times
    #[arg(long, value_name = "[PARTITION:]NAME")]
    pub account: Vec<String>,
    /// Quality of service of jobs, for one partition or for all others; may be given
    /// several times
    #[arg(long, value_name = "[PARTITION:]NAME")]
    pub qos: Vec<String>,
    /// Reservation that jobs use, for one partition or for all others; may be given
    /// several times
    #[arg(long, value_name = "[PARTITION:]NAME")]
    pub reservation: Vec<String>,
    /// Features that nodes must have, like instancetype=%I, for one partition or for all others;
    /// may be given several times
    #[arg(long, value_name = "[PARTITION:]FEATURES")]
    pub constraint: Vec<String>,
    /// Room for each pending job of an account in Slurm's priority. A larger one needs fewer
    /// changes of jobs, a smaller one needs lower nice values
    #[arg(long, value_name = "N", default_value_t = DEFAULT_PRIORITY_SPREAD, value_parser = value_parser!(i64).range(PRIORITY_SPREADS))]
    pub priority_spread: i64,
    /// Whether to submit containers with equal requests as one job array
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub arrays: ArrayMode,
    /// Cluster to submit to [default: the cluster of this machine]
    #[arg(long, value_name = "NAME")]
    pub clusters: Option<String>,
    /// Time to fetch inputs and save results, added to the run time limit of a container; auto is
    /// 5 minutes, the limit once more and half a minute per GiB of disk, at most 60 minutes
    #[arg(long, value_name = "TIME", default_value = "auto")]
    pub staging_allowance: StagingAllowance,
    /// Time before its time limit at which a job is signaled to stop and save its results; 0
    /// disables the signal
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = service::PAUSES.parser())]
    pub warn_before_end: Duration,
    #[command(flatten)]
    pub subcommands: subcommands::Flags,
    #[command(flatten)]
    pub common: service::Flags,
}

/// Default of `--priority-spread`.
const DEFAULT_PRIORITY_SPREAD: i64 = 10;
/// Room for each pending job in Slurm's priority; 0 means the default, as in Arvados.
const PRIORITY_SPREADS: RangeInclusive<i64> = 0..=1_000_000;

/// Use of job arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ArrayMode {
    /// Never submit arrays: one job each
    Off,
    /// Submit an array for eight or more pending containers with the same sbatch arguments
    Auto,
}

impl Flags {
    /// Checks the flags and the configuration file.
    pub fn settings(&self) -> Result<Settings, Box<dyn Error + Send + Sync>> {
        let config = self.common.config.as_deref();
        let mut environment = self.common.job_environment();
        let more = config.map(|config| config.map(ENVIRONMENT_KEY));
        let more = more.unwrap_or_default();
        if more.contains_key("ARVADOS_API_TOKEN") {
            return Err("remove ARVADOS_API_TOKEN from SbatchEnvironmentVariables: each job has a token of its own".into());
        }
        environment.extend(more);
        let settings = Settings {
            arguments: self.arguments.clone(),
            gpu_arguments: self.gpu_arguments.clone(),
            preemptible_arguments: self.preemptible_arguments.clone(),
            gpu_models: self.gpu_models.iter().cloned().collect(),
            owner_map: OwnerMap::for_command(
                self.owner_map.as_deref(),
                check_argument,
                self.subcommands.works_without_owner_map(),
            )?,
            crunch_run: shlex::split(&self.crunch_run)
                .filter(|words| !words.is_empty())
                .ok_or("--crunch-run is not a command: a quote is not closed, or it is empty")?,
            account: PerPartition::parse(&self.account),
            qos: PerPartition::parse(&self.qos),
            reservation: PerPartition::parse(&self.reservation),
            constraint: PerPartition::parse(&self.constraint),
            clusters: self.clusters.clone(),
            environment,
            priority_spread: match self.priority_spread {
                0 => DEFAULT_PRIORITY_SPREAD,
                spread => spread,
            },
            arrays: self.arrays == ArrayMode::Auto,
            types: config
                .map(config::Config::instance_types)
                .unwrap_or_default(),
            staging: self.staging_allowance,
            warning_seconds: self.warn_before_end.as_secs(),
        };
        settings.check()?;
        Ok(settings)
    }
}

/// Parses `TARGET=NAME`.
fn parse_gpu_model(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((target, name)) if !target.is_empty() && !name.is_empty() => {
            Ok((target.to_owned(), name.to_owned()))
        }
        _ => Err("give a hardware target and the name of the model, like 8.0=a100".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_flags_are_well_formed() {
        super::Flags::command().debug_assert();
    }
}
