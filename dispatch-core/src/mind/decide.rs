//! From the plan to tasks: what can go together does, and nobody is asked for more than he may be.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};

use super::Mind;
use super::batches::Shape;
use crate::act::{Start, Stop, Submission, Task};
use crate::attempts::AttemptToken;
use crate::pace::Pace;
use crate::plan::{Action, plan};
use crate::scheduler::Urgency;
use crate::stopping::Stopping;
use crate::world::Moment;

/// Calls for many locks under way at once: the server writes one after the other, and hands must be left for what is
/// locked.
const LOCK_CALLS: usize = 2;
/// So long at least it is asked whether a job left results, however short these are waited for.
const LEAST_DOUBT: Duration = Duration::from_secs(60);
/// Where each lock takes a call of its own, one of so many hands is left for what is locked.
const KEPT: usize = 4;

/// What is decided on the way through the plan.
#[derive(Default)]
struct Decided {
    tasks: Vec<Task>,
    /// Containers with something decided for them.
    begun: BTreeSet<ContainerUuid>,
    /// To be locked together.
    starts: Vec<Start>,
    /// Shapes of what is about to be locked.
    starting: BTreeSet<Shape>,
    /// Where among the tasks the newest is that ends jobs like this.
    stops: BTreeMap<Urgency, usize>,
    /// To be submitted, by shape.
    submissions: BTreeMap<Shape, Vec<(ContainerUuid, TokenUuid)>>,
}

/// What it depends on whether a job is ended now.
struct Ending<'a> {
    pace: &'a mut Pace,
    stopping: &'a mut Stopping,
    grace: Duration,
    /// Its job waits.
    waits: bool,
    /// One command ends so many.
    most: usize,
    /// There is no hand for one more.
    full: bool,
}

impl Decided {
    /// How many of the tasks ask the scheduler.
    fn asking(&self) -> usize {
        let asking = self.tasks.iter().filter(|task| task.asks_scheduler());
        asking.count()
    }

    /// Whether a command to end jobs can take one more.
    fn has_room(&self, most: usize) -> bool {
        let mut open = self.stops.values().map(|place| &self.tasks[*place]);
        open.any(|task| matches!(task, Task::Stop(batch, _) if batch.len() < most))
    }

    /// A job is ended when its time has come, and if the scheduler may be asked now. By a command that ends others, too, only
    /// if nothing is lost when that has to be repeated: a running one is asked once, by itself.
    fn stop(&mut self, now: Moment, stop: Stop, ending: Ending<'_>) {
        let Some(urgency) = ending.stopping.due(&stop, ending.grace, now) else {
            return;
        };
        let together = ending.waits || urgency == Urgency::Force;
        let open = self.stops.get(&urgency).filter(|_| together);
        let (job, container) = (stop.job.clone(), stop.container.clone());
        match open.and_then(|place| self.tasks.get_mut(*place)) {
            Some(Task::Stop(batch, _)) if batch.len() < ending.most => batch.push(stop),
            _ => {
                if ending.full || !ending.pace.take(now) {
                    return;
                }
                if together {
                    self.stops.insert(urgency, self.tasks.len());
                }
                self.tasks.push(Task::Stop(vec![stop], urgency));
            }
        }
        ending.stopping.begin(&job, urgency, now);
        self.begun.insert(container);
    }
}

impl Mind {
    /// So many commands the scheduler ran by itself: they count as all others do.
    pub fn spend(&mut self, now: Moment, commands: u32) {
        (0..commands).for_each(|_| self.pace.spend(now));
    }

    /// The tasks of the plan, as many as hands are free and the scheduler may be asked.
    pub(super) fn planned(&mut self, now: Moment, free: usize) -> Vec<Task> {
        let policy = self.policy();
        let mut decided = Decided::default();
        let mut lock_calls = LOCK_CALLS.saturating_sub(self.batches.lock_calls());
        let hands = self.width.hands();
        let most = (hands - hands.div_ceil(KEPT)).max(1);
        let mut single_locks = most.saturating_sub(self.batches.single_locks());
        let free_to_ask = self.free_to_ask();
        for action in plan(&self.world, &policy) {
            // What is begun may be joined still.
            let full = decided.tasks.len() >= free;
            let joins = matches!(action, Action::StopJob { .. });
            if full && !decided.has_room(self.batches.stops()) {
                break;
            }
            if full && !joins {
                continue;
            }
            let container = action.container();
            let resting = self.resting.get(container);
            if resting.is_some_and(|until| *until > now) || decided.begun.contains(container) {
                continue;
            }
            let token = self.tokens.get(container);
            let known = self.world.containers.get(container);
            let shape = || known.map_or(0, |known| self.batches.shape(container, &known.needs));
            match &action {
                Action::Submit { container, attempt }
                    if token.is_some_and(|token| token.uuid == *attempt) =>
                {
                    let alike = decided.submissions.entry(shape()).or_default();
                    alike.push((container.clone(), attempt.clone()));
                    decided.begun.insert(container.clone());
                    continue;
                }
                Action::Start { container, etag } => {
                    decided.starting.insert(shape());
                    // One that was asked for before is asked for again with its token.
                    if self.batches.locks() > 1 && token.is_none() {
                        if lock_calls == 0 {
                            continue;
                        }
                        decided.begun.insert(container.clone());
                        decided.starts.push(Start {
                            container: container.clone(),
                            etag: etag.clone(),
                            max_run_time: known.and_then(|known| known.needs.max_run_time),
                        });
                        if decided.starts.len() >= self.batches.locks() {
                            lock_calls -= 1;
                            let starts = std::mem::take(&mut decided.starts);
                            decided.tasks.push(Task::Start(starts));
                        }
                        continue;
                    }
                    if single_locks == 0 {
                        continue;
                    }
                    single_locks -= 1;
                }
                Action::EndLeftOver { container } => {
                    if single_locks == 0 {
                        continue;
                    }
                    if let Some(sweep) = self.sweep(container) {
                        single_locks -= 1;
                        decided.begun.insert(container.clone());
                        decided.tasks.push(sweep);
                    }
                    continue;
                }
                _ => {}
            }
            if let Action::StopJob {
                container,
                job,
                reason,
            } = &action
            {
                let stop = Stop {
                    container: container.clone(),
                    job: job.clone(),
                    reason: *reason,
                };
                let ending = Ending {
                    pace: &mut self.pace,
                    stopping: &mut self.stopping,
                    grace: self.settings.stop_grace,
                    waits: self.world.waiting.contains_key(container),
                    most: self.batches.stops(),
                    full: full || decided.asking() >= free_to_ask,
                };
                decided.stop(now, stop, ending);
                continue;
            }
            if action.asks_scheduler() && decided.asking() >= free_to_ask {
                continue;
            }
            let may = match &action {
                Action::Start { .. } | Action::EndAttempt { .. } => true,
                Action::Unlock { .. } | Action::Cancel { .. } if self.batches.counts_endings() => {
                    self.pace.may(now)
                }
                _ => self.pace.take(now),
            };
            if !may {
                continue;
            }
            decided.begun.insert(container.clone());
            decided.tasks.push(Task::Act {
                token: token.cloned(),
                needs: known.map(|known| known.needs.clone()).unwrap_or_default(),
                insists: self.doubts.lasted(action.container(), now)
                    >= self.settings.undelivered_wait.max(LEAST_DOUBT),
                end: known.and_then(|known| known.end.clone()),
                listed: !self.unclear.contains(action.container()),
                action,
            });
        }
        if decided.tasks.len() < free && !decided.starts.is_empty() {
            let starts = std::mem::take(&mut decided.starts);
            decided.tasks.push(self.start(starts));
        }
        self.submit(now, free, &mut decided);
        decided.tasks
    }

    /// One alone is what the single calls are for.
    fn start(&self, starts: Vec<Start>) -> Task {
        match <[Start; 1]>::try_from(starts) {
            Err(starts) => Task::Start(starts),
            Ok(
                [
                    Start {
                        container, etag, ..
                    },
                ],
            ) => {
                let known = self.world.containers.get(&container);
                Task::Act {
                    token: None,
                    needs: known.map(|known| known.needs.clone()).unwrap_or_default(),
                    insists: false,
                    end: None,
                    listed: false,
                    action: Action::Start { container, etag },
                }
            }
        }
    }

    /// Adds the submissions that go now, highest priority first, together where that is worth it.
    fn submit(&mut self, now: Moment, free: usize, decided: &mut Decided) {
        let shapes = std::mem::take(&mut decided.submissions);
        self.batches.keep_holding(shapes.keys());
        let place = |container: &ContainerUuid| {
            let known = self.world.containers.get(container);
            Reverse(known.map_or(0, |known| known.priority))
        };
        let mut shapes: Vec<_> = shapes.into_iter().collect();
        for (_, batch) in &mut shapes {
            batch.sort_by_cached_key(|(container, _)| (place(container), container.clone()));
        }
        shapes.sort_by_key(|(_, batch)| batch.first().map(|(container, _)| place(container)));
        for (shape, batch) in shapes {
            let most = self.batches.most();
            let (whole, rest) = batch.split_at(batch.len() - batch.len() % most);
            let starting = decided.starting.contains(&shape);
            let goes = !rest.is_empty() && self.batches.goes(now, rest.len(), shape, starting);
            let together = self.batches.is_worth_it(rest.len());
            let rest = rest.chunks(if together { most } else { 1 });
            for part in whole.chunks(most).chain(rest.filter(|_| goes)) {
                let full = decided.tasks.len() >= free || decided.asking() >= self.free_to_ask();
                if full || self.pace.wait(now) > Duration::ZERO {
                    return;
                }
                self.pace.take(now);
                if self.batches.takes_two(part.len()) {
                    self.pace.spend(now);
                }
                decided.tasks.push(self.handover(now, part));
                self.batches.went(shape);
            }
        }
    }

    fn handover(&self, now: Moment, batch: &[(ContainerUuid, TokenUuid)]) -> Task {
        let submissions = batch.iter().filter_map(|(container, attempt)| {
            let token = self.tokens.get(container);
            let token = token.filter(|token| token.uuid == *attempt)?;
            Some(self.submission(container.clone(), token, now))
        });
        Task::Submit(submissions.collect())
    }

    /// What the scheduler is given.
    fn submission(
        &self,
        container: ContainerUuid,
        token: &AttemptToken,
        now: Moment,
    ) -> Submission {
        let known = self.world.containers.get(&container);
        let avoid = match self.unplaceable.contains(&container) {
            true => Vec::new(),
            false => self.nodes.shunned(now).map(str::to_owned).collect(),
        };
        Submission {
            needs: known.map(|known| known.needs.clone()).unwrap_or_default(),
            token: token.clone(),
            container,
            avoid,
        }
    }
}

#[cfg(test)]
mod tests;
