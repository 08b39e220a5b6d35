//! What condor_submit is told, as a submit description. Formats: condor_submit(1). No secret is in it: the token
//! travels as a transferred file.

use std::path::Path;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::token_name;
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

/// One attempt.
#[derive(Debug, Clone, Copy)]
pub struct Attempt<'a> {
    /// Its container.
    pub container: &'a ContainerUuid,
    /// Its name.
    pub attempt: &'a TokenUuid,
    /// The dispatcher's.
    pub label: &'a str,
    /// Machines it must not run on.
    pub avoid: &'a [String],
    /// What it needs.
    pub needs: &'a Needs,
    /// Its directory on the submit machine, with the file `token` in it.
    pub dir: &'a Path,
    /// Variables of the job, none of them secret.
    pub environment: &'a [(String, String)],
}

impl Settings {
    /// The description of one job.
    pub fn describe(&self, attempt: Attempt<'_>) -> Result<String, Unwritable> {
        let Attempt { needs, dir, .. } = attempt;
        let (program, more) = self
            .crunch_run
            .split_first()
            .map_or(("crunch-run", &[][..]), |(first, rest)| {
                (first.as_str(), rest)
            });
        let mut arguments: Vec<&str> = more.iter().map(String::as_str).collect();
        // Relative: transferred into the job's own directory.
        let token = token_name(attempt.attempt);
        arguments.extend(["--token-file", &token, attempt.container.as_str()]);
        let variables: Vec<String> = attempt
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={}", quoted_word(value)))
            .collect();
        let dir = line("the shared directory", &dir.to_string_lossy())?;
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
            format!("transfer_input_files = {dir}/{token}"),
            format!("output = {dir}/output.log"),
            format!("error = {dir}/output.log"),
            format!("log = {dir}/events.log"),
            format!("request_cpus = {}", needs.cpus),
            format!("request_memory = {}", needs.ram.div_ceil(MIB)),
            format!("request_disk = {}", needs.scratch.div_ceil(KIB).max(1)),
            format!("request_gpus = {}", needs.gpus),
            format!("+{CONTAINER} = \"{}\"", attempt.container),
            format!("+{ATTEMPT} = \"{}\"", attempt.attempt),
            format!("+{DISPATCHER} = \"{}\"", attempt.label),
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
        if !attempt.avoid.is_empty() {
            lines.push(requirements(attempt.avoid));
        }
        if let Some(limit) = needs.max_run_time {
            lines.push(format!(
                "allowed_execute_duration = {}",
                limit.saturating_add(STAGING)
            ));
        }
        for given in &self.lines {
            lines.push(line("a submit line", given)?);
        }
        lines.push("queue 1".to_owned());
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
        settings.describe(Attempt {
            container: &ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
            attempt: &TokenUuid::parse("zzzzz-gj3su-000000000000000").unwrap(),
            label: "me",
            needs,
            avoid: &["n1.example".into(), "n2".into()],
            dir: Path::new("/home/me/jobs/1"),
            environment: &[("ARVADOS_API_HOST".into(), "api.example:443".into())],
        })
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
            r#"arguments = "'--it''s ""so""' '--token-file' 'token-zzzzz-gj3su-000000000000000' 'zzzzz-dz642-queuedcontainer'""#,
            r#"environment = "ARVADOS_API_HOST='api.example:443'""#,
            "transfer_input_files = /home/me/jobs/1/token-zzzzz-gj3su-000000000000000",
            r#"requirements = TARGET.Machine =!= "n1.example" && TARGET.Machine =!= "n2""#,
            "request_cpus = 2",
            "request_memory = 1025",
            "request_disk = 3",
            "request_gpus = 0",
            "+ContainerUUID = \"zzzzz-dz642-queuedcontainer\"",
            "+AttemptUUID = \"zzzzz-gj3su-000000000000000\"",
            "+ContainerDispatcher = \"me\"",
            "allowed_execute_duration = 3660",
            "+Group = \"a\"",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}\nis not in\n{text}");
        }
        assert!(text.ends_with("queue 1\n"));
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
