//! A real job, submitted as containers are, seen to run crunch-run, and removed: only that shows that nodes have what
//! they need.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;

use super::Finding;
use crate::needs::Needs;

const WHAT: &str = "submit test";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// A job that was cancelled is gone by then.
const FAREWELL: Duration = Duration::from_secs(60);

/// What the scheduler says of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// It waits, for this.
    Waits(String),
    /// It runs, on this node.
    Runs(String),
    /// It ended, or never will, in these words.
    Ended(String),
}

/// A scheduler, for such a job.
pub trait Trial {
    /// The command that submits.
    const SUBMIT: &'static str;
    /// The command that ends a job, before its number.
    const CANCEL: &'static str;
    /// What to do when crunch-run is not seen to run.
    const MEND: &'static str;

    /// Submits a job of these needs that runs `crunch-run --version`; what it says must arrive in `output.log` in
    /// `place`. Its number.
    fn submit(
        &self,
        container: &ContainerUuid,
        needs: &Needs,
        place: &Path,
    ) -> impl Future<Output = Result<String, Box<dyn Error>>>;

    /// crunch-run's version, once all that the job has to say has arrived.
    fn version(&self, said: &str) -> Option<String>;

    /// Where the job is. An error: the scheduler did not tell.
    fn state(&self, job: &str) -> impl Future<Output = Result<State, String>>;

    /// Why a job that waits can never start, if that is known.
    fn never(&self, _job: &str, _needs: &Needs) -> impl Future<Output = Option<String>> {
        async { None }
    }

    /// Ends it.
    fn cancel(&self, job: &str) -> impl Future<Output = Result<(), String>>;
}

/// A directory of its own, gone afterwards.
struct Place(PathBuf);

impl Place {
    fn new(directory: &Path, container: &ContainerUuid) -> std::io::Result<Self> {
        let path = directory.join(format!("check-{container}"));
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
pub async fn run<T: Trial>(trial: &T, directory: &Path, patience: Duration) -> Finding {
    // A name no container has.
    let container = ContainerUuid::generate("check");
    let place = match Place::new(directory, &container) {
        Ok(place) => place,
        Err(error) => {
            let words = format!("cannot write to {}: {error}", directory.display());
            return Finding::fail(WHAT, words, "make it writable for this user");
        }
    };
    let needs = Needs {
        cpus: 1,
        ram: 64 << 20,
        max_run_time: Some(600),
        ..Needs::default()
    };
    let job = match trial.submit(&container, &needs, &place.0).await {
        Ok(job) => job,
        Err(error) => {
            let command = T::SUBMIT;
            return Finding::fail(
                WHAT,
                format!("{command} took no job: {error}"),
                format!(
                    "see what `--dry-run UUID` shows, and what {command} says to the same by hand"
                ),
            );
        }
    };
    let seen = watch(trial, &job, &needs, &place.0, patience).await;
    let gone = cancel(trial, &job).await;
    match (seen, gone) {
        (Ok(words), Ok(())) => Finding::ok(WHAT, format!("job {job} {words}, and is gone")),
        (Err(Unseen::Waits(words)), Ok(())) => Finding::warn(
            WHAT,
            format!(
                "job {job} was accepted and removed, but did not start within {} s: {words}",
                patience.as_secs()
            ),
            "try again when a node is free, or with a larger --wait",
        ),
        (Err(Unseen::Never(why)), Ok(())) => Finding::fail(
            WHAT,
            format!("job {job} was accepted and removed; it could never have started: {why}"),
            "change what every job asks of its machine, or see what the machines say of themselves",
        ),
        (Err(Unseen::Never(words) | Unseen::Failed(words)), _) => {
            Finding::fail(WHAT, format!("job {job} {words}"), T::MEND)
        }
        (_, Err(error)) => Finding::fail(
            WHAT,
            format!("job {job} could not be removed: {error}"),
            format!("{} {job}", T::CANCEL),
        ),
    }
}

/// Why the job was not seen to run.
enum Unseen {
    /// It waits for what there is not.
    Never(String),
    /// It waits.
    Waits(String),
    /// It ended, or wrote nothing.
    Failed(String),
}

async fn watch<T: Trial>(
    trial: &T,
    job: &str,
    needs: &Needs,
    place: &Path,
    patience: Duration,
) -> Result<String, Unseen> {
    let began = Instant::now();
    let mut node = String::new();
    loop {
        let asked = trial.state(job).await;
        let state =
            asked.map_err(|error| Unseen::Failed(format!("cannot be asked for: {error}")))?;
        let said = fs::read_to_string(place.join("output.log")).unwrap_or_default();
        if let State::Runs(place) = &state {
            node = format!(" on {place}");
        }
        // It may have ended before it was seen to run.
        if let (State::Ended(words), true) = (&state, node.is_empty()) {
            node = format!(" (it {words})");
        }
        let seconds = began.elapsed().as_secs_f64();
        if let Some(version) = trial.version(&said) {
            return Ok(format!(
                "was accepted, and ran {version}{node} after {seconds:.1} s"
            ));
        }
        if let State::Ended(words) = &state {
            return Err(Unseen::Failed(format!("{words}; it said: {said:?}")));
        }
        if began.elapsed() > patience {
            return Err(match state {
                State::Waits(words) => match trial.never(job, needs).await {
                    Some(why) => Unseen::Never(why),
                    None => Unseen::Waits(words),
                },
                _ => Unseen::Failed(format!(
                    "runs{node}, but what it says does not arrive in {}",
                    place.display()
                )),
            });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn cancel<T: Trial>(trial: &T, job: &str) -> Result<(), String> {
    trial.cancel(job).await?;
    let began = Instant::now();
    while !matches!(trial.state(job).await?, State::Ended(_)) {
        if began.elapsed() > FAREWELL {
            return Err(format!("it is still there {} s later", FAREWELL.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}
