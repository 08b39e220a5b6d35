//! `condor_q`, `condor_history`, `condor_status`, `condor_rm`, `condor_prio` and `condor_qedit`.

use serde_json::{Map, Value, json};

use super::condor_ads::{self, Constraint, literal};
use super::fault::totals;
use super::options::{self, Options};
use super::state::{Job, State};
use super::{Invocation, NODE, Reply, job_runner};

const QUERY_OPTIONS: &[&str] = &[
    "json",
    "totals",
    "attributes=",
    "constraint=",
    "limit=",
    "allusers",
    "all",
    "name=",
    "nobatch",
];
const CHANGE_OPTIONS: &[&str] = &["constraint=", "reason=", "forcex", "all", "name="];
/// Seconds between TERM and KILL; the real one is `job_max_vacate_time`.
const VACATE_SECONDS: f64 = 2.0;
/// KiB of the one machine.
const DISK_KIB: f64 = 1.0e9;

/// Jobs in the queue.
pub fn condor_q(call: Invocation<'_>) -> std::io::Result<Reply> {
    query(call, "", |job| job.ended.is_none())
}

/// Jobs that left it, the newest first.
pub fn condor_history(call: Invocation<'_>) -> std::io::Result<Reply> {
    query(call, "[\n]\n", |job| job.ended.is_some())
}

fn query(call: Invocation<'_>, none: &str, shown: impl Fn(&Job) -> bool) -> std::io::Result<Reply> {
    let (options, constraint) = match parse_arguments(call, QUERY_OPTIONS) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    if !options.has("json") && !options.has("totals") {
        return Ok(Reply::failed(
            1,
            "fake-sched answers only with -json or -totals",
        ));
    }
    let state = call.store.read()?;
    let mut ads: Vec<&Map<String, Value>> = state
        .jobs
        .iter()
        .filter(|job| job.is_condor() && shown(job) && is_selected(job, &options, &constraint))
        .map(|job| &job.ad)
        .collect();
    if call.name == "condor_history" {
        ads.reverse();
    }
    if options.has("totals") {
        return Ok(Reply::with_output(totals(ads.len())));
    }
    let limit = options.value("limit").and_then(|n| n.parse().ok());
    ads.truncate(limit.unwrap_or(usize::MAX));
    Ok(Reply::with_output(condor_ads::json(
        &ads,
        options.value("attributes"),
        none,
    )))
}

fn parse_arguments(
    call: Invocation<'_>,
    known: &[&str],
) -> Result<(Options, Option<Constraint>), Reply> {
    let options = options::condor(call.name, call.arguments, known)?;
    let constraint = match options.value("constraint") {
        None => None,
        Some(text) => Some(
            Constraint::parse(text)
                .map_err(|error| Reply::failed(1, &format!("{}: {error}", call.name)))?,
        ),
    };
    Ok((options, constraint))
}

/// Named by number or cluster, or meeting the constraint; without either every job.
fn is_selected(job: &Job, options: &Options, constraint: &Option<Constraint>) -> bool {
    let named = options.words.is_empty()
        || options
            .words
            .iter()
            .any(|id| *id == job.id || job.id.split('.').next() == Some(id));
    named && constraint.as_ref().is_none_or(|c| c.meets(&job.ad))
}

/// The jobs in the queue that are meant.
fn select_jobs<'a>(
    state: &'a mut State,
    options: &Options,
    constraint: &Option<Constraint>,
) -> Vec<&'a mut Job> {
    state
        .jobs
        .iter_mut()
        .filter(|job| {
            job.is_condor() && job.ended.is_none() && is_selected(job, options, constraint)
        })
        .collect()
}

/// Removes jobs.
pub fn condor_rm(call: Invocation<'_>) -> std::io::Result<Reply> {
    let (options, constraint) = match parse_arguments(call, CHANGE_OPTIONS) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    if options.words.is_empty() && constraint.is_none() && !options.has("all") {
        return Ok(Reply::failed(1, "You did not specify any jobs"));
    }
    let timeout = if options.has("forcex") {
        0.0
    } else {
        VACATE_SECONDS
    };
    let removed = call.store.change(|state| {
        let mut removed = Vec::new();
        for job in select_jobs(state, &options, &constraint) {
            job.set_status(super::state::condor::REMOVED);
            let reason = options.value("reason").unwrap_or("via condor_rm (by user)");
            job.ad.insert("RemoveReason".into(), reason.into());
            job_runner::request_stop(job, timeout);
            removed.push(job.id.clone());
        }
        removed
    })?;
    if removed.is_empty() {
        let say: Vec<String> = options
            .words
            .iter()
            .map(|id| format!("Job {id} not found"))
            .collect();
        let say = match say.is_empty() {
            true => "Couldn't find/remove all jobs matching constraint".to_owned(),
            false => say.join("\n"),
        };
        return Ok(Reply::failed(1, &say));
    }
    let lines = removed
        .iter()
        .map(|id| format!("Job {id} marked for removal\n"));
    let missing = options.words.iter().filter(|id| !removed.contains(id));
    // Told, and no failure.
    let errors = missing.map(|id| format!("Job {id} not found\n")).collect();
    Ok(Reply {
        errors,
        ..Reply::with_output(lines.collect::<String>())
    })
}

/// Changes the priority: `condor_prio -p N ID…`. For a missing job it only prints a message.
pub fn condor_prio(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::condor(call.name, call.arguments, &["p=", "name="]) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let Some(prio) = options.value("p").and_then(|n| n.parse::<i32>().ok()) else {
        let say = "You must specify a new priority or priority adjustment.";
        return Ok(Reply::failed(1, say));
    };
    call.store.change(|state| {
        for job in select_jobs(state, &options, &None) {
            job.ad.insert("JobPrio".into(), prio.into());
        }
    })?;
    Ok(Reply::with_output(String::new()))
}

/// Changes one attribute: `condor_qedit ID… NAME VALUE`, or with `-constraint`.
pub fn condor_qedit(call: Invocation<'_>) -> std::io::Result<Reply> {
    let (mut options, constraint) = match parse_arguments(call, CHANGE_OPTIONS) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    let value = options.words.pop();
    let (Some(value), Some(name)) = (value, options.words.pop()) else {
        return Ok(Reply::failed(
            1,
            "Usage: condor_qedit [options] [job] attribute value",
        ));
    };
    let Some(value) = literal(&value) else {
        return Ok(Reply::failed(1, &format!("Failed to parse {value}")));
    };
    let count = call.store.change(|state| {
        let jobs = select_jobs(state, &options, &constraint);
        let count = jobs.len();
        for job in jobs {
            job.ad.insert(name.clone(), value.clone());
        }
        count
    })?;
    Ok(match count {
        0 => Reply::failed(1, "Failed to set attribute: no jobs matched"),
        count => Reply::with_output(format!(
            "Set attribute \"{name}\" for {count} matching jobs.\n"
        )),
    })
}

/// The one machine.
pub fn condor_status(call: Invocation<'_>) -> std::io::Result<Reply> {
    let (options, constraint) = match parse_arguments(call, QUERY_OPTIONS) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    let settings = call.store.read()?.settings;
    let machine = json!({
        "Name": format!("slot1@{NODE}"), "Machine": NODE, "PartitionableSlot": true, "State": "Unclaimed", "Activity": "Idle",
        "Cpus": settings.cpus, "TotalSlotCpus": settings.cpus, "Memory": settings.memory,
        "TotalSlotMemory": settings.memory, "TotalSlotGPUs": 0, "GPUs": 0, "Disk": DISK_KIB, "TotalSlotDisk": DISK_KIB,
    });
    let machine = machine.as_object().cloned().unwrap_or_default();
    let shown = constraint.is_none_or(|c| c.meets(&machine));
    let ads: Vec<&Map<String, Value>> = shown.then_some(&machine).into_iter().collect();
    Ok(Reply::with_output(condor_ads::json(
        &ads,
        options.value("attributes"),
        "",
    )))
}
