//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use dispatch_core::manual;
use dispatch_core::program::time;

use crate::decide::Limits;
use crate::oversee::Settings;
use crate::workers::Size;

/// Where workers are started.
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
/// The file is CL-MW's resource file, or what 'dispatch demand' writes. It says how many workers are wanted beside those
/// at work; jobs that wait, or started since the file was written, are subtracted. Only jobs that have not started are
/// ever stopped. When the file is too old, nothing is started and nothing is stopped; when it says that the
/// computation is finished, waiting jobs are stopped, and this ends with status 0. What the file names is run as
/// you: it must be yours or root's, and nobody else may be able to write it.
///
/// SIGTERM ends it and leaves jobs alone; the next one with the same --dir takes them up again, also after kill -9.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true, max_term_width = 110, after_help = manual::HELP)]
pub struct Flags {
    /// The demand file, in Lisp or JSON
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Where workers are started
    #[arg(long, value_name = "NAME")]
    pub scheduler: SchedulerName,
    /// Directory of this overseer: its name, and what workers say; for Slurm one that the nodes see, too
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Workers to keep while the computation goes on, even if none is needed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub min: u32,
    /// Worker jobs there may be at once, whatever is needed
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max: u32,
    /// Time between looks, like 30s
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub interval: Duration,
    /// Time from one start of jobs to the next
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub cool_down: Duration,
    /// Time from a job's start until its worker has surely come to its master
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub settle: Duration,
    /// Update intervals of the file after which it is too old
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub stale_after: u32,
    /// How long busy workers are waited for when the computation is finished
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = time)]
    pub finish_wait: Duration,
    /// How long jobs may still come of a start that did not end clearly; no others are started meanwhile
    #[arg(long, value_name = "TIME", default_value = "2m", value_parser = time)]
    pub doubt: Duration,
    /// How long one command of the scheduler may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub command_timeout: Duration,
    /// Processors of one worker
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: u32,
    /// Memory of one worker, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..))]
    pub memory_mib: u64,
    /// Added to every submission: an argument of sbatch, or a line for condor_submit; may be given several times
    #[arg(long = "submit-line", value_name = "TEXT", allow_hyphen_values = true)]
    pub lines: Vec<String>,
}

impl Flags {
    /// How to go about it.
    pub fn settings(&self) -> Settings {
        Settings {
            interval: self.interval.max(Duration::from_millis(100)),
            doubt: self.doubt.as_secs(),
            limits: Limits {
                min: self.min,
                max: self.max,
                cool_down: self.cool_down.as_secs(),
                settle: self.settle.as_secs(),
                finish_wait: self.finish_wait.as_secs(),
            },
        }
    }

    /// What a worker takes.
    pub fn size(&self) -> Size {
        Size {
            cpus: self.cpus,
            memory_mib: self.memory_mib,
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
