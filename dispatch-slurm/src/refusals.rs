//! Submissions that Slurm refuses. What would be refused too stays in the queue, without a lock, until Slurm takes such
//! jobs again: it is asked now and then with `sbatch --test-only`, which submits nothing.
//!
//! If the smallest job for the same partitions is refused as well, it is not for what the container asks for: a limit of
//! jobs is reached, an account may not use a partition, a partition takes none. Then nothing for them is submitted. Else
//! only what asks for the very same is held back. Once jobs are taken again, few are tried at first: there may be room
//! for no more.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::command::{Command, Failure};
use dispatch_core::needs::Needs;
use dispatch_core::scheduler::{Order, SchedulerError};

use crate::settings::Settings;
use crate::submission::Job;

mod holds;

use self::holds::{Hold, Kind, Ramp};

/// Kinds of jobs that are held back by themselves, at most: more of them are tried again as if nothing were known.
const MOST_HOLDS: usize = 1000;
/// Questions at a time.
const QUESTIONS: usize = 8;
/// A container's own wait is longer than that of one command.
const PATIENCE: Duration = Duration::from_secs(20);

/// What Slurm refuses now.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    /// What sbatch said to an attempt.
    said: BTreeMap<ContainerUuid, (TokenUuid, String)>,
    holds: HashMap<Kind, Hold>,
    /// Where jobs are taken again: how many may be tried now.
    ramps: BTreeMap<Vec<String>, Ramp>,
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
    fn is_held(&self, needs: &Needs) -> bool {
        Kind::both(needs)
            .iter()
            .any(|kind| self.holds.contains_key(kind))
    }

    fn begin(&mut self, kind: Kind, words: String, now: Instant) {
        let full = matches!(kind, Kind::Exactly(_)) && self.holds.len() >= MOST_HOLDS;
        if !full {
            tracing::warn!("Slurm is given no jobs for now {kind}: {words}");
            let new = || Hold::new(words, now);
            self.holds.entry(kind).or_insert_with(new);
        }
    }

    fn lift(&mut self, kind: &Kind) {
        if self.holds.remove(kind).is_none() {
            return;
        }
        tracing::info!("Slurm is given jobs {kind} again");
        if let Kind::Partitions(partitions) = kind {
            self.ramps.insert(partitions.clone(), Ramp::default());
        }
    }

    fn answered(&mut self, kind: &Kind, trial: Trial, now: Instant) {
        match trial {
            Trial::Taken => self.lift(kind),
            Trial::Refused(words) => {
                if let Some(hold) = self.holds.get_mut(kind) {
                    hold.refused(Some(words), now);
                }
            }
            Trial::Unknown => {
                if let Some(hold) = self.holds.get_mut(kind) {
                    hold.refused(None, now);
                }
            }
        }
    }

    fn hold(&mut self, container: &ContainerUuid, needs: &Needs, now: Instant) -> Option<String> {
        for kind in Kind::both(needs) {
            if let Some(words) = self.holds.get_mut(&kind).and_then(|hold| hold.says(now)) {
                return Some(format!("Slurm takes no jobs like it now: {words}"));
            }
        }
        let ramp = self.ramps.get_mut(&needs.partitions)?;
        let later = "Slurm took no jobs like it a while ago: it is given a few at first";
        (!ramp.admits(container, now)).then(|| later.to_owned())
    }

    fn taken(&mut self, container: &ContainerUuid, needs: &Needs) {
        for kind in Kind::both(needs) {
            self.lift(&kind);
        }
        if let Some(ramp) = self.ramps.get_mut(&needs.partitions)
            && ramp.took(container)
        {
            self.ramps.remove(&needs.partitions);
        }
    }
}

impl Refusals {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A submission failed. What Slurm would refuse too gets no more of such jobs for now.
    pub async fn failed(&self, settings: &Settings, order: &Order, error: &SchedulerError) {
        let (SchedulerError::Ambiguous { detail, .. } | SchedulerError::Refused { detail, .. }) =
            error
        else {
            return;
        };
        let said = (order.attempt.clone(), plain(detail));
        let needs = &order.needs;
        {
            let mut known = self.known();
            known.said.insert(order.container.clone(), said);
            if let Some(ramp) = known.ramps.get_mut(&needs.partitions) {
                ramp.lost(&order.container);
            }
            // Of many that were under way together one is enough to ask for.
            if known.is_held(needs) {
                return;
            }
        }
        for kind in Kind::both(needs) {
            match ask(settings, &kind.trial()).await {
                Trial::Refused(words) => return self.known().begin(kind, words, Instant::now()),
                Trial::Taken => {}
                Trial::Unknown => return,
            }
        }
    }

    /// Asks again where it is time.
    pub async fn ask_again(&self, settings: &Settings) {
        let now = Instant::now();
        let due: Vec<Kind> = {
            let known = self.known();
            let due = known.holds.iter().filter(|(_, hold)| hold.is_due(now));
            due.map(|(kind, _)| kind.clone()).take(QUESTIONS).collect()
        };
        let trials: Vec<Needs> = due.iter().map(Kind::trial).collect();
        let asked = trials.iter().map(|trial| ask(settings, trial));
        let answers = futures_util::future::join_all(asked).await;
        for (kind, answer) in due.iter().zip(answers) {
            self.known().answered(kind, answer, now);
        }
    }

    /// A job was taken.
    pub fn taken(&self, container: &ContainerUuid, needs: &Needs) {
        self.known().taken(container, needs);
    }

    /// Why no job is given to Slurm for this container now.
    pub fn hold(&self, container: &ContainerUuid, needs: &Needs) -> Option<String> {
        self.known().hold(container, needs, Instant::now())
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

    fn gpus(gpus: u32) -> Needs {
        Needs {
            gpus,
            ..Needs::default()
        }
    }

    #[test]
    fn what_is_held_back_is_what_would_be_refused_too() {
        let now = Instant::now();
        let container = ContainerUuid::generate("zzzzz");
        let held = |known: &mut Known, gpus_of: u32| {
            let hold = known.hold(&container, &gpus(gpus_of), now);
            hold.is_some_and(|hold| hold.contains("no GPUs"))
        };
        let mut known = Known::default();
        known.begin(Kind::Exactly(gpus(2)), "no GPUs".into(), now);
        assert_eq!([0, 1, 2].map(|n| held(&mut known, n)), [false, false, true]);
        known.answered(&Kind::Exactly(gpus(2)), Trial::Taken, now);
        assert!(!held(&mut known, 2) && known.ramps.is_empty());
        known.begin(Kind::Partitions(Vec::new()), "no GPUs".into(), now);
        assert_eq!([0, 1, 2].map(|n| held(&mut known, n)), [true, true, true]);
        let elsewhere = Needs {
            partitions: vec!["other".into()],
            ..gpus(2)
        };
        assert_eq!(known.hold(&container, &elsewhere, now), None);
    }

    #[test]
    fn after_a_hold_a_few_are_tried_at_first() {
        let now = Instant::now();
        let all: Vec<ContainerUuid> = (0..50).map(|_| ContainerUuid::generate("zzzzz")).collect();
        let mut known = Known::default();
        let kind = Kind::Partitions(Vec::new());
        known.begin(kind.clone(), "too many".into(), now);
        known.answered(&kind, Trial::Taken, now);
        let admitted = |known: &mut Known| -> Vec<ContainerUuid> {
            let free = all
                .iter()
                .filter(|c| known.hold(c, &gpus(0), now).is_none());
            free.cloned().collect()
        };
        assert_eq!(admitted(&mut known), all[..1]);
        known.taken(&all[0], &gpus(0));
        // Those that came through are not asked about again, and each makes room for more.
        assert_eq!(admitted(&mut known), all[..2]);
        known.taken(&all[1], &gpus(0));
        assert_eq!(admitted(&mut known).len(), 4);
        if let Some(ramp) = known.ramps.get_mut(&Vec::new()) {
            ramp.lost(&all[2]);
        }
        assert!(admitted(&mut known).len() <= 4);
    }
}
