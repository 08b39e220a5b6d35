//! `sbatch`: options, the script on stdin, a new job.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::keeper::{self, Plan};
use super::state::{Job, now};
use super::{Order, Reply, options};

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
    "d:dependency=",
    "reservation=",
    "test-only",
    "Q:quiet",
];

/// Takes a job.
pub fn sbatch(order: Order<'_>) -> std::io::Result<Reply> {
    let options = match options::slurm(order.name, order.arguments, OPTIONS) {
        Ok(options) => options,
        Err(reply) => return Ok(reply),
    };
    if !order.input.starts_with("#!") {
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
    let (id, runs) = order.store.add(|id| {
        let text = |name: &str| options.value(name).map(str::to_owned);
        vec![Job {
            id: id.to_string(),
            name: text("job-name").unwrap_or_else(|| "sbatch".into()),
            comment: text("comment"),
            user: rustix::process::getuid().as_raw(),
            state: "PENDING".into(),
            reason: "None".into(),
            nice: text("nice").and_then(|n| n.parse().ok()).unwrap_or(0),
            partition: text("partition").unwrap_or_else(|| "debug".into()),
            options: given,
            submitted: now(),
            ..Job::default()
        }]
    })?;
    let id = id.to_string();
    let script = keeper::directory(order.store, &id).join("script");
    let path = |name: &str| options.value(name).map(|text| text.replace("%%", "%"));
    let plan = Plan {
        program: interpreter(order.input),
        arguments: vec![script.to_string_lossy().into_owned()],
        environment: std::env::vars().collect(),
        transfer: None,
        directory: Path::new(&path("chdir").unwrap_or_else(|| "/".into())).to_owned(),
        output: PathBuf::from(path("output").unwrap_or_else(|| format!("slurm-{id}.out"))),
    };
    keeper::prepare(order.store, &id, &plan)?;
    fs::write(&script, order.input)?;
    if runs && !options.has("hold") {
        keeper::start(order.store, &std::env::current_exe()?, &id)?;
    }
    Ok(Reply::says(match options.has("parsable") {
        true => format!("{id}\n"),
        false => format!("Submitted batch job {id}\n"),
    }))
}

fn interpreter(script: &str) -> PathBuf {
    let first = script.lines().next().unwrap_or_default();
    PathBuf::from(first.trim_start_matches("#!").trim())
}
