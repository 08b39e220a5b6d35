//! dispatch-slurm: hands containers to Slurm, one job each.

mod accounting;
mod capacity;
mod ending;
mod nice;
mod nodes;
mod slurm;
mod squeue;
mod submission;
mod template;
mod waiting;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use dispatch_core::home::Home;
use dispatch_core::program;

use slurm::Slurm;
use submission::{ARGUMENTS, GPU_ARGUMENTS, Settings};

/// Hands the containers of an Arvados-style queue to Slurm, one job each.
///
/// Run it as an ordinary user that may submit jobs. SIGTERM stops taking containers and leaves jobs alone; the next
/// dispatch-slurm of the same --shared-dir takes them up again.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Flags {
    /// Directory that all nodes see at the same place: job output, and each job's token in a file of mode 0600
    #[arg(long, value_name = "DIR")]
    shared_dir: PathBuf,
    /// crunch-run as on the nodes, with arguments; quoted like for a shell
    #[arg(long, value_name = "COMMAND", default_value = "crunch-run")]
    crunch_run: String,
    /// Argument of sbatch, with %U %C %M %T %G %W %P; may be given several times and replaces the usual ones
    #[arg(long = "sbatch-argument", value_name = "ARG", allow_hyphen_values = true, default_values = ARGUMENTS)]
    arguments: Vec<String>,
    /// Argument of sbatch for containers that ask for GPUs
    #[arg(long = "sbatch-gpu-argument", value_name = "ARG", allow_hyphen_values = true, default_values = GPU_ARGUMENTS)]
    gpu_arguments: Vec<String>,
    /// How far apart waiting jobs are put in Slurm's priority: more means fewer changes, less means lower nice values
    #[arg(long, value_name = "N", default_value_t = 10)]
    priority_spread: i64,
    #[command(flatten)]
    common: program::Flags,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    program::run(flags.common.clone(), async || {
        let settings = Settings {
            arguments: flags.arguments,
            gpu_arguments: flags.gpu_arguments,
            crunch_run: shlex::split(&flags.crunch_run)
                .filter(|words| !words.is_empty())
                .ok_or("--crunch-run is not a command: a quote is not closed, or it is empty")?,
        };
        settings.check()?;
        let home = Home::take(&flags.shared_dir)?;
        let label = home.label()?;
        let patience = flags.common.command_timeout;
        let slurm =
            Slurm::new(settings, home, label.clone(), patience).spread(flags.priority_spread);
        slurm.check().await?;
        Ok((slurm, label))
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
