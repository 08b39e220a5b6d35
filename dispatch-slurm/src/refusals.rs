//! Submissions that Slurm refuses whatever the container asks for: a limit of jobs is reached, an account may not use a
//! partition, a partition takes none. What would be refused too stays in the queue, without a lock, until Slurm takes jobs
//! again: it is asked now and then with `sbatch --test-only`, which submits nothing.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::command::{Command, Failure};
use dispatch_core::needs::Needs;
use dispatch_core::scheduler::{Order, SchedulerError};

use crate::settings::Settings;
use crate::submission::Job;

/// Between two questions; twice as long each time, up to the last.
const FIRST: Duration = Duration::from_secs(5);
const LAST: Duration = Duration::from_secs(60);
/// The question is not quite what a container would be: after so long one is tried in earnest, and another after twice
/// that. Each costs a lock, of which a container has but a few.
const HOLDS: Duration = Duration::from_secs(600);
/// A container's own wait is longer than that of one command.
const PATIENCE: Duration = Duration::from_secs(20);

/// What Slurm refuses now.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// What sbatch said to an attempt.
    said: BTreeMap<ContainerUuid, (TokenUuid, String)>,
    /// By the partitions that containers name: account and quality of service follow from these.
    holds: BTreeMap<Vec<String>, Hold>,
}

#[derive(Debug)]
struct Hold {
    words: String,
    trial: Needs,
    /// When one may be tried in earnest.
    earnest_at: Instant,
    earnest_wait: Duration,
    ask_at: Instant,
    wait: Duration,
}

/// What Slurm says to a trial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// It would take the job.
    Taken,
    /// It would not.
    Refused(String),
    /// It did not answer.
    Unknown,
}

impl Known {
    fn answered(&mut self, partitions: &[String], trial: Trial, now: Instant) {
        let Some(hold) = self.holds.get_mut(partitions) else {
            return;
        };
        if trial == Trial::Taken {
            tracing::info!(?partitions, "Slurm is given jobs again");
            self.holds.remove(partitions);
            return;
        }
        if let Trial::Refused(words) = trial {
            hold.words = words;
        }
        hold.wait = (2 * hold.wait).min(LAST);
        hold.ask_at = now + hold.wait;
    }

    fn hold(&mut self, partitions: &[String], now: Instant) -> Option<&str> {
        let hold = self.holds.get_mut(partitions)?;
        if now >= hold.earnest_at {
            hold.earnest_wait *= 2;
            hold.earnest_at = now + hold.earnest_wait;
            return None;
        }
        Some(&hold.words)
    }
}

impl Refusals {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A submission failed. If Slurm would refuse the smallest job of this kind too, it gets no more of them for now.
    pub async fn failed(&self, settings: &Settings, order: &Order, error: &SchedulerError) {
        let (SchedulerError::Ambiguous { detail, .. } | SchedulerError::Refused { detail, .. }) =
            error
        else {
            return;
        };
        let said = (order.attempt.clone(), plain(detail));
        {
            let mut known = self.known();
            known.said.insert(order.container.clone(), said);
            // Of many that were under way together one is enough to ask for.
            if known.holds.contains_key(&order.needs.partitions) {
                return;
            }
        }
        let trial = Needs {
            cpus: 1,
            ram: 64 << 20,
            gpus: order.needs.gpus,
            max_run_time: order.needs.max_run_time,
            partitions: order.needs.partitions.clone(),
            ..Needs::default()
        };
        if let Trial::Refused(words) = ask(settings, &trial).await {
            let partitions = trial.partitions.clone();
            tracing::warn!(?partitions, "Slurm is given no jobs for now: {words}");
            let now = Instant::now();
            let hold = Hold {
                words,
                trial,
                earnest_at: now + HOLDS,
                earnest_wait: HOLDS,
                ask_at: now + FIRST,
                wait: FIRST,
            };
            self.known().holds.entry(partitions).or_insert(hold);
        }
    }

    /// Asks again where it is time.
    pub async fn ask_again(&self, settings: &Settings) {
        let now = Instant::now();
        let is_due = |hold: &&Hold| hold.ask_at <= now;
        let due: Vec<Needs> = {
            let known = self.known();
            let holds = known.holds.values().filter(is_due);
            holds.map(|hold| hold.trial.clone()).collect()
        };
        let asked = due.iter().map(|trial| ask(settings, trial));
        let answers = futures_util::future::join_all(asked).await;
        for (trial, answer) in due.iter().zip(answers) {
            self.known().answered(&trial.partitions, answer, now);
        }
    }

    /// A job was taken.
    pub fn taken(&self, partitions: &[String]) {
        if self.known().holds.remove(partitions).is_some() {
            tracing::info!(?partitions, "Slurm is given jobs again");
        }
    }

    /// Why no job is given to these partitions now.
    pub fn hold(&self, partitions: &[String]) -> Option<String> {
        let mut known = self.known();
        let words = known.hold(partitions, Instant::now())?;
        Some(format!("Slurm takes no jobs like it now: {words}"))
    }

    /// What sbatch said to this attempt instead of taking its job.
    pub fn said(&self, container: &ContainerUuid, attempt: &TokenUuid) -> Option<String> {
        let known = self.known();
        let (of, said) = known.said.get(container)?;
        (of == attempt).then(|| format!("Slurm did not take its job: {said}"))
    }

    /// Nobody asks for this one any more.
    pub fn forget(&self, container: &ContainerUuid) {
        self.known().said.remove(container);
    }
}

/// Whether Slurm would take a job with these needs now.
pub async fn ask(settings: &Settings, needs: &Needs) -> Trial {
    let Some(command) = trial(settings, needs) else {
        return Trial::Unknown;
    };
    match command.patience(PATIENCE).succeed().await {
        Ok(_) => Trial::Taken,
        Err(failure) => judge(&failure),
    }
}

fn trial(settings: &Settings, needs: &Needs) -> Option<Command> {
    // A name no container has.
    let container = ContainerUuid::generate("check");
    let job = Job {
        container: &container,
        needs,
        comment: "dispatch-slurm asks",
        output: Path::new("/dev/null"),
        avoid: &[],
    };
    let arguments = settings.sbatch(job).ok()?;
    let command = settings.command(arguments, "#!/bin/sh\n".to_owned());
    Some(command.args(["--test-only"]))
}

fn judge(failure: &Failure) -> Trial {
    let away = ["contact slurm controller", "timed out"];
    match failure {
        Failure::Said(said) if !away.iter().any(|words| said.contains(words)) => {
            Trial::Refused(plain(said))
        }
        _ => Trial::Unknown,
    }
}

/// In one line, without the names of programs.
fn plain(said: &str) -> String {
    let lines = said.lines().map(|line| {
        let line = line.trim();
        let line = line.strip_prefix("sbatch: error: ").unwrap_or(line);
        let line = line
            .strip_prefix("Batch job submission failed: ")
            .unwrap_or(line);
        line.strip_prefix("allocation failure: ").unwrap_or(line)
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_away_refuses_nothing() {
        let said = |text: &str| judge(&Failure::Said(text.into()));
        let limit = "sbatch: error: AssocMaxSubmitJobLimit\nallocation failure: Job violates accounting/QOS policy";
        let words = "AssocMaxSubmitJobLimit; Job violates accounting/QOS policy";
        assert_eq!(said(limit), Trial::Refused(words.into()));
        for away in [
            "allocation failure: Unable to contact slurm controller (connect failure)",
            "allocation failure: Socket timed out on send/recv operation",
        ] {
            assert_eq!(said(away), Trial::Unknown);
        }
    }

    #[test]
    fn a_hold_ends_when_a_trial_is_taken() {
        let start = Instant::now();
        let refused = || Trial::Refused("no".into());
        #[rustfmt::skip]
        let rows = [
            (Trial::Taken, 5, None),
            (refused(), 5, Some(10)),
            (Trial::Unknown, 5, Some(10)),
            (refused(), 6000, Some(10)),
        ];
        for (answer, seconds, expected) in rows {
            let mut known = Known::default();
            let hold = Hold {
                words: "before".into(),
                trial: Needs::default(),
                earnest_at: start + HOLDS,
                earnest_wait: HOLDS,
                ask_at: start,
                wait: FIRST,
            };
            known.holds.insert(vec!["main".into()], hold);
            let now = start + Duration::from_secs(seconds);
            known.answered(&["main".to_owned()], answer.clone(), now);
            let wait = known.holds.values().next().map(|hold| hold.wait.as_secs());
            assert_eq!(wait, expected, "{answer:?} after {seconds} s");
        }
    }

    #[test]
    fn one_is_tried_in_earnest_ever_more_rarely() {
        let start = Instant::now();
        let main = ["main".to_owned()];
        let mut known = Known::default();
        let hold = Hold {
            words: "no".into(),
            trial: Needs::default(),
            earnest_at: start + HOLDS,
            earnest_wait: HOLDS,
            ask_at: start,
            wait: FIRST,
        };
        known.holds.insert(main.to_vec(), hold);
        let mut tried = Vec::new();
        for minute in 0..=100 {
            let now = start + Duration::from_secs(60 * minute);
            // Of many that wait at this moment one only.
            let free = (0..5).filter(|_| known.hold(&main, now).is_none()).count();
            tried.extend(std::iter::repeat_n(minute, free));
        }
        assert_eq!(tried, [10, 30, 70]);
        assert_eq!(known.hold(&["other".to_owned()], start), None);
    }
}
