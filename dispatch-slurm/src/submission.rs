//! What sbatch is told: its arguments and its script. No secret is in either.

use std::path::Path;

use arvados_client::ContainerUuid;
use dispatch_core::command::Command;
use dispatch_core::dry_run::Source;
use dispatch_core::needs::Needs;
use dispatch_core::template::{TemplateError, Values, render};

use crate::settings::{PerPartition, Settings};

/// Arguments for every container, where the admin gives none.
pub const ARGUMENTS: [&str; 5] = [
    "--job-name=%U",
    "--mem=%M",
    "--cpus-per-task=%C",
    "--tmp=%T",
    "--partition=%P",
];
/// More for those that ask for GPUs.
pub const GPU_ARGUMENTS: [&str; 1] = ["--gpus=%G"];

/// An argument of sbatch, and why it is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// As it is given.
    pub text: String,
    /// Why.
    pub from: Source,
}

/// What an attempt gives to its job.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// Which container.
    pub container: &'a ContainerUuid,
    /// What it needs.
    pub needs: &'a Needs,
    /// By which the job is found again.
    pub comment: &'a str,
    /// For what crunch-run says.
    pub output: &'a Path,
    /// Nodes to leave out.
    pub avoid: &'a [String],
}

/// Why a container cannot be submitted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmissionError {
    /// A template.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// There are kinds of nodes, and it fits none.
    #[error(transparent)]
    NoneSuits(#[from] dispatch_core::instance_types::NoneSuits),
}

impl Settings {
    /// The arguments of sbatch. The job's name and comment are ours: by them it is found again. Of the rest, what the
    /// admin's list says holds.
    pub fn sbatch(&self, job: Job<'_>) -> Result<Vec<Argument>, SubmissionError> {
        let needs = job.needs;
        let values = Values {
            container: job.container,
            needs,
            instance_type: self.instance_type(needs)?,
        };
        let gpus: &[String] = if needs.gpus > 0 {
            &self.gpu_arguments
        } else {
            &[]
        };
        let lists = [("arguments", &self.arguments[..]), ("gpu_arguments", gpus)];
        let mut admins = Vec::new();
        for (flag, list) in lists {
            for template in list {
                if let Some(text) = render(template, values)? {
                    admins.push(set(flag, template, text));
                }
            }
        }
        let mut arguments = vec![
            always("--nice=10000", "leaves room to raise its priority"),
            always("--no-requeue", "a new attempt is a new job"),
            always("--parsable", "its number is read"),
        ];
        let mut ours = vec![
            always("--open-mode=append", "keeps what was said before"),
            // %j and the like are sbatch's own patterns in this one.
            always(
                format!(
                    "--output={}",
                    job.output.to_string_lossy().replace('%', "%%")
                ),
                "what crunch-run says is read here",
            ),
            always("--chdir=/", "a directory that is everywhere"),
            // --gpus counts over all nodes of a job, and would take some of each.
            always("--nodes=1", "a container runs on one node"),
        ];
        if !job.avoid.is_empty() {
            ours.push(always(
                format!("--exclude={}", job.avoid.join(",")),
                "its earlier attempts failed there",
            ));
        }
        ours.extend(self.time(needs));
        if self.warning_seconds > 0 {
            let seconds = self.warning_seconds;
            // Not TERM: the record is to say that the time was over, not that somebody wanted it to end.
            let text = format!("--signal=B:XCPU@{seconds}");
            ours.push(set("warn_before_end", &format!("{seconds}s"), text));
        }
        for (flag, option, per_partition) in self.keys() {
            let template = per_partition.value(&needs.partitions);
            if let Some(template) = template.filter(|template| !template.is_empty())
                && let Some(value) = render(template, values)?
            {
                ours.push(set(flag, template, format!("{option}={value}")));
            }
        }
        for text in self.cluster_arguments() {
            ours.push(set(
                "clusters",
                self.clusters.as_deref().unwrap_or_default(),
                text,
            ));
        }
        ours.retain(|our| {
            !admins
                .iter()
                .any(|theirs| says_the_same(&theirs.text, &our.text))
        });
        arguments.extend(ours);
        arguments.extend(admins);
        let name = format!("--job-name={}", job.container);
        arguments.push(always(name, "it is found again by it"));
        let comment = format!("--comment={}", job.comment);
        arguments.push(always(
            comment,
            "attempt and dispatcher: it is found again by it",
        ));
        Ok(arguments)
    }

    /// Slurm kills at its limit, so it is longer than the container's own.
    fn time(&self, needs: &Needs) -> Option<Argument> {
        let seconds = needs.max_run_time?;
        let minutes = seconds.div_ceil(60).saturating_add(self.staging_minutes);
        let value = format!(
            "max_run_time of {seconds} s, and {} min",
            self.staging_minutes
        );
        Some(set(
            "staging_allowance",
            &value,
            format!("--time={minutes}"),
        ))
    }

    fn keys(&self) -> [(&'static str, &'static str, &PerPartition); 4] {
        [
            ("account", "--account", &self.account),
            ("qos", "--qos", &self.qos),
            ("reservation", "--reservation", &self.reservation),
            ("constraint", "--constraint", &self.constraint),
        ]
    }

    /// sbatch with these arguments, and this script on its stdin.
    pub fn command(&self, arguments: Vec<Argument>, script: String) -> Command {
        let fail_points = fail_points::ENVIRONMENT
            .iter()
            .filter_map(|name| Some((name.into(), std::env::var_os(name)?)));
        let environment = self.environment.iter();
        // sbatch gives its own environment to the job. To have it give a part makes the node look for the rest in a
        // login shell; so there is no more in it than is for the job, and our TMPDIR is not a node's.
        Command::new("sbatch")
            .args(arguments.into_iter().map(|argument| argument.text))
            .without("TMPDIR")
            .envs(environment.map(|(name, value)| (name.into(), value.into())))
            .envs(fail_points)
            .input(script)
    }

    /// The job script. crunch-run takes the place of the shell, so that signals to the batch step reach it.
    pub fn script(
        &self,
        container: &ContainerUuid,
        token_file: &Path,
    ) -> Result<String, shlex::QuoteError> {
        let line = self.crunch_run_line(container, token_file)?;
        Ok(format!("#!/bin/sh\nexec {line}\n"))
    }

    /// crunch-run as a job calls it, for a shell.
    pub fn crunch_run_line(
        &self,
        container: &ContainerUuid,
        token_file: &Path,
    ) -> Result<String, shlex::QuoteError> {
        let token_file = token_file.to_string_lossy();
        let words = self.crunch_run.iter().map(String::as_str).chain([
            "--token-file",
            &token_file,
            container.as_str(),
        ]);
        shlex::try_join(words)
    }
}

/// The options of ours that have a short form too.
const SHORT: [(&str, &str); 9] = [
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

/// Whether the admin's argument is about what ours is about.
fn says_the_same(theirs: &str, ours: &str) -> bool {
    let option = |text: &str| text.split('=').next().unwrap_or_default().to_owned();
    let ours = option(ours);
    let short = SHORT.iter().find(|(long, _)| *long == ours);
    option(theirs) == ours || short.is_some_and(|(_, short)| theirs.starts_with(short))
}

fn always(text: impl Into<String>, why: &'static str) -> Argument {
    Argument {
        text: text.into(),
        from: Source::Always(why),
    }
}

fn set(flag: &'static str, value: &str, text: String) -> Argument {
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
