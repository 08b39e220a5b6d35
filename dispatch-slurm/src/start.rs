//! What must be there for a start: Slurm's commands and their configuration. A controller that is away is waited for.

use std::path::PathBuf;

use dispatch_core::command::{Command, CommandError, Failure};

/// Without which no container runs.
const COMMANDS: [&str; 4] = ["squeue", "sbatch", "scancel", "scontrol"];

/// Why it is of no use to start. The error is for the admin.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// A command.
    #[error("{0}: install Slurm's client commands on this machine, in the PATH of this service")]
    NoCommand(CommandError),
    /// The file that SLURM_CONF names.
    #[error("SLURM_CONF names {}, which cannot be read: {source}", path.display())]
    NoFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Slurm's own configuration.
    #[error("Slurm's commands do not work on this machine, see slurm.conf: {0}")]
    Configuration(String),
}

/// Whether Slurm's commands are there and find their configuration. No answer of slurmctld is needed for that.
pub async fn check() -> Result<(), Unusable> {
    // They look for a minute whether it appears.
    if let Some(path) = std::env::var_os("SLURM_CONF").map(PathBuf::from)
        && let Err(source) = path.metadata()
    {
        return Err(Unusable::NoFile { path, source });
    }
    for name in COMMANDS {
        match Command::new(name).args(["--version"]).succeed().await {
            Ok(_) => {}
            Err(Failure::NoAnswer(error @ CommandError::NotStarted { .. })) => {
                return Err(Unusable::NoCommand(error));
            }
            Err(Failure::Said(said)) if !passes(&said) => {
                return Err(Unusable::Configuration(said));
            }
            Err(failure) => tracing::warn!("{name} does not work yet: {failure}"),
        }
    }
    Ok(())
}

/// Without a slurm.conf of their own they ask slurmctld for it, which may be away; where the network's names have no
/// slurmctld either, nothing comes of it.
fn passes(said: &str) -> bool {
    said.contains("Could not establish a configuration source") && !said.contains("Unknown host")
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
        for (said, expected) in rows {
            assert_eq!(passes(said), expected, "{said}");
        }
    }
}
