//! The job of `check --submit-test`: it shows that a node sees the shared directory, and what crunch-run finds there.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use arvados_client::ContainerUuid;
use dispatch_core::check::submit_test::{self, State};
use dispatch_core::dry_run::Source;
use dispatch_core::handover::job_number;
use dispatch_core::needs::Needs;

use crate::settings::Settings;
use crate::submission::{Argument, Job};

/// Slurm, for such a job.
pub struct Trial<'a> {
    pub settings: &'a Settings,
    /// Where it must run.
    pub node: Option<&'a str>,
}

impl submit_test::Trial for Trial<'_> {
    const SUBMIT: &'static str = "sbatch";
    const CANCEL: &'static str = "scancel";
    const MEND: &'static str = "see that nodes have this version of crunch-run where --crunch-run says, and --shared-dir at the same place";
    /// NFS may say for so long that a file is not there.
    const LATE: Duration = Duration::from_secs(60);

    async fn submit(
        &self,
        container: &ContainerUuid,
        needs: &Needs,
        place: &Path,
    ) -> Result<String, Box<dyn Error>> {
        let settings = self.settings;
        let mut arguments = settings.sbatch(Job {
            container,
            needs,
            comment: "dispatch-slurm check",
            output: &place.join("output.log"),
            avoid: &[],
        })?;
        arguments.extend(self.node.map(|name| Argument {
            text: format!("--nodelist={name}"),
            from: Source::Always("it was asked for"),
        }));
        let mut looks = settings.clone();
        looks.crunch_run.push("--check".to_owned());
        let looks = looks.crunch_run_line(container, &place.join("token"))?;
        // What it said may take its time to arrive. It ends by itself, should nobody be there to cancel it.
        let script = format!("#!/bin/sh\n{looks} && exec sleep 600\n");
        let answer = settings.command(arguments, script).succeed().await?;
        Ok(job_number(&answer.output, ";"))
    }

    async fn state(&self, job: &str) -> Result<State, String> {
        let arguments = ["--noheader", "--all", "--states=all", "--format=%T|%r|%N"];
        let command = self.settings.client("squeue").args(arguments);
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
        let done = self.settings.client("scancel").args([job]).succeed().await;
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
