//! The probe job of `check --submit-test`.
//!
//! Input: settings and, if wanted, a node. Output: whether the node sees the state directory, and
//! what `crunch-run --check` finds there.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use arvados_client::ContainerUuid;
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::model::staging_allowance::StagingAllowance;
use dispatch_core::scheduler::submit_command::parse_job_id;
use dispatch_core::service::subcommands::check::probe_job::{ProbeScheduler, ProbeState};
use dispatch_core::service::subcommands::dry_run::Source;

use crate::query::ended_job::is_unknown_job;
use crate::query::partition_times::PartitionTimes;
use crate::settings::Settings;
use crate::slurm::Slurm;
use crate::submit::sbatch::{Argument, ROOM_TO_RAISE, SbatchJob};

impl ProbeScheduler for Slurm {
    const SUBMIT: &'static str = "sbatch";
    const CANCEL: &'static str = "scancel";
    const REMEDY: &'static str = "check that nodes have this version of crunch-run at the path of --crunch-run, and mount --state-dir at the same path";
    /// Time for which NFS may hide a new file.
    const OUTPUT_DELAY: Duration = Duration::from_secs(60);

    async fn submit(
        &self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
        dir: &Path,
        node: Option<&str>,
    ) -> Result<String, Box<dyn Error>> {
        let settings = &Settings {
            // The check needs no time for files, and no warning before its end.
            staging: StagingAllowance::Fixed(Duration::ZERO),
            warning_seconds: 0,
            ..self.settings.clone()
        };
        let mut arguments = settings.sbatch_arguments(SbatchJob {
            container,
            needs,
            comment: "dispatch-slurm check",
            output: &dir.join("output.log"),
            avoid: &[],
            nice: ROOM_TO_RAISE,
            times: PartitionTimes::default(),
        })?;
        arguments.extend(node.map(|name| Argument {
            text: format!("--nodelist={name}"),
            from: Source::Always("the check names this node"),
        }));
        let mut check = settings.clone();
        check.crunch_run.push("--check".to_owned());
        let check = check.crunch_run_line(container, &dir.join("token"))?;
        // The sleep gives the output time to arrive. It ends by itself if no cancellation follows.
        let script = format!("#!/bin/sh\n{check} && exec sleep 600\n");
        let answer = settings
            .sbatch_command(arguments, script)
            .run_checked()
            .await?;
        Ok(parse_job_id(&answer, ";")?)
    }

    async fn state(&self, job: &str) -> Result<ProbeState, String> {
        let arguments = ["--noheader", "--all", "--states=all", "--format=%T|%r|%N"];
        let command = self.settings.client("squeue").args(arguments);
        let command = command.args([format!("--jobs={job}")]);
        match command.run_checked().await {
            Ok(answer) => {
                let line = answer.stdout.lines().rfind(|line| line.contains('|'));
                Ok(parse_state(line.unwrap_or("GONE||")))
            }
            Err(error) if is_unknown_job(&error.to_string()) => Ok(parse_state("GONE||")),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn cancel(&self, job: &str) -> Result<(), String> {
        let scancel = self.settings.client("scancel");
        let done = scancel.args([job]).run_checked().await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

/// Parses a line of state, reason and nodes.
fn parse_state(line: &str) -> ProbeState {
    let mut fields = line.split('|').map(str::trim);
    let [word, reason, node] = std::array::from_fn(|_| fields.next().unwrap_or_default());
    match word {
        "PENDING" | "CONFIGURING" => ProbeState::Pending(format!("pending in Slurm: {reason}")),
        "RUNNING" | "COMPLETING" => ProbeState::Running(node.to_owned()),
        _ => ProbeState::Ended(format!("ended as {word} on {node}")),
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
                ProbeState::Pending("pending in Slurm: Priority".into()),
            ),
            ("RUNNING|None|n1", ProbeState::Running("n1".into())),
            (
                "FAILED|NonZeroExitCode|n1",
                ProbeState::Ended("ended as FAILED on n1".into()),
            ),
        ] {
            assert_eq!(parse_state(line), expected, "{line}");
        }
    }
}
