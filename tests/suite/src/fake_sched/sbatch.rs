//! `sbatch`: options, the script on stdin, a new job.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::job_runner::{self, Plan};
use super::state::{Job, now};
use super::{Invocation, Reply, options};

const OPTIONS: &[&str] = &[
    "parsable",
    "no-requeue",
    "requeue",
    "H:hold",
    "nice=",
    "open-mode=",
    "o:output=",
    "e:error=",
    "D:chdir=",
    "J:job-name=",
    "mem=",
    "mem-per-cpu=",
    "c:cpus-per-task=",
    "n:ntasks=",
    "N:nodes=",
    "tmp=",
    "t:time=",
    "p:partition=",
    "G:gpus=",
    "gres=",
    "comment=",
    "A:account=",
    "q:qos=",
    "C:constraint=",
    "x:exclude=",
    "L:licenses=",
    "export=",
    "signal=",
    "a:array=",
    "b:begin=",
    "d:dependency=",
    "reservation=",
    "test-only",
    "Q:quiet",
];

/// Why a job waits that is to begin later.
pub const BEGIN_TIME_REASON: &str = "BeginTime";
/// `MaxArraySize` is one more.
const MAX_ARRAY_INDEX: u64 = 1000;

/// Accepts a job, or an array of jobs.
pub fn sbatch(call: Invocation<'_>) -> std::io::Result<Reply> {
    let options = match options::slurm(call.name, call.arguments, OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    if !call.input.starts_with("#!") {
        return Ok(Reply::failed(
            1,
            "sbatch: error: This does not look like a batch script.  The first\nsbatch: error: line must start with #! followed by the path to an interpreter.",
        ));
    }
    let given: Map<String, Value> = options
        .given
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let numbers = match options.value("array").map(elements) {
        None => vec![None],
        Some(Some(last)) => (0..=last).map(Some).collect(),
        Some(None) => {
            let say = "sbatch: error: Batch job submission failed: Invalid job array specification";
            return Ok(Reply::failed(1, say));
        }
    };
    let later = options.has("begin");
    let (id, runs) = call.store.add(|id| {
        let text = |name: &str| options.value(name).map(str::to_owned);
        let job = |number: &Option<u64>| Job {
            id: job_id(id, *number),
            name: text("job-name").unwrap_or_else(|| "sbatch".into()),
            comment: text("comment"),
            user: rustix::process::getuid().as_raw(),
            state: "PENDING".into(),
            reason: if later { BEGIN_TIME_REASON } else { "None" }.into(),
            nice: text("nice").and_then(|n| n.parse().ok()).unwrap_or(0),
            partition: text("partition").unwrap_or_else(|| "debug".into()),
            options: given.clone(),
            submitted: now(),
            ..Job::default()
        };
        numbers.iter().map(job).collect()
    })?;
    let path = |name: &str| options.value(name).map(|text| text.replace("%%", "%"));
    for number in &numbers {
        let job = job_id(id, *number);
        let job_dir = job_runner::directory(call.store, &job);
        let script = job_dir.join("script");
        let task = number.map(|n| ("SLURM_ARRAY_TASK_ID".to_owned(), n.to_string()));
        let plan = Plan {
            program: interpreter(call.input),
            arguments: vec![script.to_string_lossy().into_owned()],
            environment: std::env::vars().chain(task).collect(),
            transfer: None,
            directory: Path::new(&path("chdir").unwrap_or_else(|| "/".into())).to_owned(),
            output: PathBuf::from(path("output").unwrap_or_else(|| format!("slurm-{job}.out"))),
        };
        fs::create_dir_all(job_dir)?;
        fs::write(&script, call.input)?;
        // Written last: a job that starts meanwhile waits for its plan.
        job_runner::prepare(call.store, &job, &plan)?;
        if runs && !options.has("hold") && !later {
            job_runner::start(call.store, &job)?;
        }
    }
    Ok(Reply::with_output(match options.has("parsable") {
        true => format!("{id}\n"),
        false => format!("Submitted batch job {id}\n"),
    }))
}

/// The last index of `0-N`, the only form that is supported.
fn elements(array: &str) -> Option<u64> {
    let last = array.strip_prefix("0-")?.parse().ok()?;
    (last <= MAX_ARRAY_INDEX).then_some(last)
}

fn job_id(id: u64, number: Option<u64>) -> String {
    number.map_or_else(|| id.to_string(), |number| format!("{id}_{number}"))
}

fn interpreter(script: &str) -> PathBuf {
    let first = script.lines().next().unwrap_or_default();
    PathBuf::from(first.trim_start_matches("#!").trim())
}
