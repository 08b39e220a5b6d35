//! Which submissions go to the scheduler together, and how many hands they take.

use std::collections::BTreeSet;
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::act::{Submission, Task};
use crate::plan::Action;
use crate::world::Moment;

/// How long a submission waits at most for more to come with it.
const HOLD: Duration = Duration::from_millis(300);

/// Submissions, under way and on hold.
#[derive(Debug)]
pub(super) struct Batches {
    /// A command takes so many.
    most: usize,
    /// Since when submissions wait for more.
    held: Option<Moment>,
    /// Containers whose lock is being asked for: they may come with those that wait.
    locking: BTreeSet<ContainerUuid>,
    /// Containers in a batch with others that is under way.
    together: BTreeSet<ContainerUuid>,
}

impl Batches {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most: most.max(1),
            held: None,
            locking: BTreeSet::new(),
            together: BTreeSet::new(),
        }
    }

    /// How many hands so many containers with something under way take: those of a batch take one.
    pub(super) fn hands(&self, in_flight: usize) -> usize {
        in_flight.saturating_sub(self.together.len().saturating_sub(1))
    }

    pub(super) fn is_full(&self, batch: &[Submission]) -> bool {
        batch.len() >= self.most
    }

    /// Whether a batch goes now; else it is planned again when a lock was had. `starting`: more locks are about to be
    /// asked for.
    pub(super) fn goes(&mut self, now: Moment, batch: &[Submission], starting: bool) -> bool {
        let more = starting || !self.locking.is_empty();
        let since = *self.held.get_or_insert(now);
        let goes = self.is_full(batch) || !more || now.since(since) >= HOLD;
        if goes {
            self.held = None;
        }
        goes
    }

    pub(super) fn begin(&mut self, task: &Task) {
        match task {
            Task::Act {
                action: Action::Start { container, .. },
                ..
            } => drop(self.locking.insert(container.clone())),
            Task::Submit(batch) if batch.len() > 1 => {
                let containers = batch.iter().map(|one| one.container.clone());
                self.together.extend(containers);
            }
            _ => {}
        }
    }

    /// What was under way for a container has ended.
    pub(super) fn end(&mut self, container: &ContainerUuid) {
        self.locking.remove(container);
        self.together.remove(container);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::AttemptToken;
    use crate::needs::Needs;
    use crate::scheduler::Urgency;
    use arvados_client::{Token, TokenUuid};

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

    fn lock(container: &ContainerUuid) -> Task {
        Task::Act {
            action: Action::Start {
                container: container.clone(),
                etag: String::new(),
            },
            token: None,
            needs: Needs::default(),
            urgency: Urgency::Ask,
        }
    }

    #[test]
    fn submissions_wait_a_little_for_others_and_not_for_nothing() {
        let mut batches = Batches::new(3);
        let container = ContainerUuid::generate("zzzzz");
        assert!(
            batches.goes(at(0), &submissions(1), false),
            "nobody else comes"
        );
        assert!(!batches.goes(at(1), &submissions(1), true));
        assert!(batches.goes(at(2), &submissions(3), true), "full");
        batches.begin(&lock(&container));
        assert!(!batches.goes(at(3), &submissions(2), false));
        assert!(!batches.goes(at(302), &submissions(2), false));
        assert!(batches.goes(at(303), &submissions(2), false), "long enough");
        assert!(!batches.goes(at(304), &submissions(2), false));
        batches.end(&container);
        assert!(batches.goes(at(305), &submissions(2), false));
        let mut single = Batches::new(1);
        assert!(single.goes(at(0), &submissions(1), true), "one by one");
    }

    #[test]
    fn a_batch_takes_one_hand() {
        let mut batches = Batches::new(100);
        let batch = submissions(40);
        let containers: Vec<_> = batch.iter().map(|one| one.container.clone()).collect();
        batches.begin(&Task::Submit(batch));
        assert_eq!(batches.hands(43), 4);
        containers.iter().for_each(|c| batches.end(c));
        assert_eq!(batches.hands(3), 3);
    }
}
