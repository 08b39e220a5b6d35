//! A real job, submitted as containers are, and removed: on its node crunch-run looks, with the flags and the variables of
//! containers' jobs, whether that has what they need, and here it is told.

use std::error::Error;
use std::fs;
use std::future::Future;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::ContainerUuid;

use serde::Deserialize;

use super::{Finding, Level};
use crate::needs::Needs;

const WHAT: &str = "submit test";
/// Between two looks.
const PAUSE: Duration = Duration::from_millis(500);
/// crunch-run has looked around by then.
const LOOKS: Duration = Duration::from_secs(40);
/// Of what the job says, at most so many bytes are looked at, and so many letters of its end are shown.
const HEARD: u64 = 1 << 20;
const LAST_WORDS: usize = 1000;
/// A scheduler that does not tell is asked again for so long.
const SILENCE: Duration = Duration::from_secs(20);
/// A job that was cancelled is gone by then.
const FAREWELL: Duration = Duration::from_secs(60);

/// What is wanted of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// So long it may take to start.
    pub patience: Duration,
    /// Where it must run.
    pub node: Option<String>,
}

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
    /// So much later than it was said may what the job says arrive.
    const LATE: Duration;

    /// Submits a job of these needs that runs crunch-run with `--check`; what it says must arrive in `output.log` in
    /// `place`. Its number.
    fn submit(
        &self,
        container: &ContainerUuid,
        needs: &Needs,
        place: &Path,
    ) -> impl Future<Output = Result<String, Box<dyn Error>>>;

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

/// What crunch-run saw on the node.
#[derive(Debug, Deserialize)]
struct Node {
    host: String,
    uid: u32,
    version: String,
    findings: Vec<Found>,
}

#[derive(Debug, Deserialize)]
struct Found {
    level: Level,
    what: String,
    finding: String,
    mend: Option<String>,
}

impl Node {
    /// From what a job said: one whole line among others, as the site's scripts may speak too.
    fn of(said: &str) -> Option<Self> {
        let (whole, _) = said.rsplit_once('\n')?;
        let read = |line| serde_json::from_str(line).ok();
        whole.lines().rev().find_map(read)
    }

    fn findings(self) -> impl Iterator<Item = Finding> {
        let host = self.host;
        self.findings.into_iter().map(move |found| {
            let what = format!("{host}, {}", found.what);
            Finding::new(found.level, what, &found.finding, found.mend.as_deref())
        })
    }
}

/// Does it. The job may take `patience` to start.
pub async fn run<T: Trial>(trial: &T, directory: &Path, patience: Duration) -> Vec<Finding> {
    let mut node = None;
    let test = test(trial, directory, patience, &mut node).await;
    let node = node.into_iter().flat_map(Node::findings);
    std::iter::once(test).chain(node).collect()
}

async fn test<T: Trial>(
    trial: &T,
    directory: &Path,
    patience: Duration,
    node: &mut Option<Node>,
) -> Finding {
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
        ram: 256 << 20,
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
        (Ok((words, seen)), Ok(())) => {
            *node = Some(seen);
            Finding::ok(WHAT, format!("job {job} {words}, and is gone"))
        }
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

async fn state<T: Trial>(trial: &T, job: &str) -> Result<State, String> {
    let began = Instant::now();
    loop {
        match trial.state(job).await {
            Err(_) if began.elapsed() < SILENCE => tokio::time::sleep(PAUSE).await,
            answered => return answered,
        }
    }
}

async fn watch<T: Trial>(
    trial: &T,
    job: &str,
    needs: &Needs,
    place: &Path,
    patience: Duration,
) -> Result<(String, Node), Unseen> {
    let began = Instant::now();
    let (mut started, mut ended) = (None, None);
    let mut node = String::new();
    loop {
        let asked = state(trial, job).await;
        let state =
            asked.map_err(|error| Unseen::Failed(format!("cannot be asked for: {error}")))?;
        let said = heard(&place.join("output.log"));
        if let State::Runs(place) = &state {
            node = format!(" on {place}");
        }
        // It may have ended before it was seen to run.
        if let (State::Ended(words), true) = (&state, node.is_empty()) {
            node = format!(" (it {words})");
        }
        let seconds = began.elapsed().as_secs_f64();
        if let Some(seen) = Node::of(&said) {
            let (version, uid) = (&seen.version, seen.uid);
            let words = format!(
                "was accepted, and crunch-run {version} looked around as uid {uid}{node}, {seconds:.1} s later"
            );
            return Ok((words, seen));
        }
        let said = said.trim();
        let is_over = |since: &mut Option<Instant>, time: Duration| {
            since.get_or_insert_with(Instant::now).elapsed() >= time
        };
        let missing = |words: String| {
            let place = place.display();
            Unseen::Failed(format!("{words}; what it says does not arrive in {place}"))
        };
        match state {
            State::Waits(words) if began.elapsed() > patience => {
                return Err(match trial.never(job, needs).await {
                    Some(why) => Unseen::Never(why),
                    None => Unseen::Waits(words),
                });
            }
            State::Ended(words) if !said.is_empty() => {
                let last = said.char_indices().rev().nth(LAST_WORDS);
                let said = last.map_or(said, |(from, _)| &said[from..]);
                return Err(Unseen::Failed(format!("{words}; it said: {said}")));
            }
            State::Ended(words) if is_over(&mut ended, T::LATE) => return Err(missing(words)),
            State::Runs(_) if is_over(&mut started, LOOKS + T::LATE) => {
                return Err(missing(format!("runs{node}")));
            }
            State::Waits(_) | State::Runs(_) | State::Ended(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// What there is of a job's output, text or not. A site's scripts may speak before crunch-run.
fn heard(file: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = fs::File::open(file) {
        // What cannot be read has not arrived.
        let _ = file.take(HEARD).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

async fn cancel<T: Trial>(trial: &T, job: &str) -> Result<(), String> {
    trial.cancel(job).await?;
    let began = Instant::now();
    while !matches!(state(trial, job).await?, State::Ended(_)) {
        if began.elapsed() > FAREWELL {
            return Err(format!("it is still there {} s later", FAREWELL.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_job_says_is_heard_as_far_as_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("output.log");
        assert_eq!(heard(&file), "");
        fs::write(&file, b"Gr\xfc\xdfe\n").unwrap();
        assert_eq!(heard(&file), "Gr\u{fffd}\u{fffd}e\n");
        fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
        assert_eq!(heard(&file).len() as u64, HEARD);
    }

    #[test]
    fn what_the_node_says_is_one_whole_line() {
        let line = r#"{"host":"n1","uid":7,"version":"1.0","ok":false,"findings":[{"level":"ok","what":"kernel","finding":"6.1"},{"level":"fail","what":"cache","finding":"is full","mend":"empty it"}]}"#;
        let node = Node::of(&format!("a note\n{line}\n{{}}\nan ep")).unwrap();
        assert_eq!((node.uid, node.version.as_str()), (7, "1.0"));
        let findings: Vec<Finding> = node.findings().collect();
        assert_eq!(findings[0].what, "n1, kernel");
        let fail = &findings[1];
        assert_eq!(
            (fail.level, fail.mend.as_deref()),
            (Level::Fail, Some("empty it"))
        );
        for said in ["", line, "crunch-run: no such flag\n", "{}\n"] {
            assert!(Node::of(said).is_none(), "{said}");
        }
    }
}
