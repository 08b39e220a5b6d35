//! `condor_submit`: a description on stdin, one new job.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::condor_ads::{literal, words};
use super::job_runner::{self, Plan};
use super::state::{Job, condor, now};
use super::{Invocation, Reply, options};

const OPTIONS: &[&str] = &["terse", "verbose", "spool", "name=", "file="];
/// The supported keys. Other lines give a warning and are ignored, as in HTCondor.
const KNOWN_KEYS: &[&str] = &[
    "universe",
    "executable",
    "transfer_executable",
    "arguments",
    "environment",
    "should_transfer_files",
    "when_to_transfer_output",
    "transfer_output_files",
    "transfer_input_files",
    "output",
    "error",
    "log",
    "request_cpus",
    "request_memory",
    "request_disk",
    "request_gpus",
    "notification",
    "max_retries",
    "periodic_remove",
    "periodic_hold",
    "on_exit_remove",
    "kill_sig",
    "want_graceful_removal",
    "job_max_vacate_time",
    "allowed_execute_duration",
    "allowed_job_duration",
    "priority",
    "requirements",
    "rank",
    "accounting_group",
    "concurrency_limits",
    "job_lease_duration",
    "leave_in_queue",
    "batch_name",
    "hold",
];

/// A description, read.
#[derive(Debug, Default)]
struct Description {
    lines: BTreeMap<String, String>,
    attributes: Map<String, Value>,
    unused: Vec<String>,
    count: usize,
}

impl Description {
    fn read(text: &str) -> Result<Self, String> {
        let mut description = Self::default();
        for line in text.lines().map(str::trim) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(count) = line.strip_prefix("queue") {
                let count = count.trim();
                description.count += match count.is_empty() {
                    true => 1,
                    false => count
                        .parse()
                        .map_err(|_| format!("invalid queue statement: {line}"))?,
                };
                continue;
            }
            let (key, value) = line
                .split_once('=')
                .ok_or_else(|| format!("Parse error in expression: {line}"))?;
            let (key, value) = (key.trim(), value.trim());
            match key.strip_prefix('+') {
                Some(name) => {
                    let value = literal(value)
                        .ok_or_else(|| format!("Parse error in expression: {line}"))?;
                    description.attributes.insert(name.to_owned(), value);
                }
                None => {
                    let key = key.to_ascii_lowercase();
                    if !KNOWN_KEYS.contains(&key.as_str()) {
                        description.unused.push(line.to_owned());
                    }
                    description.lines.insert(key, value.to_owned());
                }
            }
        }
        match (description.count, description.line("executable")) {
            (0, _) => Err("no 'queue' statement in the submit description".into()),
            (_, None) => Err("No 'executable' parameter was provided".into()),
            _ => Ok(description),
        }
    }

    fn is_held(&self) -> bool {
        self.line("hold") == Some("true")
    }

    fn line(&self, key: &str) -> Option<&str> {
        self.lines.get(key).map(String::as_str)
    }

    fn words(&self, key: &str) -> Result<Vec<String>, String> {
        match self.line(key) {
            None => Ok(Vec::new()),
            Some(text) => words(text).ok_or_else(|| format!("cannot parse {key}: {text}")),
        }
    }

    fn plan(&self) -> Result<Plan, String> {
        let path = |key: &str| PathBuf::from(self.line(key).unwrap_or("/dev/null"));
        let variables = self.words("environment")?;
        let environment = variables
            .iter()
            .filter_map(|word| word.split_once('='))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            // The variables that HTCondor sets on a node.
            .chain([("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())])
            .collect();
        let files = self.line("transfer_input_files").unwrap_or_default();
        let files = files.split(',').map(str::trim).filter(|f| !f.is_empty());
        Ok(Plan {
            program: path("executable"),
            arguments: self.words("arguments")?,
            environment,
            transfer: Some(files.map(|file| Path::new(file).to_owned()).collect()),
            directory: "/".into(),
            output: path("output"),
        })
    }
}

/// One description per item of `queue A,B from ( … )`; without such a line, the description itself.
fn each_item(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let from = |line: &&str| line.starts_with("queue ") && line.ends_with(" from (");
    let Some(at) = lines.iter().position(from) else {
        return vec![text.to_owned()];
    };
    let names = lines[at].trim_start_matches("queue ");
    let names: Vec<&str> = names.trim_end_matches(" from (").split(',').collect();
    let items = lines[at + 1..].iter().take_while(|line| **line != ")");
    items
        .map(|item| {
            let mut one = lines[..at].join("\n") + "\nqueue 1\n";
            for (name, value) in names.iter().zip(item.splitn(names.len(), ',')) {
                one = one.replace(&format!("$({})", name.trim()), value.trim());
            }
            one
        })
        .collect()
}

/// Takes jobs.
pub fn condor_submit(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::condor(call.name, call.arguments, OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    let read: Result<Vec<(Plan, Description)>, String> = each_item(call.input)
        .iter()
        .map(|text| Description::read(text).and_then(|d| Ok((d.plan()?, d))))
        .collect();
    let jobs: Vec<(Plan, Description)> = match read {
        Ok(jobs) if !jobs.is_empty() => jobs,
        Ok(_) => return Ok(Reply::failed(1, "ERROR: no jobs are queued")),
        Err(error) => return Ok(Reply::failed(1, &format!("ERROR: {error}"))),
    };
    let most = call.store.read_rest()?.settings.max_cpus;
    let cpus = |description: &Description| description.line("request_cpus")?.parse::<i64>().ok();
    if let Some(most) = most
        && jobs.iter().any(|(_, d)| cpus(d).is_some_and(|n| n > most))
    {
        let why = "ERROR: Failed to commit job submission into the queue.\nERROR: more CPUs than may be asked for";
        return Ok(Reply::failed(1, why));
    }
    let (cluster, runs) = call.store.add(|cluster| {
        let jobs = jobs.iter().enumerate();
        jobs.map(|(process, (_, description))| job(description, cluster, process))
            .collect()
    })?;
    for (process, (plan, description)) in jobs.iter().enumerate() {
        let id = format!("{cluster}.{process}");
        job_runner::prepare(call.store, &id, plan)?;
        if runs && !description.is_held() {
            job_runner::start(call.store, &id)?;
        }
    }
    let last = jobs.len() - 1;
    let description = &jobs[0].1;
    let mut reply = Reply::with_output(match options.has("terse") {
        true => format!("{cluster}.0 - {cluster}.{last}\n"),
        false => format!(
            "Submitting job(s).\n{} job(s) submitted to cluster {cluster}.\n",
            last + 1
        ),
    });
    for line in &description.unused {
        reply.errors.push_str(&format!(
            "WARNING: the line '{line}' was unused by condor_submit. Is it a typo?\n"
        ));
    }
    Ok(reply)
}

fn job(description: &Description, cluster: u64, process: usize) -> Job {
    let mut ad = description.attributes.clone();
    let submitted = now();
    let (status, state) = match description.is_held() {
        true => (condor::HELD, "REQUEUE_HOLD"),
        false => (condor::IDLE, "PENDING"),
    };
    for (name, value) in [
        ("ClusterId", json!(cluster)),
        ("ProcId", json!(process)),
        ("JobStatus", json!(status)),
        ("JobPrio", json!(0)),
        ("NumJobStarts", json!(0)),
        ("Owner", json!("user")),
        ("QDate", json!(submitted as i64)),
    ] {
        ad.insert(name.into(), value);
    }
    let number = |key: &str| description.line(key).and_then(|t| t.parse::<i64>().ok());
    for (attribute, key) in [
        ("JobPrio", "priority"),
        ("RequestCpus", "request_cpus"),
        ("RequestMemory", "request_memory"),
    ] {
        if let Some(value) = number(key) {
            ad.insert(attribute.into(), value.into());
        }
    }
    let container = ad.get("ContainerUUID").and_then(Value::as_str);
    Job {
        id: format!("{cluster}.{process}"),
        name: container.unwrap_or_default().to_owned(),
        comment: ad
            .get("AttemptUUID")
            .and_then(Value::as_str)
            .map(str::to_owned),
        user: rustix::process::getuid().as_raw(),
        state: state.into(),
        options: description
            .lines
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().into()))
            .collect(),
        ad,
        submitted,
        ..Job::default()
    }
}
