//! What condor_submit is told, as a submit description. Formats: condor_submit(1). No secret is in it: the token
//! travels as a transferred file.

use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::token_name_of;
use dispatch_core::needs::Needs;

/// The attribute of a job that names its container.
pub const CONTAINER: &str = "ContainerUUID";
/// The attribute of a job that names its attempt.
pub const ATTEMPT: &str = "AttemptUUID";
/// The attribute of a job that says which dispatcher of this user submitted it.
pub const DISPATCHER: &str = "ContainerDispatcher";
/// Seconds that a job may be held before it started: for an admin to release it.
const HELD: u64 = 300;
/// Seconds added to a container's run time limit: fetching inputs and saving results counts for HTCondor.
const STAGING: u64 = 3600;
const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// A text that a submit description cannot hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} cannot be written into a submit description, it holds a line break or a NUL: {text:?}"
)]
pub struct Unwritable {
    what: &'static str,
    text: String,
}

/// What the admin set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// crunch-run as on the execution nodes, an absolute path, and its arguments.
    pub crunch_run: Vec<String>,
    /// Lines added to every description.
    pub lines: Vec<String>,
}

/// What all jobs of one description share.
#[derive(Debug, Clone, Copy)]
pub struct Common<'a> {
    /// The dispatcher's.
    pub label: &'a str,
    /// Machines they must not run on.
    pub avoid: &'a [String],
    /// They have a limit of run time.
    pub limited: bool,
    /// Variables of the jobs, none of them secret.
    pub environment: &'a [(String, String)],
}

/// One job of a description.
#[derive(Debug, Clone, Copy)]
pub struct Item<'a> {
    /// Its container.
    pub container: &'a ContainerUuid,
    /// Its attempt.
    pub attempt: &'a TokenUuid,
    /// What it needs.
    pub needs: &'a Needs,
    /// Its directory on the submit machine, with the token's file in it.
    pub dir: &'a Path,
}

/// The variables of an item, in the order of its fields. The last takes the rest of the line, whatever is in it.
const ITEM: &str =
    "ContainerName,AttemptName,JobCpus,JobMemory,JobDisk,JobGpus,JobSeconds,JobDirectory";

impl Item<'_> {
    fn item(&self) -> Result<String, Unwritable> {
        let needs = self.needs;
        Ok(format!(
            "{},{},{},{},{},{},{},{}",
            self.container,
            self.attempt,
            needs.cpus,
            needs.ram.div_ceil(MIB),
            needs.scratch.div_ceil(KIB).max(1),
            needs.gpus,
            needs.max_run_time.unwrap_or(0).saturating_add(STAGING),
            line("the job's directory", &self.dir.to_string_lossy())?,
        ))
    }
}

impl Settings {
    /// The description of jobs that differ in what has a name of its own here, and in nothing else.
    pub fn describe(&self, common: &Common<'_>, jobs: &[Item<'_>]) -> Result<String, Unwritable> {
        let (program, more) = self
            .crunch_run
            .split_first()
            .map_or(("crunch-run", &[][..]), |(first, rest)| {
                (first.as_str(), rest)
            });
        let mut arguments: Vec<&str> = more.iter().map(String::as_str).collect();
        // Relative: transferred into the job's own directory.
        let token = token_name_of("$(AttemptName)");
        arguments.extend(["--token-file", &token, "$(ContainerName)"]);
        let variables: Vec<String> = common
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted_word(value)))
            .collect();
        let mut lines = vec![
            "universe = vanilla".to_owned(),
            format!("executable = {}", line("crunch-run's path", program)?),
            "transfer_executable = false".to_owned(),
            format!(
                "arguments = {}",
                line("an argument of crunch-run", &argument_list(&arguments))?
            ),
            format!(
                "environment = {}",
                line(
                    "a variable",
                    &format!("\"{}\"", variables.join(" ").replace('"', "\"\""))
                )?
            ),
            "should_transfer_files = YES".to_owned(),
            "when_to_transfer_output = ON_EXIT".to_owned(),
            "transfer_output_files = \"\"".to_owned(),
            format!("transfer_input_files = $(JobDirectory)/{token}"),
            "output = $(JobDirectory)/output.log".to_owned(),
            "error = $(JobDirectory)/output.log".to_owned(),
            "log = $(JobDirectory)/events.log".to_owned(),
            "request_cpus = $(JobCpus)".to_owned(),
            "request_memory = $(JobMemory)".to_owned(),
            "request_disk = $(JobDisk)".to_owned(),
            "request_gpus = $(JobGpus)".to_owned(),
            format!("+{CONTAINER} = \"$(ContainerName)\""),
            format!("+{ATTEMPT} = \"$(AttemptName)\""),
            format!("+{DISPATCHER} = \"{}\"", common.label),
            "notification = never".to_owned(),
            // One attempt is one start: what follows an eviction or a lost node is decided here, not there.
            "max_retries = 0".to_owned(),
            // A hold after the start (time, memory, an admin) is an end, too; one before it may be looked after.
            format!(
                "periodic_remove = (NumJobStarts > 0 && (JobStatus == 1 || JobStatus == 5)) || (JobStatus == 5 && time() - EnteredCurrentStatus > {HELD})"
            ),
            // Ask crunch-run first, and give it time to save what there is.
            "kill_sig = SIGTERM".to_owned(),
            "want_graceful_removal = true".to_owned(),
            "job_max_vacate_time = 60".to_owned(),
        ];
        if !common.avoid.is_empty() {
            lines.push(requirements(common.avoid));
        }
        if common.limited {
            lines.push("allowed_execute_duration = $(JobSeconds)".to_owned());
        }
        for given in &self.lines {
            lines.push(line("a submit line", given)?);
        }
        lines.push(format!("queue {ITEM} from ("));
        for job in jobs {
            lines.push(job.item()?);
        }
        lines.push(")".to_owned());
        Ok(lines.join("\n") + "\n")
    }
}

/// Any machine but these. An admin's own line comes later and replaces it.
fn requirements(avoid: &[String]) -> String {
    let apart: Vec<String> = avoid
        .iter()
        .map(|node| format!("TARGET.Machine =!= \"{}\"", node.replace(['"', '\\'], "")))
        .collect();
    format!("requirements = {}", apart.join(" && "))
}

/// The "new" syntax of arguments: all in double quotes, words with single ones.
fn argument_list(words: &[&str]) -> String {
    let words: Vec<String> = words.iter().map(|word| quoted_word(word)).collect();
    format!("\"{}\"", words.join(" ").replace('"', "\"\""))
}

fn quoted_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', "''"))
}

fn line(what: &'static str, text: &str) -> Result<String, Unwritable> {
    match text.contains(['\n', '\r', '\0']) {
        true => Err(Unwritable {
            what,
            text: text.to_owned(),
        }),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(settings: &Settings, needs: &Needs) -> Result<String, Unwritable> {
        let common = Common {
            label: "me",
            avoid: &["n1.example".into(), "n2".into()],
            limited: needs.max_run_time.is_some(),
            environment: &[("ARVADOS_API_HOST".into(), "api.example:443".into())],
        };
        let job = Item {
            container: &ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
            attempt: &TokenUuid::parse("zzzzz-gj3su-000000000000000").unwrap(),
            needs,
            dir: Path::new("/home/me, too/jobs/1"),
        };
        settings.describe(&common, &[job, job])
    }

    fn settings(lines: &[&str]) -> Settings {
        Settings {
            crunch_run: vec!["/opt/crunch-run".into(), "--it's \"so\"".into()],
            lines: lines.iter().map(|s| (*s).to_owned()).collect(),
        }
    }

    #[test]
    fn a_description_says_everything_and_no_secret() {
        let needs = Needs {
            cpus: 2,
            ram: (1 << 30) + 1,
            scratch: 3000,
            max_run_time: Some(60),
            ..Needs::default()
        };
        let text = describe(&settings(&["+Group = \"a\""]), &needs).unwrap();
        for line in [
            "executable = /opt/crunch-run",
            r#"arguments = "'--it''s ""so""' '--token-file' 'token-$(AttemptName)' '$(ContainerName)'""#,
            r#"environment = "ARVADOS_API_HOST='api.example:443'""#,
            "transfer_input_files = $(JobDirectory)/token-$(AttemptName)",
            r#"requirements = TARGET.Machine =!= "n1.example" && TARGET.Machine =!= "n2""#,
            "request_cpus = $(JobCpus)",
            "request_memory = $(JobMemory)",
            "request_disk = $(JobDisk)",
            "request_gpus = $(JobGpus)",
            "+ContainerUUID = \"$(ContainerName)\"",
            "+AttemptUUID = \"$(AttemptName)\"",
            "+ContainerDispatcher = \"me\"",
            "allowed_execute_duration = $(JobSeconds)",
            "zzzzz-dz642-queuedcontainer,zzzzz-gj3su-000000000000000,2,1025,3,0,3660,/home/me, too/jobs/1",
            "+Group = \"a\"",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        assert!(text.ends_with("/jobs/1\n)\n"), "{text}");
    }

    #[test]
    fn nothing_can_add_a_line_of_its_own() {
        let error = describe(&settings(&["a = 1\nqueue 100"]), &Needs::default()).unwrap_err();
        assert!(
            error.to_string().starts_with("a submit line cannot be"),
            "{error}"
        );
    }
}
