//! What goes together: locks that are asked for in one call, and submissions that one command takes; and how many hands
//! all of it takes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::act::Task;
use crate::needs::Needs;
use crate::plan::Action;
use crate::scheduler::Batching;
use crate::world::Moment;

/// How long a submission waits at most for more to come with it.
const HOLD: Duration = Duration::from_millis(300);
/// Locks that are asked for in one call, at most: the server does little else meanwhile, and what is locked goes on.
const LOCKS: usize = 100;

/// What attempts must have in common to be submitted together.
pub(super) type Shape = u64;

/// Locks and submissions, under way and on hold.
#[derive(Debug)]
pub(super) struct Batches {
    rule: Batching,
    /// So many locks one call asks for; 1: the server has no such call.
    locks: usize,
    /// Since when submissions wait for more of their shape.
    held: BTreeMap<Shape, Moment>,
    /// Containers whose lock is being asked for, by their shape: they may come with those that wait.
    locking: BTreeMap<ContainerUuid, Shape>,
    /// How many of each shape those are.
    coming: BTreeMap<Shape, usize>,
    /// Containers to be submitted by themselves.
    alone: BTreeSet<ContainerUuid>,
    /// Containers under way together with others, by the number of their batch.
    together: BTreeMap<ContainerUuid, u64>,
    last: u64,
}

fn at_least_one(rule: Batching) -> Batching {
    Batching {
        most: rule.most.max(1),
        stops: rule.stops.max(1),
        ..rule
    }
}

impl Batches {
    pub(super) fn new(rule: Batching) -> Self {
        Self {
            rule: at_least_one(rule),
            locks: 1,
            held: BTreeMap::new(),
            locking: BTreeMap::new(),
            coming: BTreeMap::new(),
            alone: BTreeSet::new(),
            together: BTreeMap::new(),
            last: 0,
        }
    }

    /// The scheduler takes attempts together like this from now on.
    pub(super) fn take_rule(&mut self, rule: Batching) {
        self.rule = at_least_one(rule);
    }

    /// The server takes so many in one call.
    pub(super) fn take_locks(&mut self, most: usize) {
        self.locks = most.clamp(1, LOCKS);
    }

    /// How many locks one call asks for.
    pub(super) fn locks(&self) -> usize {
        self.locks
    }

    /// Attempts of one shape may be submitted together.
    pub(super) fn shape(&self, container: &ContainerUuid, needs: &Needs) -> Shape {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        match self.rule.alike {
            _ if self.alone.contains(container) => hasher.hash_one(container),
            Some(_) => hasher.hash_one(needs),
            None => 0,
        }
    }

    /// It was not taken together with others.
    pub(super) fn goes_alone(&mut self, container: ContainerUuid) {
        self.alone.insert(container);
    }

    /// Its attempt is over.
    pub(super) fn forget(&mut self, container: &ContainerUuid) {
        self.alone.remove(container);
    }

    /// How many hands so many containers with something under way take: those of a batch take one.
    pub(super) fn hands(&self, in_flight: usize) -> usize {
        let batches = self.together.values().collect::<BTreeSet<_>>().len();
        in_flight + batches - self.together.len()
    }

    /// One command takes so many.
    pub(super) fn most(&self) -> usize {
        self.rule.most
    }

    /// One command ends so many jobs.
    pub(super) fn stops(&self) -> usize {
        self.rule.stops
    }

    /// The scheduler itself counts the commands that tell how jobs ended.
    pub(super) fn counts_endings(&self) -> bool {
        self.rule.counts_endings
    }

    pub(super) fn is_full(&self, batch: usize) -> bool {
        batch >= self.rule.most
    }

    /// Whether a batch of this shape goes now; else it is planned again when a lock was had. `starting`: more locks of
    /// this shape are about to be asked for.
    pub(super) fn goes(&mut self, now: Moment, batch: usize, shape: Shape, starting: bool) -> bool {
        let more = starting || self.coming.contains_key(&shape);
        if self.is_full(batch) || !more {
            return true;
        }
        now.since(*self.held.entry(shape).or_insert(now)) >= HOLD
    }

    /// Some of this shape went: the others wait anew.
    pub(super) fn went(&mut self, shape: Shape) {
        self.held.remove(&shape);
    }

    /// Nothing waits for more but these.
    pub(super) fn keep_holding<'a>(&mut self, shapes: impl Iterator<Item = &'a Shape>) {
        let shapes: BTreeSet<&Shape> = shapes.collect();
        self.held.retain(|shape, _| shapes.contains(shape));
    }

    /// Calls for many locks under way.
    pub(super) fn lock_calls(&self) -> usize {
        let locking = self.locking.keys();
        let calls = locking.filter_map(|container| self.together.get(container));
        calls.collect::<BTreeSet<_>>().len()
    }

    /// Locks under way by a call of their own.
    pub(super) fn single_locks(&self) -> usize {
        let locking = self.locking.keys();
        let single = locking.filter(|container| !self.together.contains_key(*container));
        single.count()
    }

    /// Whether so many together take a second command: it tells equal ones which is which.
    pub(super) fn takes_two(&self, batch: usize) -> bool {
        self.rule.alike.is_some() && batch > 1
    }

    /// Whether one command for so many is worth it.
    pub(super) fn is_worth_it(&self, batch: usize) -> bool {
        self.rule.alike.is_none_or(|least| batch >= least)
    }

    pub(super) fn begin<'a>(
        &mut self,
        task: &Task,
        needs: impl Fn(&ContainerUuid) -> Option<&'a Needs>,
    ) {
        let containers = task.containers();
        let locks = match task {
            Task::Act { action, .. } => matches!(action, Action::Start { .. }),
            task => matches!(task, Task::Start(_)),
        };
        self.last += 1;
        for container in &containers {
            if locks {
                let shape = needs(container).map_or(0, |needs| self.shape(container, needs));
                self.locking.insert((*container).clone(), shape);
                *self.coming.entry(shape).or_default() += 1;
            }
            if containers.len() > 1 {
                self.together.insert((*container).clone(), self.last);
            }
        }
    }

    /// What was under way for a container has ended.
    pub(super) fn end(&mut self, container: &ContainerUuid) {
        self.together.remove(container);
        let Some(shape) = self.locking.remove(container) else {
            return;
        };
        if let Some(coming) = self.coming.get_mut(&shape) {
            *coming -= 1;
            if *coming == 0 {
                self.coming.remove(&shape);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::{Start, Submission};
    use crate::attempts::AttemptToken;
    use arvados_client::{Token, TokenUuid};

    const ANY: Batching = Batching {
        most: 3,
        alike: None,
        stops: 1,
        counts_endings: false,
    };

    fn submissions(count: usize) -> Vec<Submission> {
        let submission = || Submission {
            container: ContainerUuid::generate("zzzzz"),
            token: AttemptToken {
                uuid: TokenUuid::generate("zzzzz"),
                token: Token::new("secret"),
                expires_at: None,
            },
            needs: Needs::default(),
            avoid: vec![],
        };
        (0..count).map(|_| submission()).collect()
    }

    fn at(milliseconds: u64) -> Moment {
        Moment(Duration::from_millis(milliseconds))
    }

    fn locks(containers: &[ContainerUuid]) -> Task {
        let start = |container: &ContainerUuid| Start {
            container: container.clone(),
            etag: String::new(),
            max_run_time: None,
        };
        Task::Start(containers.iter().map(start).collect())
    }

    #[test]
    fn submissions_wait_a_little_for_others_and_not_for_nothing() {
        let mut batches = Batches::new(ANY);
        let container = ContainerUuid::generate("zzzzz");
        assert!(batches.goes(at(0), 1, 0, false), "nobody else comes");
        assert!(!batches.goes(at(1), 1, 0, true));
        assert!(batches.goes(at(2), 3, 0, true), "full");
        batches.begin(&locks(std::slice::from_ref(&container)), |_| None);
        assert!(!batches.goes(at(3), 2, 0, false));
        assert!(batches.goes(at(3), 2, 1, false), "none of its kind comes");
        assert!(!batches.goes(at(300), 2, 0, false));
        assert!(batches.goes(at(301), 2, 0, false), "long enough");
        batches.keep_holding([].iter());
        assert!(
            !batches.goes(at(304), 2, 0, false),
            "those after it wait anew"
        );
        batches.end(&container);
        assert!(batches.goes(at(305), 2, 0, false));
        let mut single = Batches::new(Batching::SINGLE);
        assert!(single.goes(at(0), 1, 0, true), "one by one");
    }

    #[test]
    fn a_batch_takes_one_hand() {
        let mut batches = Batches::new(ANY);
        let containers: Vec<_> = (0..40).map(|_| ContainerUuid::generate("zzzzz")).collect();
        batches.begin(&locks(&containers), |_| None);
        let others = submissions(10);
        let names: Vec<_> = others.iter().map(|one| one.container.clone()).collect();
        batches.begin(&Task::Submit(others), |_| None);
        assert_eq!(batches.hands(53), 5, "two batches and three others");
        containers.iter().for_each(|c| batches.end(c));
        assert_eq!(batches.hands(13), 4);
        names.iter().for_each(|c| batches.end(c));
        assert_eq!(batches.hands(3), 3);
    }

    #[test]
    fn only_equal_needs_make_one_shape_where_that_counts() {
        let mut alike = Batches::new(Batching {
            most: 400,
            alike: Some(8),
            stops: 1,
            counts_endings: false,
        });
        let (one, other) = (
            Needs::default(),
            Needs {
                cpus: 2,
                ..Needs::default()
            },
        );
        let [first, second] = [0, 1].map(|_| ContainerUuid::generate("zzzzz"));
        assert_eq!(
            alike.shape(&first, &one),
            alike.shape(&second, &one.clone())
        );
        assert_ne!(alike.shape(&first, &one), alike.shape(&first, &other));
        assert!(!alike.is_worth_it(7) && alike.is_worth_it(8));
        alike.goes_alone(first.clone());
        assert_ne!(alike.shape(&first, &one), alike.shape(&second, &one));
        alike.forget(&first);
        assert_eq!(alike.shape(&first, &one), alike.shape(&second, &one));
        let any = Batches::new(ANY);
        assert_eq!(any.shape(&first, &one), any.shape(&second, &other));
        assert!(any.is_worth_it(1));
    }
}
