//! `squeue` in its text format.

use super::options::{self, Options};
use super::state::{Job, State, now};
use super::{Invocation, Reply};

const OPTIONS: &[&str] = &[
    "h:noheader",
    "a:all",
    "u:user=",
    "t:states=",
    "n:name=",
    "j:jobs=",
    "S:sort=",
    "o:format=",
    "p:partition=",
    "r:array",
    "me",
];
/// The states that squeue shows by default.
const DEFAULT_STATES: [&str; 8] = [
    "PENDING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
    "CONFIGURING",
    "STOPPED",
    "STAGE_OUT",
    "SIGNALING",
];

/// Lists jobs.
pub fn squeue(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::slurm(call.name, call.arguments, OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let state = call.store.read()?;
    let format = options.value("format").unwrap_or("%i %P %j %u %t %r");
    let mut output = String::new();
    if !options.has("noheader") {
        output.push_str(&render(format, &|letter| heading(letter).to_owned())?);
    }
    for job in state.jobs.iter().filter(|job| shows(job, &state, &options)) {
        output.push_str(&render(format, &|letter| cell(job, letter))?);
    }
    Ok(Reply::with_output(output))
}

/// Whether the job is listed: ended jobs are listed for `min_job_age`.
pub fn is_known(job: &Job, state: &State) -> bool {
    let ended = job.ended.unwrap_or(f64::INFINITY);
    !job.is_condor() && now() - ended < state.settings.min_job_age
}

fn shows(job: &Job, state: &State, options: &Options) -> bool {
    let listed = |name: &str, value: &str| {
        let given = options.value(name);
        given.is_none_or(|list| list.split(',').any(|word| word.eq_ignore_ascii_case(value)))
    };
    let by_state = match options.value("states") {
        None => !is_ended(&job.state),
        Some("all" | "ALL") => true,
        Some(_) => listed("states", &job.state),
    };
    is_known(job, state)
        && by_state
        && listed("user", &job.user.to_string())
        && listed("name", &job.name)
        && listed("jobs", &job.id)
}

/// Whether the state is final; an invented state is not.
fn is_ended(state: &str) -> bool {
    const ENDED: [&str; 10] = [
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "REVOKED",
        "TIMEOUT",
    ];
    !DEFAULT_STATES.contains(&state) && ENDED.contains(&state)
}

fn heading(letter: char) -> &'static str {
    match letter {
        'i' => "JOBID",
        'P' => "PARTITION",
        'j' => "NAME",
        'u' => "USER",
        'T' => "STATE",
        't' => "ST",
        'r' => "REASON",
        'k' => "COMMENT",
        'Q' => "PRIORITY",
        'y' => "NICE",
        'N' => "NODELIST",
        'S' => "START_TIME",
        _ => "?",
    }
}

fn cell(job: &Job, letter: char) -> String {
    match letter {
        'i' => job.id.clone(),
        'P' => job.partition.clone(),
        'j' => job.name.clone(),
        'u' => job.user.to_string(),
        'T' => job.state.clone(),
        't' => job.state.chars().take(2).collect(),
        'r' => job.reason.clone(),
        'k' => job.comment.clone().unwrap_or_else(|| "(null)".into()),
        'Q' => (4_294_900_000 - job.nice).to_string(),
        'y' => job.nice.to_string(),
        'N' => job.node.clone().unwrap_or_default(),
        'S' => job
            .started
            .map_or_else(|| "N/A".into(), |at| format!("{at:.0}")),
        _ => String::new(),
    }
}

/// Renders one line of a format of `%i` and text. Widths, as in `%.18i`, are not supported.
fn render(format: &str, value: &dyn Fn(char) -> String) -> std::io::Result<String> {
    let mut line = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => {
                let field = letters.next().unwrap_or_default();
                if heading(field) == "?" {
                    let what = format!("squeue: error: invalid job format specification: {field}");
                    return Err(std::io::Error::other(what));
                }
                line.push_str(&value(field));
            }
            other => line.push(other),
        }
    }
    line.push('\n');
    Ok(line)
}
