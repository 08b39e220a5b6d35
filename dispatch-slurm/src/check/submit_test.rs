//! The job of `check --submit-test`: it shows that a node sees the shared directory and has crunch-run.

use std::error::Error;
use std::path::Path;

use arvados_client::ContainerUuid;
use dispatch_core::check::submit_test::{self, State};
use dispatch_core::handover::job_number;
use dispatch_core::needs::Needs;

use crate::settings::Settings;
use crate::submission::Job;

/// The last line that the job writes.
const READY: &str = "crunch-run is there";

/// Slurm, for such a job.
pub struct Trial<'a>(pub &'a Settings);

impl submit_test::Trial for Trial<'_> {
    const SUBMIT: &'static str = "sbatch";
    const CANCEL: &'static str = "scancel";
    const MEND: &'static str = "see that nodes have crunch-run where --crunch-run says, and --shared-dir at the same place";

    async fn submit(
        &self,
        container: &ContainerUuid,
        needs: &Needs,
        place: &Path,
    ) -> Result<String, Box<dyn Error>> {
        let settings = self.0;
        let arguments = settings.sbatch(Job {
            container,
            needs,
            comment: "dispatch-slurm check",
            output: &place.join("output.log"),
            avoid: &[],
        })?;
        let crunch_run = settings
            .crunch_run
            .first()
            .map_or("crunch-run", |word| word);
        let crunch_run = shlex::try_quote(crunch_run)?;
        // It ends by itself, should nobody be there to cancel it.
        let script =
            format!("#!/bin/sh\n{crunch_run} --version && echo {READY} && exec sleep 600\n");
        let answer = settings.command(arguments, script).succeed().await?;
        Ok(job_number(&answer.output, ";"))
    }

    fn version(&self, said: &str) -> Option<String> {
        let version = said.strip_suffix(&format!("{READY}\n"))?;
        Some(version.lines().last().unwrap_or_default().to_owned())
    }

    async fn state(&self, job: &str) -> Result<State, String> {
        let arguments = ["--noheader", "--all", "--states=all", "--format=%T|%r|%N"];
        let command = self.0.client("squeue").args(arguments);
        let command = command.args([format!("--jobs={job}")]);
        match command.succeed().await {
            Ok(answer) => {
                let line = answer.output.lines().rfind(|line| line.contains('|'));
                Ok(state(line.unwrap_or("GONE||")))
            }
            Err(error) if error.to_string().contains("Invalid job id") => Ok(state("GONE||")),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn cancel(&self, job: &str) -> Result<(), String> {
        let done = self.0.client("scancel").args([job]).succeed().await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

/// Of a line of state, reason, nodes.
fn state(line: &str) -> State {
    let mut fields = line.split('|').map(str::trim);
    let [word, reason, node] = std::array::from_fn(|_| fields.next().unwrap_or_default());
    match word {
        "PENDING" | "CONFIGURING" => State::Waits(format!("Slurm says {reason}")),
        "RUNNING" | "COMPLETING" => State::Runs(node.to_owned()),
        _ => State::Ended(format!("ended as {word} on {node}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_squeue_is_a_state() {
        for (line, expected) in [
            (
                "PENDING|Priority|",
                State::Waits("Slurm says Priority".into()),
            ),
            ("RUNNING|None|n1", State::Runs("n1".into())),
            (
                "FAILED|NonZeroExitCode|n1",
                State::Ended("ended as FAILED on n1".into()),
            ),
        ] {
            assert_eq!(state(line), expected, "{line}");
        }
    }
}
