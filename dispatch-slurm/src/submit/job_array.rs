//! Submits many equal containers as one job array: one `sbatch`, and one `scontrol` on stdin for
//! some hundreds of elements.
//!
//! Input: orders with equal `sbatch` arguments. Output: arguments, script and updates for one
//! array.
//!
//! Every element is a container and attempt of its own. Once it has its name and comment it is a
//! job like any other, for `squeue --name`, nice values, `scancel`, adoption and exit queries.
//! Slurm splits an element from its array at its first change anyway.
//!
//! An element cannot run before it has its name and comment. The array is submitted to begin in ten
//! years, under a comment that is no attempt. Then one update sets name, comment and
//! `StartTime=now` of an element; Slurm applies all three or none. So each failure has a certain
//! result:
//!
//! * `sbatch` fails or does not answer: an array that exists all the same never begins. So nothing
//!   was submitted, and each attempt is submitted alone.
//! * The dispatcher is killed between the two commands, or during the second: named elements run
//!   and are found by their names. The others are the jobs of no container, so their attempts count
//!   as never submitted. The next listing shows the unnamed elements, and pending ones are
//!   cancelled.
//!
//! An update is one line, shorter than a pipe's buffer, so it is written completely or not at all.
//! The script maps element numbers to containers; the map has no secrets. The token is in a 0600
//! file of the attempt, as for any job.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::LEAVE_TO_DISPATCHER;
use dispatch_core::model::owner::Owner;
use dispatch_core::service::subcommands::dry_run::Source;
use parking_lot::Mutex;

use crate::job_comment;
use crate::settings::Settings;
use crate::submit::sbatch::Argument;

/// Minimum number of elements; fewer containers are submitted one by one.
pub const MIN_ELEMENTS: usize = 8;
/// Maximum number of elements of one array, which bounds the effect of a failure.
pub const MAX_ELEMENTS: usize = 400;
/// Name of an element before it has the name of its container.
pub const PLACEHOLDER_NAME: &str = "not-yet-a-container";
/// Begin time at which no unnamed element is left.
const BEGIN_NEVER: &str = "--begin=now+3650days";
/// Maximum size of an update: a pipe takes this much completely or not at all.
const MAX_UPDATE_BYTES: usize = 60 << 10;
/// Options of the admin that have another meaning for an array, or set its begin time.
const INCOMPATIBLE: &str = "--array -a --begin -b --hold -H --deadline --clusters -M --wait";

/// Maximum size of a job array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrayLimit {
    /// Subcommands other than the service neither submit nor cancel arrays.
    Unused,
    /// Slurm has not reported it yet.
    Unknown,
    /// Maximum number of elements; 0 disables arrays.
    AtMost(usize),
}

/// One element of an array.
#[derive(Debug, Clone, Copy)]
pub struct Element<'a> {
    pub container: &'a ContainerUuid,
    pub attempt: &'a TokenUuid,
    pub owner: Option<&'a Owner>,
}

/// Arguments that submissions must share to be elements of one array.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ArrayTemplate {
    arguments: Vec<String>,
    /// Whether the output of crunch-run goes to our file, not to the admin's.
    our_output: bool,
}

impl ArrayTemplate {
    /// From the arguments of one submission; none if it cannot be an element.
    pub fn from_arguments(arguments: &[Argument]) -> Option<Self> {
        if arguments
            .iter()
            .any(|argument| is_incompatible(&argument.text))
        {
            return None;
        }
        let is_ours = |argument: &&Argument| matches!(argument.from, Source::Always(_));
        let output = |argument: &&Argument| argument.text.starts_with("--output=");
        // The last of several job names counts, and that is ours.
        let own = |argument: &&Argument| {
            let named = argument.text.starts_with("--job-name=");
            let ours = argument.text.starts_with("--comment=") || output(argument);
            named || (is_ours(argument) && ours)
        };
        let rest = arguments.iter().filter(|argument| !own(argument));
        Some(Self {
            arguments: rest.map(|argument| argument.text.clone()).collect(),
            our_output: arguments.iter().any(|a| is_ours(&a) && output(&a)),
        })
    }

    /// Arguments of sbatch for this number of elements.
    pub fn arguments(&self, elements: usize, placeholder_comment: &str) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        if self.our_output {
            arguments.push("--output=/dev/null".into());
        }
        let last = elements.saturating_sub(1);
        arguments.extend([
            format!("--array=0-{last}"),
            BEGIN_NEVER.into(),
            format!("--job-name={PLACEHOLDER_NAME}"),
            format!("--comment={placeholder_comment}"),
        ]);
        arguments
    }

    /// Script that runs the container of its element number.
    pub fn script(
        &self,
        settings: &Settings,
        state_dir: &Path,
        elements: &[Element<'_>],
    ) -> Result<String, shlex::QuoteError> {
        let mut script = "#!/bin/sh\ncase $SLURM_ARRAY_TASK_ID in\n".to_owned();
        for (number, element) in elements.iter().enumerate() {
            let (container, attempt) = (element.container, element.attempt);
            let token = crunch_contract::job_dir::token_file_for(attempt.as_str());
            // Writing to a string cannot fail.
            let _ = writeln!(script, "{number}) set -- {container} {token};;");
        }
        let crunch_run = shlex::try_join(settings.crunch_run.iter().map(String::as_str))?;
        let state_dir = state_dir.to_string_lossy();
        let state_dir = shlex::try_quote(&state_dir)?;
        script.push_str("*) exit 75;;\nesac\n");
        let _ = write!(
            script,
            "exec {crunch_run} {LEAVE_TO_DISPATCHER} --token-file {state_dir}/\"$1\"/\"$2\" \"$1\""
        );
        script.push_str(if self.our_output { "" } else { "\n" });
        if self.our_output {
            let _ = writeln!(script, " >>{state_dir}/\"$1\"/output.log 2>&1");
        }
        Ok(script)
    }
}

fn is_incompatible(argument: &str) -> bool {
    let option = argument.split('=').next().unwrap_or_default();
    INCOMPATIBLE
        .split(' ')
        .any(|unfit| match unfit.starts_with("--") {
            true => option == unfit,
            false => option.starts_with(unfit) && !option.starts_with("--"),
        })
}

/// Whether the settings of the admin allow arrays.
pub fn settings_allow_arrays(settings: &Settings) -> bool {
    let mut arguments = settings.all_arguments();
    settings.clusters.is_none() && !arguments.any(|argument| is_incompatible(argument))
}

/// Parses the maximum number of elements from `scontrol show config`: element numbers end below
/// `MaxArraySize`.
pub fn parse_max_elements(config: &str) -> usize {
    let setting = config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "MaxArraySize").then(|| value.trim().parse::<usize>().ok())?
    });
    setting.unwrap_or(0).min(MAX_ELEMENTS)
}

/// Updates that name the elements of array `job` and let them begin; each part goes to one
/// scontrol.
pub fn naming_updates(
    job: &str,
    elements: &[Element<'_>],
    instance_id: &str,
) -> Vec<(usize, String)> {
    let mut parts: Vec<(usize, String)> = Vec::new();
    for (number, element) in elements.iter().enumerate() {
        let comment = job_comment::write_without_space(element.attempt, instance_id, element.owner);
        let line = format!(
            "update JobId={job}_{number} JobName={} Comment={comment} StartTime=now\n",
            element.container
        );
        match parts.last_mut() {
            Some((count, text)) if text.len() + line.len() <= MAX_UPDATE_BYTES => {
                *count += 1;
                text.push_str(&line);
            }
            _ => parts.push((1, line)),
        }
    }
    parts
}

/// Arrays of this process that are being submitted.
#[derive(Debug)]
pub struct ArrayTracker {
    /// Distinguishes them from arrays of an earlier process.
    process: u64,
    state: Mutex<ArraySnapshot>,
}

/// An array that is being submitted.
#[derive(Debug)]
pub struct ArrayInProgress<'a> {
    arrays: &'a ArrayTracker,
    number: u64,
    /// Comment of its elements until they are named.
    pub placeholder_comment: String,
}

/// Arrays that were being submitted at one moment.
#[derive(Debug, Clone, Default)]
pub struct ArraySnapshot {
    next_number: u64,
    in_progress: BTreeSet<u64>,
}

impl Default for ArrayTracker {
    fn default() -> Self {
        Self {
            process: fastrand::u64(..),
            state: Mutex::default(),
        }
    }
}

impl ArrayTracker {
    /// Starts an array, which is in progress until the result is dropped.
    pub fn begin(&self, instance_id: &str) -> ArrayInProgress<'_> {
        let mut state = self.state.lock();
        let number = state.next_number;
        state.next_number += 1;
        state.in_progress.insert(number);
        ArrayInProgress {
            arrays: self,
            number,
            placeholder_comment: format!("{instance_id}/{:x}/{number}", self.process),
        }
    }

    /// State before a listing.
    pub fn snapshot(&self) -> ArraySnapshot {
        self.state.lock().clone()
    }

    /// Elements in a listing that will never be named; `before` is the state before the listing
    /// began.
    pub fn abandoned_elements(
        &self,
        listing: &str,
        instance_id: &str,
        before: &ArraySnapshot,
    ) -> Vec<String> {
        let nameless = |line: &str| {
            let mut fields = line.strip_prefix('@')?.split('|');
            let (id, _, comment) = (fields.next()?, fields.next()?, fields.next()?);
            let (process, number) = comment
                .strip_prefix(instance_id)?
                .strip_prefix('/')?
                .split_once('/')?;
            let process = u64::from_str_radix(process, 16).ok()?;
            let number: u64 = number.parse().ok()?;
            // An array that began later may be named by now.
            let ours = process == self.process;
            let goes_on =
                ours && (number >= before.next_number || before.in_progress.contains(&number));
            (!goes_on && id.starts_with(|c: char| c.is_ascii_digit())).then(|| id.to_owned())
        };
        listing.lines().filter_map(nameless).collect()
    }
}

impl Drop for ArrayInProgress<'_> {
    fn drop(&mut self) {
        let mut state = self.arrays.state.lock();
        state.in_progress.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
