//! Many equal containers as one job array: one `sbatch`, and one `scontrol` on stdin for some hundreds of elements.
//!
//! Every element is its own container and attempt, and once it has its name and comment it is a job like any other:
//! `squeue --name`, nice values, `scancel`, adoption after every local file is gone, the verdict, all as for a job that
//! was submitted alone. Slurm keeps an element as a record of its own from its first change on, so nothing is lost that
//! an array would have saved.
//!
//! What makes it safe is that an element cannot run before it has them. The array is submitted to begin in ten years, under
//! a comment that is no attempt's; then each element gets name, comment and `StartTime=now` **in one update**, which
//! Slurm takes or does not. So whatever dies, and whenever:
//!
//! * `sbatch` says no, or nothing: should there be an array all the same, nothing of it ever begins. So it is
//!   certain that nothing was submitted, and each attempt goes on, by itself.
//! * killed between the two commands, or half way through the second: what has its name runs, and is found by it; the
//!   rest is not the job of any container. Its attempts' jobs count as gone, as after a submission that was never made,
//!   and the next listing sees elements without a name and cancels them, those that still wait.
//!
//! An update is one line of at most a pipe's buffer, so a line that is cut short by our death does not come to be. Which
//! container an element runs is in the script, by its number: a table of names, with nothing secret in it. The
//! token is in a 0600 file of the attempt, as for any job.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::dry_run::Source;

use crate::settings::Settings;
use crate::squeue;
use crate::submission::Argument;

/// Fewer than so many are submitted one by one: two commands instead.
pub const LEAST: usize = 8;
/// Elements of one array, at most: a failure concerns no more.
pub const MOST: usize = 400;
/// The name of an element before it has its container's.
pub const NAMELESS: &str = "not-yet-a-container";
/// Far enough away that no element without a name ever begins.
const NEVER: &str = "--begin=now+3650days";
/// A pipe takes so much at once, whole or not at all.
const PIPE: usize = 60 << 10;
/// What the admin may say that means something else for an array, or that says when it begins.
const UNFIT: [&str; 10] = [
    "--array",
    "-a",
    "--begin",
    "-b",
    "--hold",
    "-H",
    "--deadline",
    "--clusters",
    "-M",
    "--wait",
];

/// One element.
#[derive(Debug, Clone, Copy)]
pub struct Element<'a> {
    /// Whose job it is.
    pub container: &'a ContainerUuid,
    /// Its attempt.
    pub attempt: &'a TokenUuid,
}

/// What submissions must have in common to be elements of one array.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Common {
    arguments: Vec<String>,
    /// What crunch-run says goes where we want it, not where the admin does.
    our_output: bool,
}

impl Common {
    /// Of one submission; none: it cannot be an element.
    pub fn of(arguments: &[Argument]) -> Option<Self> {
        if arguments.iter().any(|argument| is_unfit(&argument.text)) {
            return None;
        }
        let is_ours = |argument: &&Argument| matches!(argument.from, Source::Always(_));
        let output = |argument: &&Argument| argument.text.starts_with("--output=");
        // Of several names the last one counts, and that is ours.
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

    /// The arguments of sbatch for so many elements.
    pub fn arguments(&self, elements: usize, mark: &str) -> Vec<String> {
        let mut arguments = self.arguments.clone();
        if self.our_output {
            arguments.push("--output=/dev/null".into());
        }
        let last = elements.saturating_sub(1);
        arguments.extend([
            format!("--array=0-{last}"),
            NEVER.into(),
            format!("--job-name={NAMELESS}"),
            format!("--comment={mark}"),
        ]);
        arguments
    }

    /// The script: an element's number says what it runs.
    pub fn script(
        &self,
        settings: &Settings,
        shared: &Path,
        elements: &[Element<'_>],
    ) -> Result<String, shlex::QuoteError> {
        let mut script = "#!/bin/sh\ncase $SLURM_ARRAY_TASK_ID in\n".to_owned();
        for (number, element) in elements.iter().enumerate() {
            let (container, attempt) = (element.container, element.attempt);
            let token = dispatch_core::attempt_dir::token_name(attempt);
            // To a string it cannot fail.
            let _ = writeln!(script, "{number}) set -- {container} {token};;");
        }
        let crunch_run = shlex::try_join(settings.crunch_run.iter().map(String::as_str))?;
        let shared = shared.to_string_lossy();
        let shared = shlex::try_quote(&shared)?;
        script.push_str("*) exit 75;;\nesac\n");
        let _ = write!(
            script,
            "exec {crunch_run} --token-file {shared}/\"$1\"/\"$2\" \"$1\""
        );
        script.push_str(match self.our_output {
            true => "",
            false => "\n",
        });
        if self.our_output {
            let _ = writeln!(script, " >>{shared}/\"$1\"/output.log 2>&1");
        }
        Ok(script)
    }
}

fn is_unfit(argument: &str) -> bool {
    let option = argument.split('=').next().unwrap_or_default();
    UNFIT.iter().any(|unfit| match unfit.starts_with("--") {
        true => option == *unfit,
        false => option.starts_with(unfit) && !option.starts_with("--"),
    })
}

/// Whether what the admin set is for arrays at all.
pub fn may_be(settings: &Settings) -> bool {
    let mut lists = settings.arguments.iter().chain(&settings.gpu_arguments);
    settings.clusters.is_none() && !lists.any(|argument| is_unfit(argument))
}

/// How many elements an array may have, by `scontrol show config`: numbers end below `MaxArraySize`.
pub fn largest(config: &str) -> usize {
    let setting = config.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "MaxArraySize").then(|| value.trim().parse::<usize>().ok())?
    });
    setting.unwrap_or(0).min(MOST)
}

/// What names the elements of the array `job` and lets them begin, in parts that one scontrol each gets.
pub fn updates(job: &str, elements: &[Element<'_>], label: &str) -> Vec<(usize, String)> {
    let mut parts: Vec<(usize, String)> = Vec::new();
    for (number, element) in elements.iter().enumerate() {
        let comment = squeue::comment_without_space(element.attempt, label);
        let line = format!(
            "update JobId={job}_{number} JobName={} Comment={comment} StartTime=now\n",
            element.container
        );
        match parts.last_mut() {
            Some((count, text)) if text.len() + line.len() <= PIPE => {
                *count += 1;
                text.push_str(&line);
            }
            _ => parts.push((1, line)),
        }
    }
    parts
}

/// The arrays of this process, by their numbers: which are being submitted.
#[derive(Debug)]
pub struct Arrays {
    /// Tells them from those of an earlier process.
    process: u64,
    state: Mutex<(u64, BTreeSet<u64>)>,
}

/// An array that is being submitted.
#[derive(Debug)]
pub struct Underway<'a> {
    arrays: &'a Arrays,
    number: u64,
    /// The comment of its elements as long as they have no name.
    pub mark: String,
}

/// Which arrays were being submitted at a moment.
#[derive(Debug)]
pub struct Moment {
    next: u64,
    underway: BTreeSet<u64>,
}

impl Default for Arrays {
    fn default() -> Self {
        Self {
            process: fastrand::u64(..),
            state: Mutex::default(),
        }
    }
}

impl Arrays {
    fn state(&self) -> std::sync::MutexGuard<'_, (u64, BTreeSet<u64>)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new one, under way until this is dropped.
    pub fn begin(&self, label: &str) -> Underway<'_> {
        let mut state = self.state();
        let number = state.0;
        state.0 += 1;
        state.1.insert(number);
        Underway {
            arrays: self,
            number,
            mark: format!("{label}/{:x}/{number}", self.process),
        }
    }

    /// To be asked before a listing.
    pub fn now(&self) -> Moment {
        let state = self.state();
        Moment {
            next: state.0,
            underway: state.1.clone(),
        }
    }

    /// The elements in a listing, asked for after `asked`, that nobody will name any more.
    pub fn abandoned(&self, listing: &str, label: &str, asked: &Moment) -> Vec<String> {
        let nameless = |line: &str| {
            let mut fields = line.strip_prefix('@')?.split('|');
            let (id, _, comment) = (fields.next()?, fields.next()?, fields.next()?);
            let (process, number) = comment
                .strip_prefix(label)?
                .strip_prefix('/')?
                .split_once('/')?;
            let process = u64::from_str_radix(process, 16).ok()?;
            let number: u64 = number.parse().ok()?;
            // One that began after the question may be named by now.
            let ours = process == self.process;
            let goes_on = ours && (number >= asked.next || asked.underway.contains(&number));
            (!goes_on && id.starts_with(|c: char| c.is_ascii_digit())).then(|| id.to_owned())
        };
        listing.lines().filter_map(nameless).collect()
    }
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.arrays.state().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests;
