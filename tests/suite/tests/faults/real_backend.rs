//! A real scheduler below the fake one: the fake's commands fail as scripted, and otherwise run the
//! real commands.

use std::collections::BTreeMap;
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde_json::Value;
use suite_tests::fake_sched::{FakeSched, Job, Settings};

use suite_tests::STEP_TIMEOUT;
use suite_tests::condor_lab::Pool;
use suite_tests::lab::Lab;
use suite_tests::program::{Program, binary};
use suite_tests::slurm_lab::Cluster;
use suite_tests::stack::{Servers, wait_for};

const CPUS: &str = "16";
const MEGABYTES: &str = "8000";
/// States of a Slurm job that is not over.
const LIVE_STATES: [&str; 5] = [
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "SUSPENDED",
    "COMPLETING",
];

/// The real scheduler below the fake one.
pub enum RealScheduler {
    Slurm(Cluster),
    Condor(Pool),
}

impl RealScheduler {
    pub fn slurm() -> Self {
        Self::Slurm(Cluster::up(&["-n", "1", "-c", CPUS, "-m", MEGABYTES]))
    }

    pub fn condor() -> Self {
        Self::Condor(Pool::up(&["--slots", CPUS, "--memory", MEGABYTES]))
    }

    /// The fake before it, which only has its faults; in `dir`, or where the pool's user finds it.
    pub fn fake(&self, dir: &Path) -> FakeSched {
        let (dir, path) = match self {
            Self::Slurm(cluster) => (dir.join("fake"), cluster.lab.path()),
            Self::Condor(pool) => (open_dir(pool), pool.path()),
        };
        let settings = Settings {
            real_path: Some(path),
            ..Settings::default()
        };
        FakeSched::new(&dir, &binary("fake-sched"), settings)
    }

    /// A dispatcher that finds the fake's commands only.
    pub fn dispatcher(
        &self,
        servers: &Servers,
        dir: &Path,
        fake: &FakeSched,
        more: &[&str],
    ) -> Program {
        let path = fake.bin();
        let variables = [("PATH", path.to_str().unwrap())];
        match self {
            Self::Slurm(cluster) => {
                cluster.dispatcher_with(servers, &dir.join("run"), more, &variables)
            }
            Self::Condor(pool) => {
                pool.dispatcher_with(servers, dir, "dispatch-condor", more, &variables)
            }
        }
    }

    /// Submits a job of another user that takes all CPUs, so that later jobs wait. Returns its
    /// number.
    pub fn fill(&self) -> String {
        match self {
            Self::Slurm(cluster) => {
                let words = [
                    "--parsable",
                    "--exclusive",
                    "--output=/dev/null",
                    "--job-name=full",
                    "--wrap",
                    "sleep 1000",
                ];
                let id = cluster.lab.run("sbatch", &words).trim().to_owned();
                wait_for("a full cluster", STEP_TIMEOUT, || {
                    (cluster.job_field(&id, "%T") == "RUNNING").then_some(())
                });
                id
            }
            Self::Condor(pool) => fill(pool),
        }
    }

    /// Cancels a job as an administrator.
    pub fn end(&self, id: &str) {
        match self {
            Self::Slurm(cluster) => cluster.lab.run("scancel", &[id]),
            Self::Condor(pool) => pool.lab.run("condor_rm", &[id]),
        };
    }

    /// Every job there ever was, in the order of their numbers.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs = match self {
            Self::Slurm(cluster) => {
                let query = ["--oneliner", "show", "jobs"];
                let text = patiently(&cluster.lab, "scontrol", &query);
                let jobs = text.lines().filter(|line| line.starts_with("JobId="));
                jobs.flat_map(slurm_jobs).collect::<Vec<Job>>()
            }
            Self::Condor(pool) => {
                // Reads the queue first: a job that leaves it meanwhile is in both.
                let queued = pool.queue();
                let left = patiently(&pool.lab, "condor_history", &["-json"]);
                let left: Vec<Value> = serde_json::from_str(&left).unwrap();
                let is_left = |ad: &&Value| !left.iter().any(|other| id(other) == id(ad));
                let queued = queued
                    .iter()
                    .filter(is_left)
                    .map(|ad| condor_job(ad, false));
                queued
                    .chain(left.iter().map(|ad| condor_job(ad, true)))
                    .collect()
            }
        };
        jobs.sort_by_key(|job| numbers(&job.id));
        jobs
    }
}

/// A command's output. It is repeated until its daemon answers.
fn patiently(lab: &Lab, program: &str, args: &[&str]) -> String {
    wait_for(program, STEP_TIMEOUT, || lab.try_run(program, args))
}

/// The directory that is first in the PATH of a pool's dispatchers. Everybody may write there.
fn open_dir(pool: &Pool) -> PathBuf {
    pool.wrappers().parent().unwrap().to_owned()
}

fn fill(pool: &Pool) -> String {
    let file = open_dir(pool).join("full");
    let description = format!(
        "executable = /bin/sleep\narguments = 1000\ntransfer_executable = false\nshould_transfer_files = no\n\
         request_cpus = {CPUS}\nrequest_memory = 16\nrequest_disk = 1\nqueue\n"
    );
    fs::write(&file, description).unwrap();
    let file = file.to_str().unwrap();
    let answer = pool.lab.run("condor_submit", &["-terse", file]);
    let job = answer.split_whitespace().next().unwrap().to_owned();
    wait_for("a full pool", STEP_TIMEOUT, || {
        let queue = pool.queue();
        let mut fillers = queue.iter().filter(|ad| id(ad) == job);
        fillers.any(|ad| ad["JobStatus"] == 2).then_some(())
    });
    job
}

/// `12_3`, `12.0`: cluster or array first.
fn numbers(id: &str) -> Vec<u64> {
    let numbers = id.split(|c: char| !c.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Parses a line of `scontrol show jobs`: a job, or elements of an array that have not been changed
/// alone yet. No value of our jobs has a blank.
fn slurm_jobs(line: &str) -> Vec<Job> {
    let pairs: BTreeMap<&str, &str> = line
        .split_whitespace()
        .filter_map(|word| word.split_once('='))
        .collect();
    let text = |key| {
        pairs
            .get(key)
            .map_or_else(String::new, |value| (*value).to_owned())
    };
    let time = |key| pairs.get(key).and_then(|time| time.parse::<f64>().ok());
    let state = text("JobState");
    let node = Some(text("NodeList")).filter(|node| !["", "(null)"].contains(&node.as_str()));
    // A cancelled job has exit status 0 as well, and so has a job that a signal ended: `0:15`.
    let by_itself = ["COMPLETED", "FAILED"].contains(&state.as_str());
    let (exit, signal) = pairs["ExitCode"].split_once(':').unwrap();
    let signal = signal.parse().ok().filter(|signal| *signal != 0);
    let job = Job {
        name: text("JobName"),
        comment: pairs.get("Comment").map(|comment| (*comment).to_owned()),
        submitted: time("SubmitTime").unwrap_or_default(),
        started: node.as_ref().and_then(|_| time("StartTime")),
        node,
        exit: (by_itself && signal.is_none())
            .then(|| exit.parse().ok())
            .flatten(),
        signal,
        ended: time("EndTime").filter(|_| !LIVE_STATES.contains(&state.as_str())),
        state,
        ..Job::default()
    };
    let ids = match (pairs.get("ArrayJobId"), pairs.get("ArrayTaskId")) {
        (Some(array), Some(elements)) => {
            let numbers = elements.split(',').flat_map(range);
            numbers.map(|n| format!("{array}_{n}")).collect()
        }
        _ => vec![text("JobId")],
    };
    let named = |id| Job { id, ..job.clone() };
    ids.into_iter().map(named).collect()
}

/// `4`, or `4-9`.
fn range(text: &str) -> RangeInclusive<u32> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    first.parse().unwrap()..=last.parse().unwrap()
}

fn id(ad: &Value) -> String {
    format!("{}.{}", ad["ClusterId"], ad["ProcId"])
}

fn condor_job(ad: &Value, left: bool) -> Job {
    let text = |key: &str| ad[key].as_str().map(str::to_owned);
    let time = |key: &str| ad[key].as_f64();
    Job {
        id: id(ad),
        name: text("ContainerUUID").unwrap_or_default(),
        comment: text("AttemptUUID"),
        submitted: time("QDate").unwrap_or_default(),
        started: time("JobStartDate"),
        ended: left.then(|| time("EnteredCurrentStatus")).flatten(),
        exit: ad["ExitCode"]
            .as_i64()
            .and_then(|code| i32::try_from(code).ok()),
        ad: ad.as_object().cloned().unwrap_or_default(),
        ..Job::default()
    }
}

#[test]
fn only_a_job_that_ended_by_itself_has_an_exit_status() {
    for (state, code, exit, signal) in [
        ("COMPLETED", "0:0", Some(0), None),
        ("FAILED", "75:0", Some(75), None),
        ("FAILED", "0:15", None, Some(15)),
        ("CANCELLED", "0:0", None, None),
        ("CANCELLED", "0:9", None, Some(9)),
        ("RUNNING", "0:0", None, None),
    ] {
        let line = format!("JobId=7 JobName=x JobState={state} ExitCode={code}");
        let jobs = slurm_jobs(&line);
        assert_eq!((jobs[0].exit, jobs[0].signal), (exit, signal), "{line}");
    }
}
