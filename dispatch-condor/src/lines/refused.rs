//! Which lines of a submit description are not an admin's to set, and why.

use dispatch_core::dry_run::speaks_of_a_secret;

use super::{MACROS, bare, split};

/// Keys that decide which program a job is, how it is found again, or what follows from its end; as [`bare`] has them.
const OURS: [(&str, &[&str]); 5] = [
    (
        "by it a job is found again",
        &["containeruuid", "attemptuuid", "containerdispatcher"],
    ),
    (
        "what becomes of a job is decided by the exit status of crunch-run, and containers would be lost or run twice",
        &[
            "onexitremove",
            "onexithold",
            "periodicremove",
            "periodichold",
            "periodicrelease",
            "maxretries",
            "retryuntil",
            "successexitcode",
            "killsig",
            "removekillsig",
            "wantgracefulremoval",
            "leaveinqueue",
            "leavejobinqueue",
            "hold",
            "noopjob",
            "maxidle",
            "maxmaterialize",
            "materializemaxidle",
            "jobmaterializemaxidle",
            "jobmaterializelimit",
            "numjobstarts",
            "numjobcompletions",
            "periodicvacate",
        ],
    ),
    (
        "--stop-grace is how long crunch-run has to save what there is; then its job is removed by force",
        &["jobmaxvacatetime"],
    ),
    (
        "the order of jobs follows the priority of containers",
        &["priority", "prio", "jobprio"],
    ),
    (
        "crunch-run is started with it; see --crunch-run, --transfer-crunch-run and EnvironmentVariables",
        &[
            "universe",
            "jobuniverse",
            "executable",
            "cmd",
            "arguments",
            "args",
            "environment",
            "env",
            "getenv",
            "input",
            "in",
            "stdin",
            "output",
            "out",
            "stdout",
            "error",
            "err",
            "stderr",
            "log",
            "userlog",
            "initialdir",
            "iwd",
            "jobiwd",
            "remoteinitialdir",
            "shouldtransferfiles",
            "whentotransferoutput",
            "transferexecutable",
            "transferinputfiles",
            "transferinput",
            "transferoutputfiles",
            "transferoutput",
            "transferoutputremaps",
        ],
    ),
];
/// Statements of the language that are no assignments.
const STATEMENTS: [&str; 8] = [
    "queue", "if", "elif", "else", "endif", "include", "use", "error",
];

/// Why a line with a secret is refused; the line itself is not told then.
pub(super) const SECRET: &str = "it seems to hold a secret, and everybody may read job ads";

/// Why a line is not the admin's to set, if so.
pub(super) fn refusal(text: &str) -> Option<String> {
    let (key, value) = split(text);
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
    let name = bare(key);
    let own = MACROS.iter().map(|(_, name)| *name);
    let own = own.chain(crate::submission::MACROS);
    if own.into_iter().any(|own| own.to_lowercase() == name) {
        return Some(format!("{key} is a name that this program uses itself"));
    }
    let ours = OURS.iter().find(|(_, keys)| keys.contains(&name.as_str()));
    if let Some((why, _)) = ours {
        return Some(format!("{key} is not for the site to set: {why}"));
    }
    let is_attribute = key.starts_with('+') || key.to_lowercase().starts_with("my.");
    if is_token(text) || (is_attribute && value.starts_with('"') && speaks_of_a_secret(key)) {
        return Some(SECRET.to_owned());
    }
    None
}

/// Whether there is an Arvados token in a text.
pub fn is_token(text: &str) -> bool {
    text.contains("v2/") && text.contains("-gj3su-")
}
