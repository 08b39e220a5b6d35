//! A real job, submitted as containers are, seen to start, and cancelled: it shows that a node sees the shared directory
//! and has crunch-run.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;
use dispatch_core::check::Finding;
use dispatch_core::handover::job_number;
use dispatch_core::needs::Needs;

use crate::settings::Settings;
use crate::submission::Job;

const WHAT: &str = "submit test";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// A job that was cancelled is gone by then.
const FAREWELL: Duration = Duration::from_secs(60);
/// The last line that the job writes.
const READY: &str = "crunch-run is there";

/// A directory of its own in the shared one, gone afterwards.
struct Place(PathBuf);

impl Place {
    fn new(shared: &Path, container: &ContainerUuid) -> std::io::Result<Self> {
        let path = shared.join(format!("check-{container}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Does it. The job may take `patience` to start.
pub async fn run(settings: &Settings, shared: &Path, patience: Duration) -> Finding {
    // A name no container has.
    let container = ContainerUuid::generate("check");
    let place = match Place::new(shared, &container) {
        Ok(place) => place,
        Err(error) => {
            let words = format!("cannot write to {}: {error}", shared.display());
            return Finding::fail(WHAT, words, "make it writable for this user");
        }
    };
    let job = match submit(settings, &container, &place.0).await {
        Ok(job) => job,
        Err(error) => {
            return Finding::fail(
                WHAT,
                format!("sbatch took no job: {error}"),
                "see what `--dry-run UUID` shows, and what sbatch says to the same line by hand",
            );
        }
    };
    let seen = watch(settings, &job, &place.0, patience).await;
    let gone = cancel(settings, &job).await;
    match (seen, gone) {
        (Ok(words), Ok(())) => Finding::ok(WHAT, format!("job {job} {words}, and was cancelled")),
        (Err(Unseen::Waits(words)), Ok(())) => Finding::warn(
            WHAT,
            format!(
                "job {job} was accepted and cancelled, but did not start within {} s: {words}",
                patience.as_secs()
            ),
            "try again when a node is free, or with a larger --wait",
        ),
        (Err(Unseen::Failed(words)), _) => Finding::fail(
            WHAT,
            format!("job {job} {words}"),
            "see that nodes have crunch-run where --crunch-run says, and --shared-dir at the same place",
        ),
        (_, Err(error)) => Finding::fail(
            WHAT,
            format!("job {job} could not be cancelled: {error}"),
            format!("scancel {job}"),
        ),
    }
}

async fn submit(
    settings: &Settings,
    container: &ContainerUuid,
    place: &Path,
) -> Result<String, Box<dyn std::error::Error>> {
    let needs = Needs {
        cpus: 1,
        ram: 64 << 20,
        max_run_time: Some(600),
        ..Needs::default()
    };
    let arguments = settings.sbatch(Job {
        container,
        needs: &needs,
        comment: "dispatch-slurm check",
        output: &place.join("output.log"),
        avoid: &[],
    })?;
    let crunch_run = settings
        .crunch_run
        .first()
        .map_or("crunch-run", |word| word);
    let crunch_run = shlex::try_quote(crunch_run)?;
    // It ends by itself, should nobody be there to cancel it.
    let script = format!("#!/bin/sh\n{crunch_run} --version && echo {READY} && exec sleep 600\n");
    let answer = settings.command(arguments, script).succeed().await?;
    Ok(job_number(&answer.output, ";"))
}

/// Why the job was not seen to run.
enum Unseen {
    /// It waits.
    Waits(String),
    /// It ended, or wrote nothing.
    Failed(String),
}

async fn watch(
    settings: &Settings,
    job: &str,
    place: &Path,
    patience: Duration,
) -> Result<String, Unseen> {
    let began = Instant::now();
    loop {
        let said = fs::read_to_string(place.join("output.log")).unwrap_or_default();
        let state = state(settings, job).await.map_err(Unseen::Failed)?;
        let [word, reason, node] = state.as_ref().map_or(["GONE", "", ""], State::words);
        let seconds = began.elapsed().as_secs_f64();
        if let Some(version) = said.strip_suffix(&format!("{READY}\n")) {
            let version = version.lines().last().unwrap_or_default();
            return Ok(format!(
                "was accepted, and ran {version} on {node} after {seconds:.1} s"
            ));
        }
        let waits = matches!(word, "PENDING" | "CONFIGURING");
        if !waits && word != "RUNNING" {
            return Err(Unseen::Failed(format!(
                "ended as {word} on {node}; it said: {said:?}"
            )));
        }
        if began.elapsed() > patience {
            return Err(match waits {
                true => Unseen::Waits(format!("Slurm says {reason}")),
                false => Unseen::Failed(format!(
                    "runs on {node}, but what it says does not arrive in {}",
                    place.display()
                )),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn cancel(settings: &Settings, job: &str) -> Result<(), String> {
    let command = settings.client("scancel").args([job]);
    command.succeed().await.map_err(|error| error.to_string())?;
    let began = Instant::now();
    loop {
        let state = state(settings, job).await?;
        let active = state.is_some_and(|state| {
            matches!(
                state.words()[0],
                "PENDING" | "CONFIGURING" | "RUNNING" | "COMPLETING"
            )
        });
        if !active {
            return Ok(());
        }
        if began.elapsed() > FAREWELL {
            return Err(format!("it is still there {} s later", FAREWELL.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// A line of squeue.
struct State(String);

impl State {
    /// State, reason, nodes.
    fn words(&self) -> [&str; 3] {
        let mut fields = self.0.split('|').map(str::trim);
        std::array::from_fn(|_| fields.next().unwrap_or_default())
    }
}

/// None: Slurm does not know it any more.
async fn state(settings: &Settings, job: &str) -> Result<Option<State>, String> {
    let arguments = ["--noheader", "--all", "--states=all", "--format=%T|%r|%N"];
    let command = settings.client("squeue").args(arguments);
    let command = command.args([format!("--jobs={job}")]);
    match command.succeed().await {
        Ok(answer) => {
            let line = answer.output.lines().rfind(|line| line.contains('|'));
            Ok(line.map(|line| State(line.to_owned())))
        }
        Err(error) if error.to_string().contains("Invalid job id") => Ok(None),
        Err(error) => Err(format!("cannot be asked for: {error}")),
    }
}
