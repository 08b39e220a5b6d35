//! dispatch-condor: hands containers to HTCondor, one job each.

mod condor;
mod listing;
mod submission;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use dispatch_core::home::Home;
use dispatch_core::program;

use condor::Condor;
use submission::Settings;

/// Hands the containers of an Arvados-style queue to HTCondor, one job each.
///
/// Run it as an ordinary user that may submit jobs. SIGTERM stops taking containers and leaves jobs alone; the next
/// dispatch-condor of the same --job-dir takes them up again.
#[derive(Debug, Parser)]
#[command(version, args_override_self = true)]
struct Flags {
    /// Directory on this machine for each job's output and, in a file of mode 0600, its token
    #[arg(long, value_name = "DIR")]
    job_dir: PathBuf,
    /// crunch-run as on the execution nodes: an absolute path, and arguments, quoted like for a shell
    #[arg(long, value_name = "COMMAND", default_value = "/usr/bin/crunch-run")]
    crunch_run: String,
    /// Line added to every submit description, like '+AccountingGroup = "x"'; may be given several times
    #[arg(long = "submit-line", value_name = "LINE", allow_hyphen_values = true)]
    lines: Vec<String>,
    #[command(flatten)]
    common: program::Flags,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    program::run(flags.common.clone(), async || {
        let settings = Settings {
            crunch_run: shlex::split(&flags.crunch_run)
                .filter(|words| words.first().is_some_and(|path| Path::new(path).is_absolute()))
                .ok_or("--crunch-run does not begin with an absolute path: HTCondor starts it in a directory of its own")?,
            lines: flags.lines,
        };
        let jobs = Home::take(&flags.job_dir)?;
        let label = jobs.label()?;
        let condor = Condor::new(settings, jobs, label.clone(), flags.common.command_timeout);
        condor.check().await?;
        Ok((condor, label))
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
