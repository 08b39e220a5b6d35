//! `sacct` and `sinfo`: the parts with a delimiter between the fields.

use super::state::{Job, State};
use super::{Invocation, NODE, Reply, options};

const SACCT_OPTIONS: &[&str] = &[
    "n:noheader",
    "P:parsable2",
    "p:parsable",
    "X:allocations",
    "j:jobs=",
    "name=",
    "o:format=",
    "S:starttime=",
    "E:endtime=",
    "s:state=",
    "u:user=",
    "a:allusers",
    "D:duplicates",
    "units=",
];
const SINFO_OPTIONS: &[&str] = &[
    "h:noheader",
    "a:all",
    "e:exact",
    "N:Node",
    "o:format=",
    "p:partition=",
    "t:states=",
    "r:responding",
];

/// `sacct`: jobs as accounting has them.
pub fn sacct(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::slurm(call.name, call.arguments, SACCT_OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let state = call.store.read()?;
    if !state.settings.accounting {
        return Ok(Reply::failed(1, "Slurm accounting storage is disabled"));
    }
    let listed = |name: &str, value: &str| {
        let given = options.value(name);
        given.is_none_or(|list| list.split(',').any(|word| word == value))
    };
    let fields: Vec<&str> = options
        .value("format")
        .unwrap_or("JobID,JobName,State,ExitCode")
        .split(',')
        .collect();
    let mut output = String::new();
    if !options.has("noheader") {
        output.push_str(&format!("{}\n", fields.join("|")));
    }
    for job in state.jobs.iter().filter(|job| !job.is_condor()) {
        if !listed("jobs", &job.id) || !listed("name", &job.name) {
            continue;
        }
        let mut row = Vec::new();
        for field in &fields {
            match account(job, field) {
                Some(cell) => row.push(cell),
                None => {
                    let say = format!("sacct: error: Invalid field requested: \"{field}\"");
                    return Ok(Reply::failed(1, &say));
                }
            }
        }
        output.push_str(&format!("{}\n", row.join("|")));
    }
    Ok(Reply::with_output(output))
}

fn account(job: &Job, field: &str) -> Option<String> {
    // Fields may carry a width: State%20.
    let name = field.split('%').next().unwrap_or_default();
    Some(match name.to_ascii_lowercase().as_str() {
        "jobid" | "jobidraw" => job.id.clone(),
        "jobname" => job.name.clone(),
        "state" => match job.state.as_str() {
            "CANCELLED" => format!("CANCELLED by {}", job.user),
            state => state.to_owned(),
        },
        "exitcode" | "derivedexitcode" => job.exit_code(),
        "reason" => job.reason.clone(),
        "comment" => job.comment.clone().unwrap_or_default(),
        "user" => job.user.to_string(),
        "nodelist" => job.node.clone().unwrap_or_else(|| "None assigned".into()),
        "partition" => job.partition.clone(),
        "elapsedraw" => match (job.started, job.ended) {
            (Some(from), Some(to)) => format!("{:.0}", to - from),
            _ => "0".into(),
        },
        "maxrss" => String::new(),
        _ => return None,
    })
}

/// The one node of the one partition.
pub fn sinfo(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::slurm(call.name, call.arguments, SINFO_OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let state = call.store.read()?;
    let format = options.value("format").unwrap_or("%P %a %l %D %t %N");
    let mut output = String::new();
    if !options.has("noheader") {
        output.push_str(&format.replace('%', ""));
        output.push('\n');
    }
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '%' => match node(&state, letters.next().unwrap_or_default()) {
                Some(cell) => output.push_str(&cell),
                None => return Ok(Reply::failed(1, "sinfo: error: Invalid node format")),
            },
            other => output.push(other),
        }
    }
    output.push('\n');
    Ok(Reply::with_output(output))
}

fn node(state: &State, letter: char) -> Option<String> {
    let used = state
        .jobs
        .iter()
        .filter(|job| job.state == "RUNNING")
        .count() as u64;
    let cpus = state.settings.cpus;
    let used = used.min(cpus);
    Some(match letter {
        'P' => "debug*".into(),
        'R' => "debug".into(),
        'a' => "up".into(),
        'l' => "infinite".into(),
        'D' => "1".into(),
        'N' | 'n' => NODE.into(),
        't' => if used == 0 { "idle" } else { "mix" }.into(),
        'T' => if used == 0 { "idle" } else { "mixed" }.into(),
        'c' => cpus.to_string(),
        'C' => format!("{used}/{}/0/{cpus}", cpus - used),
        'm' => state.settings.memory.to_string(),
        'd' => "100000".into(),
        'G' | 'f' => "(null)".into(),
        _ => return None,
    })
}
