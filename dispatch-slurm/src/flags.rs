//! What dispatch-slurm can be told on its command line.

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use dispatch_core::{config, errand, manual, program};

use crate::settings::{PerPartition, Settings};
use crate::submission::{ARGUMENTS, GPU_ARGUMENTS};

/// Hands the containers of an Arvados-style queue to Slurm, one job each.
///
/// Run it as an ordinary user that may submit jobs. SIGTERM stops taking containers and leaves jobs alone; the next
/// dispatch-slurm of the same --shared-dir takes them up again.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, after_help = manual::HELP)]
pub struct Flags {
    /// Directory that all nodes see at the same place: job output, and each job's token in a file of mode 0600
    #[arg(long, value_name = "DIR")]
    pub shared_dir: PathBuf,
    #[command(flatten)]
    pub file: config::Flag,
    /// crunch-run as on the nodes, with arguments; quoted like for a shell
    #[arg(long, value_name = "COMMAND", default_value = "crunch-run")]
    pub crunch_run: String,
    /// Argument of sbatch, with %U %C %M %T %G %W %P %I; may be given several times and replaces the usual ones
    #[arg(long = "sbatch-argument", value_name = "ARG", allow_hyphen_values = true, default_values = ARGUMENTS)]
    pub arguments: Vec<String>,
    /// Argument of sbatch for containers that ask for GPUs
    #[arg(long = "sbatch-gpu-argument", value_name = "ARG", allow_hyphen_values = true, default_values = GPU_ARGUMENTS)]
    pub gpu_arguments: Vec<String>,
    /// Account that jobs are charged to, of one partition or of all others; may be given several times, as the next three
    #[arg(long, value_name = "[PARTITION:]NAME")]
    pub account: Vec<String>,
    /// Quality of service
    #[arg(long, value_name = "[PARTITION:]NAME")]
    pub qos: Vec<String>,
    /// Reservation
    #[arg(long, value_name = "[PARTITION:]NAME")]
    pub reservation: Vec<String>,
    /// Features that nodes must have, like instancetype=%I
    #[arg(long, value_name = "[PARTITION:]FEATURES")]
    pub constraint: Vec<String>,
    /// How far apart waiting jobs are put in Slurm's priority: more means fewer changes, less means lower nice values
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub priority_spread: i64,
    /// Whether many equal containers go out as one job array
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub arrays: Arrays,
    /// Cluster to submit to, where it is not this machine's own
    #[arg(long, value_name = "NAME")]
    pub clusters: Option<String>,
    /// Time for fetching inputs and saving results, on top of a container's run time limit
    #[arg(long, value_name = "TIME", default_value = "60m", value_parser = program::time)]
    pub staging_allowance: Duration,
    /// How long before the end of its time a job is told to stop and save what it has; 0s: it is not told
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = program::time)]
    pub warn_before_end: Duration,
    #[command(flatten)]
    pub errands: errand::Flags,
    #[command(flatten)]
    pub common: program::Flags,
}

/// Whether there are job arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Arrays {
    /// Never: one job each.
    Off,
    /// Of eight or more containers that wait at the same time and get the same arguments of sbatch.
    Auto,
}

impl Flags {
    /// What the admin set, checked.
    pub fn settings(&self) -> Result<Settings, Box<dyn Error + Send + Sync>> {
        let config = self.common.config.as_deref();
        let mut environment = self.common.job_environment();
        let slurm = config.map(|config| &config.cluster.containers.slurm);
        let more = slurm.and_then(|slurm| slurm.sbatch_environment_variables.clone());
        let mut more = more.unwrap_or_default();
        more.remove(config::SAMPLE);
        if more.contains_key("ARVADOS_API_TOKEN") {
            return Err("take ARVADOS_API_TOKEN out of SbatchEnvironmentVariables: each job has a token of its own".into());
        }
        environment.extend(more);
        let settings = Settings {
            arguments: self.arguments.clone(),
            gpu_arguments: self.gpu_arguments.clone(),
            crunch_run: shlex::split(&self.crunch_run)
                .filter(|words| !words.is_empty())
                .ok_or("--crunch-run is not a command: a quote is not closed, or it is empty")?,
            account: PerPartition::of(&self.account),
            qos: PerPartition::of(&self.qos),
            reservation: PerPartition::of(&self.reservation),
            constraint: PerPartition::of(&self.constraint),
            clusters: self.clusters.clone(),
            environment,
            arrays: self.arrays == Arrays::Auto,
            types: config
                .map(config::Config::instance_types)
                .unwrap_or_default(),
            staging_minutes: self.staging_allowance.as_secs().div_ceil(60),
            warning_seconds: self.warn_before_end.as_secs(),
        };
        settings.check()?;
        Ok(settings)
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
