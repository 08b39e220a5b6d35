//! `condor_q`, `condor_history`, `condor_status`, `condor_rm`, `condor_prio` and `condor_qedit`.

use serde_json::{Map, Value, json};

use super::condor_ads::{self, Constraint, literal};
use super::options::{self, Options};
use super::state::{Job, State};
use super::{NODE, Order, Reply, keeper};

const LOOKING: &[&str] = &[
    "json",
    "attributes=",
    "constraint=",
    "limit=",
    "allusers",
    "all",
    "name=",
    "nobatch",
];
const CHANGING: &[&str] = &["constraint=", "reason=", "forcex", "all", "name="];
/// Seconds between TERM and KILL; the real one is `job_max_vacate_time`.
const VACATE: f64 = 2.0;
/// KiB of the one machine.
const DISK: f64 = 1.0e9;

/// Jobs in the queue.
pub fn condor_q(order: Order<'_>) -> std::io::Result<Reply> {
    look(order, "", |job| job.ended.is_none())
}

/// Jobs that left it, the newest first.
pub fn condor_history(order: Order<'_>) -> std::io::Result<Reply> {
    look(order, "[\n]\n", |job| job.ended.is_some())
}

fn look(order: Order<'_>, none: &str, shown: impl Fn(&Job) -> bool) -> std::io::Result<Reply> {
    let (options, constraint) = match asked(order, LOOKING) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    if !options.has("json") {
        return Ok(Reply::failed(1, "fake-sched answers only with -json"));
    }
    let state = order.store.read()?;
    let mut ads: Vec<&Map<String, Value>> = state
        .jobs
        .iter()
        .filter(|job| job.is_condor() && shown(job) && meant(job, &options, &constraint))
        .map(|job| &job.ad)
        .collect();
    if order.name == "condor_history" {
        ads.reverse();
    }
    let limit = options.value("limit").and_then(|n| n.parse().ok());
    ads.truncate(limit.unwrap_or(usize::MAX));
    Ok(Reply::says(condor_ads::json(
        &ads,
        options.value("attributes"),
        none,
    )))
}

fn asked(order: Order<'_>, known: &[&str]) -> Result<(Options, Option<Constraint>), Reply> {
    let options = options::condor(order.name, order.arguments, known)?;
    let constraint = match options.value("constraint") {
        None => None,
        Some(text) => Some(
            Constraint::parse(text)
                .map_err(|error| Reply::failed(1, &format!("{}: {error}", order.name)))?,
        ),
    };
    Ok((options, constraint))
}

/// Named by number or cluster, or meeting the constraint; without either every job.
fn meant(job: &Job, options: &Options, constraint: &Option<Constraint>) -> bool {
    let named = options.words.is_empty()
        || options
            .words
            .iter()
            .any(|id| *id == job.id || job.id.split('.').next() == Some(id));
    named && constraint.as_ref().is_none_or(|c| c.meets(&job.ad))
}

/// The jobs in the queue that are meant.
fn chosen<'a>(
    state: &'a mut State,
    options: &Options,
    constraint: &Option<Constraint>,
) -> Vec<&'a mut Job> {
    state
        .jobs
        .iter_mut()
        .filter(|job| job.is_condor() && job.ended.is_none() && meant(job, options, constraint))
        .collect()
}

/// Removes jobs.
pub fn condor_rm(order: Order<'_>) -> std::io::Result<Reply> {
    let (options, constraint) = match asked(order, CHANGING) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    if options.words.is_empty() && constraint.is_none() && !options.has("all") {
        return Ok(Reply::failed(1, "You did not specify any jobs"));
    }
    let patience = if options.has("forcex") { 0.0 } else { VACATE };
    let removed = order.store.change(|state| {
        let mut removed = Vec::new();
        for job in chosen(state, &options, &constraint) {
            job.set_status(super::state::condor::REMOVED);
            let reason = options.value("reason").unwrap_or("via condor_rm (by user)");
            job.ad.insert("RemoveReason".into(), reason.into());
            keeper::stop(job, patience);
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
    let complaint = missing.map(|id| format!("Job {id} not found\n")).collect();
    Ok(Reply {
        complaint,
        ..Reply::says(lines.collect::<String>())
    })
}

/// Changes the priority: `condor_prio -p N ID…`. What it does not find it only tells of.
pub fn condor_prio(order: Order<'_>) -> std::io::Result<Reply> {
    let options = match options::condor(order.name, order.arguments, &["p=", "name="]) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let Some(prio) = options.value("p").and_then(|n| n.parse::<i32>().ok()) else {
        let say = "You must specify a new priority or priority adjustment.";
        return Ok(Reply::failed(1, say));
    };
    order.store.change(|state| {
        for job in chosen(state, &options, &None) {
            job.ad.insert("JobPrio".into(), prio.into());
        }
    })?;
    Ok(Reply::says(String::new()))
}

/// Changes one attribute: `condor_qedit ID… NAME VALUE`, or with `-constraint`.
pub fn condor_qedit(order: Order<'_>) -> std::io::Result<Reply> {
    let (mut options, constraint) = match asked(order, CHANGING) {
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
    let count = order.store.change(|state| {
        let jobs = chosen(state, &options, &constraint);
        let count = jobs.len();
        for job in jobs {
            job.ad.insert(name.clone(), value.clone());
        }
        count
    })?;
    Ok(match count {
        0 => Reply::failed(1, "Failed to set attribute: no jobs matched"),
        count => Reply::says(format!(
            "Set attribute \"{name}\" for {count} matching jobs.\n"
        )),
    })
}

/// The one machine.
pub fn condor_status(order: Order<'_>) -> std::io::Result<Reply> {
    let (options, constraint) = match asked(order, LOOKING) {
        Ok(asked) => asked,
        Err(reply) => return Ok(reply),
    };
    let settings = order.store.read()?.settings;
    let machine = json!({
        "Name": format!("slot1@{NODE}"), "Machine": NODE, "PartitionableSlot": true, "State": "Unclaimed", "Activity": "Idle",
        "Cpus": settings.cpus, "TotalSlotCpus": settings.cpus, "Memory": settings.memory,
        "TotalSlotMemory": settings.memory, "TotalSlotGPUs": 0, "GPUs": 0, "Disk": DISK, "TotalSlotDisk": DISK,
    });
    let machine = machine.as_object().cloned().unwrap_or_default();
    let shown = constraint.is_none_or(|c| c.meets(&machine));
    let ads: Vec<&Map<String, Value>> = shown.then_some(&machine).into_iter().collect();
    Ok(Reply::says(condor_ads::json(
        &ads,
        options.value("attributes"),
        "",
    )))
}
