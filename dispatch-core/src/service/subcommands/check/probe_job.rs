//! The probe job of `check --submit-test`: a real job, submitted like a container's and then
//! removed.
//!
//! On its node, crunch-run checks the requirements of containers, with the flags and variables of
//! container jobs. Output: findings about the node.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;

use preflight::{Finding, NodeReport};

use crate::model::resources::ResourceRequest;

const CHECK_NAME: &str = "submit test";
/// Time limit of the job. Some partitions take only short jobs.
const MAX_RUN_TIME: Duration = Duration::from_secs(300);
/// Interval between two queries of the job.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Time limit of crunch-run's check, after the job started.
const CHECK_TIMEOUT: Duration = Duration::from_secs(40);
/// Maximum number of bytes of the job's output that are read. Of its end, at most
/// [`OUTPUT_TAIL_CHARS`] characters are shown.
const MAX_OUTPUT_READ: u64 = 1 << 20;
const OUTPUT_TAIL_CHARS: usize = 1000;
/// Time for which a scheduler that does not answer is asked again.
const NO_REPLY_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for a cancelled job to end.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of the probe job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeOptions {
    /// Time limit for the job to start.
    pub start_timeout: Duration,
    /// Node on which the job must run.
    pub node: Option<String>,
    /// Partition in which the job must run.
    pub partition: Option<String>,
    /// Number of GPUs that the job asks for.
    pub gpus: u32,
}

/// The state of the job in the scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProbeState {
    /// The job is pending, with this reason.
    Pending(String),
    /// The job runs on this node.
    Running(String),
    /// The job ended, or will never run, with this explanation.
    Ended(String),
}

/// A scheduler that can run probe jobs.
pub trait ProbeScheduler {
    /// Command that submits a job.
    const SUBMIT: &'static str;
    /// Command that cancels a job, without the job's number.
    const CANCEL: &'static str;
    /// Remedy if crunch-run is not seen to run.
    const REMEDY: &'static str;
    /// Maximum delay with which the job's output arrives.
    const OUTPUT_DELAY: Duration;

    /// Submits a job with these needs that runs crunch-run with `--check`, on `node` if one is
    /// named. Its output must arrive in `output.log` in `place`. Returns the job's number.
    fn submit(
        &self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
        place: &Path,
        node: Option<&str>,
    ) -> impl Future<Output = Result<String, Box<dyn Error>>>;

    /// State of the job. An error means that the scheduler did not answer.
    fn state(&self, job: &str) -> impl Future<Output = Result<ProbeState, String>>;

    /// The reason for which a pending job can never start, if that is known.
    fn never_starts_because(
        &self,
        _job: &str,
        _needs: &ResourceRequest,
    ) -> impl Future<Output = Option<String>> {
        async { None }
    }

    /// Cancels the job.
    fn cancel(&self, job: &str) -> impl Future<Output = Result<(), String>>;
}

/// A directory for the probe job, removed on drop.
struct ProbeDir(PathBuf);

impl ProbeDir {
    fn new(directory: &Path, container: &ContainerUuid) -> std::io::Result<Self> {
        let path = directory.join(format!("check-{container}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for ProbeDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Parses crunch-run's report from the job's output. It is one whole line among others, because the
/// site's scripts may print lines too.
fn parse_report(output: &str) -> Option<NodeReport> {
    let (whole, _) = output.rsplit_once('\n')?;
    let read = |line| serde_json::from_str(line).ok();
    whole.lines().rev().find_map(read)
}

/// The findings about a node on which the job asked for this number of GPUs.
fn findings(node: NodeReport, gpus: u32) -> impl Iterator<Item = Finding> {
    let granted = (gpus > 0).then(|| evaluate_granted_gpus(&node, gpus));
    let of_node = node.report.findings.into_iter().map(move |found| {
        let what = format!("{}, {}", node.host, found.what);
        Finding::new(found.level, what, found.finding, found.remedy.as_deref())
    });
    granted.into_iter().chain(of_node)
}

fn evaluate_granted_gpus(node: &NodeReport, asked: u32) -> Finding {
    let what = format!("{}, granted GPUs", node.host);
    let granted = node.granted_gpus.join(",");
    match node.granted_gpus.len() >= asked as usize {
        true => Finding::ok(&what, granted),
        false => Finding::fail(
            &what,
            format!("the job asked for {asked}, and its environment names: {granted:?}"),
            "check the GPUs that the scheduler has for this node (gres.conf; GPUs of HTCondor), and the arguments for containers with GPUs: `--dry-run UUID` of such a container shows them",
        ),
    }
}

/// Runs the probe job and returns its findings.
pub async fn run<T: ProbeScheduler>(
    trial: &T,
    directory: &Path,
    options: &ProbeOptions,
) -> Vec<Finding> {
    let mut node = None;
    let test = test(trial, directory, options, &mut node).await;
    let node = node
        .into_iter()
        .flat_map(|node| findings(node, options.gpus));
    std::iter::once(test).chain(node).collect()
}

async fn test<T: ProbeScheduler>(
    trial: &T,
    directory: &Path,
    options: &ProbeOptions,
    node: &mut Option<NodeReport>,
) -> Finding {
    // The prefix makes a name that no container has.
    let container = ContainerUuid::generate("check");
    let probe_dir = match ProbeDir::new(directory, &container) {
        Ok(probe_dir) => probe_dir,
        Err(error) => {
            let words = format!("cannot write to {}: {error}", directory.display());
            return Finding::fail(CHECK_NAME, words, "make it writable for this user");
        }
    };
    let needs = ResourceRequest {
        cpus: 1,
        ram: 256 << 20,
        max_run_time: Some(MAX_RUN_TIME.as_secs()),
        partitions: options.partition.iter().cloned().collect(),
        gpus: options.gpus,
        ..ResourceRequest::default()
    };
    let node_name = options.node.as_deref();
    let submitted = trial.submit(&container, &needs, &probe_dir.0, node_name);
    let job = match submitted.await {
        Ok(job) => job,
        Err(error) => {
            let command = T::SUBMIT;
            return Finding::fail(
                CHECK_NAME,
                format!("{command} accepted no job: {error}"),
                format!(
                    "mend what {command} says: a missing account or partition, for example; `--dry-run UUID` shows the command for a container"
                ),
            );
        }
    };
    let seen = watch(trial, &job, &needs, &probe_dir.0, options.start_timeout).await;
    let gone = cancel(trial, &job).await;
    match (seen, gone) {
        (Ok((words, seen)), Ok(())) => {
            *node = Some(seen);
            Finding::ok(CHECK_NAME, format!("job {job} {words}, and is gone"))
        }
        (Err(ProbeFailure::Waits(words)), Ok(())) => Finding::warn(
            CHECK_NAME,
            format!(
                "job {job} was accepted and removed, but did not start within {} s: {words}",
                options.start_timeout.as_secs()
            ),
            "try again when a node is free, or with a larger --timeout",
        ),
        (Err(ProbeFailure::Never(why)), Ok(())) => Finding::fail(
            CHECK_NAME,
            format!("job {job} was accepted and removed; it could never have started: {why}"),
            "change the resources that every job requests, or check what the machines offer",
        ),
        (Err(ProbeFailure::Never(words) | ProbeFailure::Failed(words)), _) => {
            Finding::fail(CHECK_NAME, format!("job {job} {words}"), T::REMEDY)
        }
        (_, Err(error)) => Finding::fail(
            CHECK_NAME,
            format!("job {job} could not be removed: {error}"),
            format!("{} {job}", T::CANCEL),
        ),
    }
}

/// The reason for which the job was not seen to run.
enum ProbeFailure {
    /// The job waits for something that does not exist.
    Never(String),
    /// The job is still pending.
    Waits(String),
    /// The job ended, or wrote no output.
    Failed(String),
}

async fn state<T: ProbeScheduler>(trial: &T, job: &str) -> Result<ProbeState, String> {
    let began = Instant::now();
    loop {
        match trial.state(job).await {
            Err(_) if began.elapsed() < NO_REPLY_TIMEOUT => tokio::time::sleep(POLL_INTERVAL).await,
            answered => return answered,
        }
    }
}

async fn watch<T: ProbeScheduler>(
    trial: &T,
    job: &str,
    needs: &ResourceRequest,
    place: &Path,
    timeout: Duration,
) -> Result<(String, NodeReport), ProbeFailure> {
    let began = Instant::now();
    let (mut started, mut ended) = (None, None);
    let mut node = String::new();
    loop {
        let answer = state(trial, job).await;
        let state =
            answer.map_err(|error| ProbeFailure::Failed(format!("cannot be queried: {error}")))?;
        let output = read_output(&place.join("output.log"));
        if let ProbeState::Running(name) = &state {
            node = format!(" on {name}");
        }
        // The job may have ended before it was seen running.
        if let (ProbeState::Ended(words), true) = (&state, node.is_empty()) {
            node = format!(" (it {words})");
        }
        let seconds = began.elapsed().as_secs_f64();
        if let Some(seen) = parse_report(&output) {
            let (version, uid) = (&seen.version, seen.uid);
            let words = format!(
                "was accepted, and crunch-run {version} checked its node as uid {uid}{node}, {seconds:.1} s later"
            );
            return Ok((words, seen));
        }
        let output = output.trim();
        let is_over = |since: &mut Option<Instant>, time: Duration| {
            since.get_or_insert_with(Instant::now).elapsed() >= time
        };
        let missing = |words: String| {
            let path = place.display();
            ProbeFailure::Failed(format!("{words}; its output does not arrive in {path}"))
        };
        match state {
            ProbeState::Pending(words) if began.elapsed() > timeout => {
                return Err(match trial.never_starts_because(job, needs).await {
                    Some(why) => ProbeFailure::Never(why),
                    None => ProbeFailure::Waits(words),
                });
            }
            ProbeState::Ended(words) if !output.is_empty() => {
                let last = output.char_indices().rev().nth(OUTPUT_TAIL_CHARS);
                let output = last.map_or(output, |(from, _)| &output[from..]);
                return Err(ProbeFailure::Failed(format!(
                    "{words}; its output ends with: {output}"
                )));
            }
            ProbeState::Ended(words) if is_over(&mut ended, T::OUTPUT_DELAY) => {
                return Err(missing(words));
            }
            ProbeState::Running(_) if is_over(&mut started, CHECK_TIMEOUT + T::OUTPUT_DELAY) => {
                return Err(missing(format!("runs{node}")));
            }
            ProbeState::Pending(_) | ProbeState::Running(_) | ProbeState::Ended(_) => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Reads the job's output, text or not. A site's scripts may print lines before crunch-run.
fn read_output(file: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(file) {
        // Output that cannot be read has not arrived yet.
        let _ = file.take(MAX_OUTPUT_READ).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn cancel<T: ProbeScheduler>(trial: &T, job: &str) -> Result<(), String> {
    let cancelled = trial.cancel(job).await;
    let began = Instant::now();
    // A job that ended by itself meanwhile cannot be cancelled, and need not be.
    while !matches!(state(trial, job).await?, ProbeState::Ended(_)) {
        cancelled.clone()?;
        if began.elapsed() > CANCEL_TIMEOUT {
            return Err(format!(
                "it is still there {} s later",
                CANCEL_TIMEOUT.as_secs()
            ));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
