//! Checks Slurm's commands and their configuration before the service starts.
//!
//! Output: an error for the admin if a restart cannot help. A slurmctld that is down is only
//! logged.

use std::path::PathBuf;

use dispatch_core::scheduler::command::{Command, CommandError, CommandFailure};

/// Commands without which no container can run.
const REQUIRED_COMMANDS: [&str; 4] = ["squeue", "sbatch", "scancel", "scontrol"];

/// Why the service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum PreflightError {
    /// A command is not installed.
    #[error("{0}: install Slurm's client commands on this machine, in the PATH of this service")]
    NoCommand(CommandError),
    /// The file that SLURM_CONF names is not readable.
    #[error("SLURM_CONF names {}, which cannot be read: {source}", path.display())]
    NoFile {
        path: PathBuf,
        source: std::io::Error,
    },
    /// Slurm's configuration is broken.
    #[error("Slurm's commands do not work on this machine, see slurm.conf: {0}")]
    Configuration(String),
}

/// Runs each command with `--version`, which needs its configuration but no slurmctld.
pub async fn check() -> Result<(), PreflightError> {
    // The commands wait a minute for the file to appear.
    if let Some(path) = std::env::var_os("SLURM_CONF").map(PathBuf::from)
        && let Err(source) = path.metadata()
    {
        return Err(PreflightError::NoFile { path, source });
    }
    for name in REQUIRED_COMMANDS {
        match Command::new(name).args(["--version"]).run_checked().await {
            Ok(_) => {}
            Err(CommandFailure::NotCompleted(error @ CommandError::NotStarted { .. })) => {
                return Err(PreflightError::NoCommand(error));
            }
            Err(CommandFailure::Failed(message)) if !is_transient(&message) => {
                return Err(PreflightError::Configuration(message));
            }
            Err(failure) => tracing::warn!(
                error = %failure,
                "{name} --version failed; starting anyway because slurmctld may only be down"
            ),
        }
    }
    Ok(())
}

/// Whether the message means that slurmctld is down. Commands without a slurm.conf of their own
/// fetch it from slurmctld. If DNS has no entry for slurmctld, a later try fails too.
fn is_transient(message: &str) -> bool {
    message.contains("Could not establish a configuration source")
        && !message.contains("Unknown host")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_configuration_is_told_from_one_that_cannot_be_had_now() {
        #[rustfmt::skip]
        let rows = [
            ("squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\nsqueue: error: fetch_config: DNS SRV lookup failed\nsqueue: fatal: Could not establish a configuration source", false),
            ("squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Host name lookup failure\nsqueue: fatal: Could not establish a configuration source", true),
            ("squeue: error: _fetch_child: failed to fetch remote configs: Unable to contact slurm controller\nsqueue: fatal: Could not establish a configuration source", true),
            ("squeue: error: _parse_next_key: Parsing error at unrecognized key: BogusKey\nsqueue: fatal: Unable to process configuration file", false),
        ];
        for (message, expected) in rows {
            assert_eq!(is_transient(message), expected, "{message}");
        }
    }
}
