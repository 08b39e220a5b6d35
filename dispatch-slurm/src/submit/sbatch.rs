//! Builds the arguments and the script of `sbatch`.
//!
//! Input: settings, and the container with its attempt. Output: arguments with their sources, and
//! the job script; neither has secrets.

use std::path::Path;
use std::sync::Arc;

use arvados_client::ContainerUuid;
use crunch_contract::LEAVE_TO_DISPATCHER;
use dispatch_core::model::instance_types::{NoInstanceTypeFits, name_for};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::template::{TemplateError, Values, render};
use dispatch_core::service::subcommands::dry_run::Source;

use crate::query::partition_times::PartitionTimes;
use crate::settings::Settings;

/// Default arguments for every container.
pub const DEFAULT_ARGUMENTS: [&str; 5] = [
    "--job-name=%U",
    "--mem=%M",
    "--cpus-per-task=%C",
    "--tmp=%T",
    "--partition=%P",
];
/// Default additional arguments for containers that request GPUs.
/// The later one counts, if the model is known.
pub const DEFAULT_GPU_ARGUMENTS: [&str; 2] = ["--gpus=%G", "--gpus=%N:%G"];

/// An argument of sbatch, and its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    pub text: String,
    pub from: Source,
}

/// Nice value from which a job can be raised.
pub const ROOM_TO_RAISE: u32 = 10_000;

/// What one attempt contributes to its job.
#[derive(Debug, Clone, Copy)]
pub struct SbatchJob<'a> {
    pub container: &'a ContainerUuid,
    pub needs: &'a ResourceRequest,
    /// Comment by which the job is found again.
    pub comment: &'a str,
    /// File for the output of crunch-run.
    pub output: &'a Path,
    /// Nodes to exclude.
    pub avoid: &'a [String],
    /// Initial nice value.
    pub nice: u32,
    /// Time limits of the partitions where it may run.
    pub times: PartitionTimes,
}

/// Why a container cannot be submitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// A template is malformed.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No instance type suits the container.
    #[error(transparent)]
    NoInstanceTypeFits(#[from] NoInstanceTypeFits),
}

impl Settings {
    /// Arguments of sbatch. Job name and comment are always ours, because the job is found by them.
    /// Other options of the admin replace ours.
    pub fn sbatch_arguments(&self, job: SbatchJob<'_>) -> Result<Vec<Argument>, SubmissionError> {
        let needs = job.needs;
        let values = Values {
            container: job.container,
            needs,
            instance_type: name_for(&self.types, needs)?,
            gpu_model: self.gpu_model(needs),
        };
        let gpus = Some(&self.gpu_arguments[..]).filter(|_| needs.gpus > 0);
        let preemptible = Some(&self.preemptible_arguments[..]).filter(|_| needs.preemptible);
        let owners = match &self.owner_map {
            Some(map) => map.arguments(needs.charged_owner()),
            None => Arc::default(),
        };
        // Of two values of an option, sbatch takes the later one.
        let lists = [
            ("arguments", &self.arguments[..]),
            ("gpu_arguments", gpus.unwrap_or_default()),
            ("owner_map", &owners[..]),
            ("preemptible_arguments", preemptible.unwrap_or_default()),
        ];
        let mut admins = Vec::new();
        for (flag, list) in lists {
            for template in list {
                if let Some(text) = render(template, values)? {
                    admins.push(from_setting(flag, template, text));
                }
            }
        }
        let mut arguments = vec![
            always(
                format!("--nice={}", job.nice),
                "puts it behind its account's other jobs, and leaves room to raise it",
            ),
            always("--no-requeue", "a new attempt is a new job"),
            always("--parsable", "the dispatcher parses the job id"),
        ];
        let mut ours = vec![
            always("--open-mode=append", "keeps earlier output"),
            // sbatch expands patterns like %j in this option.
            always(
                format!(
                    "--output={}",
                    job.output.to_string_lossy().replace('%', "%%")
                ),
                "the dispatcher reads the output of crunch-run",
            ),
            always("--chdir=/", "every node has this directory"),
            // --gpus counts over all nodes of a job, and would take GPUs of several nodes.
            always("--nodes=1", "a container runs on one node"),
        ];
        if !job.avoid.is_empty() {
            ours.push(always(
                format!("--exclude={}", job.avoid.join(",")),
                "its earlier attempts failed there",
            ));
        }
        let minutes = self.minutes(needs, job.times);
        ours.extend(minutes.and_then(|minutes| self.time_limit(needs, minutes)));
        let seconds = job.times.warning_seconds(self.warning_seconds, minutes);
        if seconds > 0 {
            // Not TERM: the record must show that the time limit was reached, not that somebody
            // cancelled the container.
            let text = format!("--signal=B:XCPU@{seconds}");
            ours.push(from_setting(
                "warn_before_end",
                &format!("{seconds}s"),
                text,
            ));
        }
        for (flag, per_partition) in self.partition_options() {
            let template = per_partition.value(&needs.partitions);
            if let Some(template) = template.filter(|template| !template.is_empty())
                && let Some(value) = render(template, values)?
            {
                ours.push(from_setting(flag, template, format!("--{flag}={value}")));
            }
        }
        for text in self.cluster_arguments() {
            ours.push(from_setting(
                "clusters",
                self.clusters.as_deref().unwrap_or_default(),
                text,
            ));
        }
        ours.retain(|our| {
            !admins
                .iter()
                .any(|theirs| is_same_option(&theirs.text, &our.text))
        });
        arguments.extend(ours);
        arguments.extend(admins);
        let name = format!("--job-name={}", job.container);
        arguments.push(always(name, "the job is found by its name"));
        let comment = format!("--comment={}", job.comment);
        arguments.push(always(
            comment,
            "the job is found by its attempt and dispatcher",
        ));
        Ok(arguments)
    }

    /// The time limit of the job in minutes.
    fn minutes(&self, needs: &ResourceRequest, times: PartitionTimes) -> Option<u64> {
        let seconds = needs.max_run_time?;
        Some(times.job_minutes(seconds.div_ceil(60), self.staging_minutes(needs)))
    }

    /// Minutes that a job should get in addition to the run time limit of its container.
    fn staging_minutes(&self, needs: &ResourceRequest) -> u64 {
        self.staging.seconds(needs).div_ceil(60)
    }

    /// Why a job gets less time than the admin's setting says, if it does.
    pub fn cut_time(&self, needs: &ResourceRequest, times: PartitionTimes) -> Option<String> {
        let minutes = self.minutes(needs, times)?;
        let added = minutes.saturating_sub(needs.max_run_time?.div_ceil(60));
        let wanted = self.staging_minutes(needs);
        (added < wanted).then(|| {
            format!(
                "its partition gives at most {minutes} minutes: {added} minutes beside its own limit are left for its files, of {wanted} (--staging-allowance)"
            )
        })
    }

    /// The time limit in Slurm should exceed that of the container, because Slurm kills at its
    /// limit.
    fn time_limit(&self, needs: &ResourceRequest, minutes: u64) -> Option<Argument> {
        let seconds = needs.max_run_time?;
        let added = minutes.saturating_sub(seconds.div_ceil(60));
        let value = match added < self.staging_minutes(needs) {
            true => format!("max_run_time of {seconds} s, and what the partition gives"),
            false => format!("max_run_time of {seconds} s, and {added} min"),
        };
        Some(from_setting(
            "staging_allowance",
            &value,
            format!("--time={minutes}"),
        ))
    }

    /// sbatch with these arguments, and this script on its stdin.
    pub fn sbatch_command(&self, arguments: Vec<Argument>, script: String) -> Command {
        let fail_points = fail_points::ENVIRONMENT
            .iter()
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let environment = self.environment.iter();
        // sbatch passes its whole environment to the job. With --export, the node would add that of
        // a login shell. So only variables for the job are set here, and TMPDIR of this machine is
        // removed.
        Command::new("sbatch")
            .args(arguments.into_iter().map(|argument| argument.text))
            .without("TMPDIR")
            .envs(environment.map(|(name, value)| (name.into(), value.into())))
            .envs(fail_points)
            .input(script)
    }

    /// The job script. It executes crunch-run in place of the shell, so that signals to the batch
    /// step reach it.
    pub fn job_script(
        &self,
        container: &ContainerUuid,
        token_file: &Path,
    ) -> Result<String, shlex::QuoteError> {
        let line = self.crunch_run_line(container, token_file)?;
        Ok(format!("#!/bin/sh\nexec {line}\n"))
    }

    /// Command line of crunch-run in a job, quoted for a shell.
    pub fn crunch_run_line(
        &self,
        container: &ContainerUuid,
        token_file: &Path,
    ) -> Result<String, shlex::QuoteError> {
        let token_file = token_file.to_string_lossy();
        let words = self.crunch_run.iter().map(String::as_str).chain([
            LEAVE_TO_DISPATCHER,
            "--token-file",
            &token_file,
            container.as_str(),
        ]);
        shlex::try_join(words)
    }
}

/// Options of ours with a short form.
const SHORT_FORMS: [(&str, &str); 9] = [
    ("--output", "-o"),
    ("--chdir", "-D"),
    ("--exclude", "-x"),
    ("--nodes", "-N"),
    ("--time", "-t"),
    ("--account", "-A"),
    ("--qos", "-q"),
    ("--constraint", "-C"),
    ("--clusters", "-M"),
];

/// Whether the admin's argument sets the same option as ours.
fn is_same_option(theirs: &str, ours: &str) -> bool {
    let option = |text: &str| text.split('=').next().unwrap_or_default().to_owned();
    let ours = option(ours);
    let short = SHORT_FORMS.iter().find(|(long, _)| *long == ours);
    option(theirs) == ours || short.is_some_and(|(_, short)| theirs.starts_with(short))
}

fn always(text: impl Into<String>, why: &'static str) -> Argument {
    Argument {
        text: text.into(),
        from: Source::Always(why),
    }
}

fn from_setting(flag: &'static str, value: &str, text: String) -> Argument {
    Argument {
        text,
        from: Source::Set {
            flag,
            value: value.to_owned(),
        },
    }
}

#[cfg(test)]
mod tests;
