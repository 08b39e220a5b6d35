//! `scancel` and `scontrol`.

use rustix::process::{Pid, Signal, kill_process};

use super::options::{self, Options};
use super::sbatch::BEGIN_TIME_REASON;
use super::squeue::is_known;
use super::state::{Job, State};
use super::{Invocation, Reply, job_runner};

const OPTIONS: &[&str] = &[
    "t:state=",
    "b:batch",
    "f:full",
    "s:signal=",
    "n:name=",
    "u:user=",
    "Q:quiet",
    "me",
];
/// Seconds between TERM and KILL; the real default is 30.
const KILL_WAIT: f64 = 2.0;

/// Ends jobs, or signals them.
pub fn scancel(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::slurm(call.name, call.arguments, OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let ids: Vec<&str> = options.words.iter().flat_map(|w| w.split(',')).collect();
    if ids.is_empty() && options.given.is_empty() {
        return Ok(Reply::failed(
            1,
            "scancel: error: No job identification provided",
        ));
    }
    let complaints = call.store.change(|state| {
        ids.iter()
            .filter_map(|id| cancel(state, id, &options).err())
            .collect::<Vec<_>>()
    })?;
    Ok(match complaints.is_empty() {
        true => Reply::default(),
        false => Reply::failed(1, &complaints.join("\n")),
    })
}

/// Error texts are those of Slurm.
fn cancel(state: &mut State, id: &str, options: &Options) -> Result<(), String> {
    let index = find(state, id);
    let job = index.map(|index| &mut state.jobs[index]);
    let Some(job) = job else {
        return Err(format!(
            "scancel: error: Kill job error on job id {id}: Invalid job id specified"
        ));
    };
    if options.value("name").is_some_and(|name| name != job.name) {
        return Ok(());
    }
    if options
        .value("state")
        .is_some_and(|state| !state.eq_ignore_ascii_case(&job.state))
    {
        return Ok(());
    }
    if job.ended.is_some() {
        return Err(format!(
            "scancel: error: Kill job error on job id {id}: Job/step already completing or completed"
        ));
    }
    match options.value("signal") {
        None => job_runner::request_stop(job, KILL_WAIT),
        Some(_) if job.is_pending() => {
            return Err(format!(
                "scancel: error: Signal job error on job id {id}: Job is pending execution"
            ));
        }
        Some(signal) => match (job.pid.and_then(Pid::from_raw), signal) {
            (Some(pid), "TERM" | "SIGTERM" | "15") => {
                // The process may have ended just now.
                let _ = kill_process(pid, Signal::TERM);
            }
            // No process was started for this job.
            (None, _) => job_runner::mark_ended(job, Some(0), None),
            (_, other) => return Err(format!("scancel: error: Unknown job signal: {other}")),
        },
    }
    Ok(())
}

/// The newest known job of that number: job numbers are reused.
fn find(state: &State, id: &str) -> Option<usize> {
    state
        .jobs
        .iter()
        .rposition(|job| job.id == id && is_known(job, state))
}

/// Updates, shows, holds and releases jobs: one command as arguments, or one a line on stdin.
pub fn scontrol(call: Invocation<'_>) -> std::io::Result<Reply> {
    let words: Vec<&str> = call
        .arguments
        .iter()
        .map(String::as_str)
        .filter(|word| !matches!(*word, "-o" | "--oneliner" | "-Q" | "--quiet"))
        .collect();
    if let Some(option) = words.first().filter(|word| word.starts_with('-')) {
        let say = format!("scontrol: unrecognized option '{option}'");
        return Ok(Reply::failed(1, &say));
    }
    let commands: Vec<Vec<&str>> = match words.is_empty() {
        false => vec![words],
        true => call
            .input
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .filter(|words| !words.is_empty() && words[0] != "quit")
            .collect(),
    };
    let mut reply = Reply::default();
    let mut begun = Vec::new();
    call.store.change(|state| {
        for command in &commands {
            match control(state, command, &mut begun) {
                Ok(text) => reply.output.extend(text.into_bytes()),
                Err(text) => {
                    reply.status = 1;
                    reply.errors.push_str(&text);
                    reply.errors.push('\n');
                }
            }
        }
    })?;
    for job in begun {
        job_runner::start(call.store, &job)?;
    }
    Ok(reply)
}

/// Carries out one command; `begun` receives the jobs that may start.
fn control(state: &mut State, command: &[&str], begun: &mut Vec<String>) -> Result<String, String> {
    match command {
        ["ping"] => Ok("Slurmctld(primary) at localhost is UP\n".into()),
        ["show", "config"] => Ok(format!(
            "MinJobAge               = {:.0} sec\nMaxArraySize            = 1001\nSLURM_VERSION           = 22.05.8\n",
            state.settings.min_job_age
        )),
        ["show", "job"] => {
            let shown: String = state
                .jobs
                .iter()
                .filter(|job| is_known(job, state))
                .map(show)
                .collect();
            Ok(shown)
        }
        ["show", "job", id] => match find(state, id) {
            Some(index) => Ok(show(&state.jobs[index])),
            None => Err("slurm_load_jobs error: Invalid job id specified".into()),
        },
        ["hold", ids] => each(state, ids, |job| job.reason = "JobHeldUser".into()),
        ["release", ids] => each(state, ids, |job| job.reason = "None".into()),
        ["update", changes @ ..] => update(state, changes, begun),
        other => Err(format!("invalid keyword: {}", other.join(" "))),
    }
}

fn update(state: &mut State, changes: &[&str], begun: &mut Vec<String>) -> Result<String, String> {
    let runs = state.settings.run_jobs;
    let mut jobs = None;
    let (mut nice, mut name, mut comment) = (None, None, None);
    let mut begins = false;
    for change in changes {
        let (key, value) = change.split_once('=').unwrap_or((change, ""));
        match key.to_ascii_lowercase().as_str() {
            "jobid" | "job" => jobs = Some(value),
            "nice" => nice = value.parse::<i64>().ok(),
            "jobname" | "name" => name = Some(value),
            "comment" => comment = Some(value),
            "starttime" if value == "now" => begins = true,
            _ => {
                return Err(format!(
                    "Update of this parameter is not supported: {change}"
                ));
            }
        }
    }
    let changed = nice.is_some() || name.is_some() || comment.is_some() || begins;
    let (Some(jobs), true) = (jobs, changed) else {
        return Err("No changes specified".into());
    };
    each(state, jobs, |job| {
        job.nice = nice.unwrap_or(job.nice);
        job.name = name.map_or_else(|| job.name.clone(), str::to_owned);
        job.comment = comment.map(str::to_owned).or(job.comment.take());
        if begins && job.is_pending() && job.reason == BEGIN_TIME_REASON {
            job.reason = "None".into();
            if runs {
                begun.push(job.id.clone());
            }
        }
    })
}

fn each(state: &mut State, ids: &str, mut change: impl FnMut(&mut Job)) -> Result<String, String> {
    for id in ids.split(',') {
        match find(state, id) {
            Some(index) => change(&mut state.jobs[index]),
            None => return Err(format!("Invalid job id specified for job {id}")),
        }
    }
    Ok(String::new())
}

fn show(job: &Job) -> String {
    format!(
        "JobId={} JobName={} UserId=user({}) Nice={} JobState={} Reason={} Partition={} NodeList={} ExitCode={} Comment={}\n",
        job.id,
        job.name,
        job.user,
        job.nice,
        job.state,
        job.reason,
        job.partition,
        job.node.as_deref().unwrap_or("(null)"),
        job.exit_code(),
        job.comment.as_deref().unwrap_or("(null)")
    )
}
