//! Keys and statements of submit descriptions that an admin must not set, with the reasons. Pure.

use dispatch_core::service::subcommands::dry_run::looks_secret;

use crate::submit::line_syntax::{normalized_key, split_line};
use crate::submit::macros;

/// Reserved keys, normalized and separated by blanks, by reason: they decide which program runs,
/// how its job is found, or what follows its exit.
const RESERVED: [(&str, &str); 5] = [
    (
        "the dispatcher finds a job again by it",
        "containeruuid attemptuuid containerdispatcher",
    ),
    (
        "crunch-run's exit status decides what happens to a job; otherwise containers would be lost or run twice",
        "onexitremove onexithold periodicremove periodichold periodicrelease maxretries \
         retryuntil successexitcode killsig removekillsig wantgracefulremoval leaveinqueue \
         leavejobinqueue hold noopjob maxidle maxmaterialize materializemaxidle \
         jobmaterializemaxidle jobmaterializelimit numjobstarts numjobcompletions \
         periodicvacate",
    ),
    (
        "--stop-grace sets it: the time that crunch-run has to save results before its job is removed by force",
        "jobmaxvacatetime",
    ),
    (
        "the order of jobs follows the priority of containers",
        "priority prio jobprio",
    ),
    (
        "crunch-run is started by it; see --crunch-run, --transfer-crunch-run and EnvironmentVariables",
        "universe jobuniverse executable cmd arguments args environment env getenv input in \
         stdin output out stdout error err stderr log userlog initialdir iwd jobiwd \
         remoteinitialdir shouldtransferfiles whentotransferoutput transferexecutable \
         transferinputfiles transferinput transferoutputfiles transferoutput \
         transferoutputremaps",
    ),
];

/// Statements of the submit language that are no assignments.
const STATEMENTS: [&str; 8] = [
    "queue", "if", "elif", "else", "endif", "include", "use", "error",
];

/// Reason for a line with a secret; the error does not repeat that line.
pub(crate) const SECRET_REASON: &str = "it seems to contain a secret, and job ads are public";

/// Why an admin must not set this line; none if it is allowed.
pub(crate) fn rejection_reason(text: &str) -> Option<String> {
    let (key, value) = split_line(text);
    let first = key.split_whitespace().next().unwrap_or_default();
    let is_name = |name: &str| {
        let name = name.strip_prefix('+').unwrap_or(name).trim();
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
    };
    let first = first.to_lowercase();
    let statement =
        STATEMENTS.contains(&first.as_str()) && (key.to_lowercase() != first || first == "queue");
    if statement || !text.contains('=') || !is_name(key) {
        return Some("it is not KEY = VALUE".to_owned());
    }
    let name = normalized_key(key);
    if macros::all_names()
        .iter()
        .any(|own| own.to_lowercase() == name)
    {
        return Some(format!("{key} is a name that this program uses itself"));
    }
    let ours = RESERVED
        .iter()
        .find(|(_, keys)| keys.split_whitespace().any(|key| key == name));
    if let Some((why, _)) = ours {
        return Some(format!("{key} is not for the site to set: {why}"));
    }
    let is_attribute = key.starts_with('+') || key.to_lowercase().starts_with("my.");
    if contains_token(text) || (is_attribute && value.starts_with('"') && looks_secret(key)) {
        return Some(SECRET_REASON.to_owned());
    }
    None
}

/// Whether a text contains an Arvados token.
pub fn contains_token(text: &str) -> bool {
    text.contains("v2/") && text.contains("-gj3su-")
}
