//! The command line: flags in, settings out.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use dispatch_core::service::{self, man_page};

use crate::decide::Limits;

/// Schedulers that can run workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SchedulerName {
    /// sbatch, squeue and scancel.
    Slurm,
    /// condor_submit, condor_q and condor_rm.
    Condor,
    /// Processes of this machine.
    Local,
}

/// Keeps as many worker jobs in a scheduler as a demand file asks for.
///
/// The file is the resource file of CL-MW, or the output of 'dispatch demand'. It says how many
/// workers are wanted beside the connected ones. Jobs that are pending, or that started after the
/// file was written, are subtracted. Only jobs that have not started are ever stopped.
///
/// While the file is stale, no job is started or stopped. When it says that the computation is
/// finished, pending jobs are stopped, and the overseer ends with status 0. The program that the
/// file names runs as you. So the file must belong to you or root, and nobody else may be able to
/// write it.
///
/// SIGTERM ends the overseer and leaves the jobs alone. The next overseer with the same
/// --state-dir takes them over, also after kill -9.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, max_term_width = 110, after_help = man_page::help())]
pub struct Flags {
    /// Demand file, in Lisp or JSON
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Scheduler that runs the workers
    #[arg(long, value_name = "NAME")]
    pub scheduler: SchedulerName,
    /// Directory of this overseer's state and of the output of its workers. With Slurm, all nodes
    /// should mount it at the same path
    #[arg(long, value_name = "DIR")]
    pub state_dir: PathBuf,
    /// Minimum number of workers while the computation goes on
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min_workers: u32,
    /// Maximum number of worker jobs at once
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max_workers: u32,
    /// Interval between two polls of the file and of the scheduler
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = service::POLL_INTERVALS.parser())]
    pub poll_interval: Duration,
    /// Minimum time between two starts of jobs
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = service::PAUSES.parser())]
    pub cool_down: Duration,
    /// Time from the start of a job until its worker is certainly connected to its master
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = service::PAUSES.parser())]
    pub worker_startup_time: Duration,
    /// Age of the file, in its update intervals, after which it is stale
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub stale_after: u32,
    /// Time to wait for busy workers once the computation is finished
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = service::PAUSES.parser())]
    pub finish_wait: Duration,
    /// Time to wait for the jobs of a start with an unknown outcome, before more are started
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = service::PAUSES.parser())]
    pub start_uncertainty: Duration,
    /// Timeout of one command of the scheduler
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = service::COMMAND_TIMEOUTS.parser())]
    pub command_timeout: Duration,
    /// Number of CPUs of one worker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: u32,
    /// Memory of one worker
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = units::parse_positive_size)]
    pub memory: u64,
    /// Argument of sbatch, or line of the condor_submit description, in addition to those of the
    /// overseer. May be given several times
    #[arg(
        long = "submit-option",
        value_name = "TEXT",
        allow_hyphen_values = true
    )]
    pub submit_options: Vec<String>,
}

impl Flags {
    /// Limits of decisions.
    pub fn limits(&self) -> Limits {
        Limits {
            min: self.min_workers,
            max: self.max_workers,
            cool_down: self.cool_down.as_secs(),
            worker_startup_time: self.worker_startup_time.as_secs(),
            finish_wait: self.finish_wait.as_secs(),
        }
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
