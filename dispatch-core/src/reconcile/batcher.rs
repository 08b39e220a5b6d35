//! Batches locks into one API call and submissions into one scheduler command. Counts the
//! concurrency slots that all tasks use.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::time::Duration;

use arvados_client::ContainerUuid;

use crate::model::resources::ResourceRequest;
use crate::model::scheduling::Capabilities;
use crate::model::task::Task;
use crate::model::world::MonotonicTime;

/// Maximum time for which a submission waits for others with the same key.
const LINGER: Duration = Duration::from_millis(300);
/// Maximum number of locks in one call. The server does little else during the call, and the
/// containers already locked must make progress.
const MAX_LOCK_BATCH: usize = 100;

/// The key of a batch. Attempts with equal keys may be submitted together.
pub(crate) type BatchKey = u64;

/// Locks and submissions, under way and pending.
#[derive(Debug)]
pub(crate) struct Batcher {
    capabilities: Capabilities,
    /// Number of locks in one call; 1 means that the server has no such call.
    lock_batch_size: usize,
    /// Time since which submissions wait for more with their key.
    pending_since: BTreeMap<BatchKey, MonotonicTime>,
    /// Containers whose lock is being requested, with their keys. Their submissions may join those
    /// that wait.
    locking: BTreeMap<ContainerUuid, BatchKey>,
    /// Number of containers in `locking` for each key.
    arriving: BTreeMap<BatchKey, usize>,
    /// Containers that must be submitted alone.
    alone: BTreeSet<ContainerUuid>,
    /// Containers under way together with others, with the number of their batch.
    batch_of: BTreeMap<ContainerUuid, u64>,
    last_batch: u64,
}

/// The capabilities with batches of at least one.
fn sanitized(capabilities: Capabilities) -> Capabilities {
    Capabilities {
        max_submit_batch: capabilities.max_submit_batch.max(1),
        max_cancel_batch: capabilities.max_cancel_batch.max(1),
        ..capabilities
    }
}

impl Batcher {
    pub(crate) fn new(capabilities: Capabilities) -> Self {
        Self {
            capabilities: sanitized(capabilities),
            lock_batch_size: 1,
            pending_since: BTreeMap::new(),
            locking: BTreeMap::new(),
            arriving: BTreeMap::new(),
            alone: BTreeSet::new(),
            batch_of: BTreeMap::new(),
            last_batch: 0,
        }
    }

    /// Replaces the scheduler's capabilities.
    pub(crate) fn set_capabilities(&mut self, capabilities: Capabilities) {
        self.capabilities = sanitized(capabilities);
    }

    /// Sets the number of locks that the server accepts in one call.
    pub(crate) fn set_lock_batch_size(&mut self, size: usize) {
        self.lock_batch_size = size.clamp(1, MAX_LOCK_BATCH);
    }

    /// Number of locks that one call requests.
    pub(crate) fn max_lock_batch(&self) -> usize {
        self.lock_batch_size
    }

    /// The batch key of a container. Attempts with equal keys may be submitted together.
    pub(crate) fn key(&self, container: &ContainerUuid, needs: &ResourceRequest) -> BatchKey {
        let hasher = BuildHasherDefault::<DefaultHasher>::default();
        match self.capabilities.min_uniform_batch {
            _ if self.alone.contains(container) => hasher.hash_one(container),
            Some(_) => hasher.hash_one(needs),
            None => 0,
        }
    }

    /// Makes the container be submitted alone, because the scheduler refused it in a batch.
    pub(crate) fn submit_alone(&mut self, container: ContainerUuid) {
        self.alone.insert(container);
    }

    /// Forgets the container, whose attempt is over.
    pub(crate) fn forget(&mut self, container: &ContainerUuid) {
        self.alone.remove(container);
    }

    /// Number of slots that `in_flight` containers use. All containers of a batch use one slot.
    pub(crate) fn slots_used(&self, in_flight: usize) -> usize {
        let batches = self.batch_of.values().collect::<BTreeSet<_>>().len();
        in_flight + batches - self.batch_of.len()
    }

    /// Maximum number of attempts in one submission command.
    pub(crate) fn max_batch(&self) -> usize {
        self.capabilities.max_submit_batch
    }

    /// Maximum number of jobs in one stop command.
    pub(crate) fn max_stop_batch(&self) -> usize {
        self.capabilities.max_cancel_batch
    }

    /// Whether the scheduler itself counts the commands that query how jobs ended.
    pub(crate) fn charges_exit_queries(&self) -> bool {
        self.capabilities.charges_exit_queries
    }

    /// Whether a deferred container waits because the scheduler rejects such jobs.
    pub(crate) fn defers_rejected_jobs(&self) -> bool {
        self.capabilities.defers_rejected_jobs
    }

    pub(crate) fn is_full(&self, batch: usize) -> bool {
        batch >= self.capabilities.max_submit_batch
    }

    /// Whether a batch with this key is submitted now. If not, the plan after the next granted lock
    /// contains it again.
    ///
    /// `more_come`: more locks with this key are about to be requested.
    pub(crate) fn should_flush(
        &mut self,
        now: MonotonicTime,
        batch: usize,
        key: BatchKey,
        more_come: bool,
    ) -> bool {
        let more = more_come || self.arriving.contains_key(&key);
        if self.is_full(batch) || !more {
            return true;
        }
        now.since(*self.pending_since.entry(key).or_insert(now)) >= LINGER
    }

    /// Restarts the linger time for this key, because a batch was submitted.
    pub(crate) fn flushed(&mut self, key: BatchKey) {
        self.pending_since.remove(&key);
    }

    /// Drops the linger times of all keys but these.
    pub(crate) fn retain_pending<'a>(&mut self, keys: impl Iterator<Item = &'a BatchKey>) {
        let keys: BTreeSet<&BatchKey> = keys.collect();
        self.pending_since.retain(|key, _| keys.contains(key));
    }

    /// Number of batched lock calls under way.
    pub(crate) fn running_lock_calls(&self) -> usize {
        let locking = self.locking.keys();
        let calls = locking.filter_map(|container| self.batch_of.get(container));
        calls.collect::<BTreeSet<_>>().len()
    }

    /// Number of single lock calls under way.
    pub(crate) fn running_single_locks(&self) -> usize {
        let locking = self.locking.keys();
        let single = locking.filter(|container| !self.batch_of.contains_key(*container));
        single.count()
    }

    /// Whether a batch of this size needs a second command. That command tells equal jobs apart.
    pub(crate) fn needs_second_command(&self, batch: usize) -> bool {
        self.capabilities.min_uniform_batch.is_some() && batch > 1
    }

    /// Whether one command for so many attempts is worth it.
    pub(crate) fn should_batch(&self, batch: usize) -> bool {
        self.capabilities
            .min_uniform_batch
            .is_none_or(|least| batch >= least)
    }

    pub(crate) fn task_started<'a>(
        &mut self,
        task: &Task,
        needs: impl Fn(&ContainerUuid) -> Option<&'a ResourceRequest>,
    ) {
        let containers = task.containers();
        let locks = matches!(task, Task::Start(_));
        self.last_batch += 1;
        for container in &containers {
            if locks {
                let key = needs(container).map_or(0, |needs| self.key(container, needs));
                self.locking.insert((*container).clone(), key);
                *self.arriving.entry(key).or_default() += 1;
            }
            if containers.len() > 1 {
                self.batch_of.insert((*container).clone(), self.last_batch);
            }
        }
    }

    /// Removes the finished task of a container.
    pub(crate) fn task_finished(&mut self, container: &ContainerUuid) {
        self.batch_of.remove(container);
        let Some(key) = self.locking.remove(container) else {
            return;
        };
        if let Some(coming) = self.arriving.get_mut(&key) {
            *coming -= 1;
            if *coming == 0 {
                self.arriving.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::attempt_token::AttemptToken;
    use crate::model::task::{Start, Submission};
    use arvados_client::{Token, TokenUuid};

    fn any_batch_of_three() -> Capabilities {
        Capabilities {
            max_submit_batch: 3,
            ..Capabilities::default()
        }
    }

    fn submissions(count: usize) -> Vec<Submission> {
        let submission = || Submission {
            owner: None,
            container: ContainerUuid::generate("zzzzz"),
            token: AttemptToken {
                uuid: TokenUuid::generate("zzzzz"),
                token: Token::new("secret"),
                expires_at: None,
            },
            needs: ResourceRequest::default(),
            avoid: vec![],
            failed_on: vec![],
        };
        (0..count).map(|_| submission()).collect()
    }

    fn at(milliseconds: u64) -> MonotonicTime {
        MonotonicTime(Duration::from_millis(milliseconds))
    }

    fn locks(containers: &[ContainerUuid]) -> Task {
        let start = |container: &ContainerUuid| Start {
            container: container.clone(),
            etag: String::new(),
            token: None,
            max_run_time: None,
        };
        Task::Start(containers.iter().map(start).collect())
    }

    #[test]
    fn submissions_wait_a_little_for_others_and_not_for_nothing() {
        let mut batcher = Batcher::new(any_batch_of_three());
        let container = ContainerUuid::generate("zzzzz");
        assert!(
            batcher.should_flush(at(0), 1, 0, false),
            "nobody else comes"
        );
        assert!(!batcher.should_flush(at(1), 1, 0, true));
        assert!(batcher.should_flush(at(2), 3, 0, true), "full");
        batcher.task_started(&locks(std::slice::from_ref(&container)), |_| None);
        assert!(!batcher.should_flush(at(3), 2, 0, false));
        assert!(
            batcher.should_flush(at(3), 2, 1, false),
            "none of its kind comes"
        );
        assert!(!batcher.should_flush(at(300), 2, 0, false));
        assert!(batcher.should_flush(at(301), 2, 0, false), "long enough");
        batcher.retain_pending([].iter());
        assert!(
            !batcher.should_flush(at(304), 2, 0, false),
            "those after it wait anew"
        );
        batcher.task_finished(&container);
        assert!(batcher.should_flush(at(305), 2, 0, false));
        let mut single = Batcher::new(Capabilities::default());
        assert!(single.should_flush(at(0), 1, 0, true), "one by one");
    }

    #[test]
    fn a_batch_uses_one_slot() {
        let mut batcher = Batcher::new(any_batch_of_three());
        let containers: Vec<_> = (0..40).map(|_| ContainerUuid::generate("zzzzz")).collect();
        batcher.task_started(&locks(&containers), |_| None);
        let others = submissions(10);
        let names: Vec<_> = others.iter().map(|one| one.container.clone()).collect();
        batcher.task_started(&Task::Submit(others), |_| None);
        assert_eq!(batcher.slots_used(53), 5, "two batches and three others");
        containers.iter().for_each(|c| batcher.task_finished(c));
        assert_eq!(batcher.slots_used(13), 4);
        names.iter().for_each(|c| batcher.task_finished(c));
        assert_eq!(batcher.slots_used(3), 3);
    }

    #[test]
    fn only_equal_needs_make_one_key_where_that_counts() {
        let mut uniform = Batcher::new(Capabilities {
            max_submit_batch: 400,
            min_uniform_batch: Some(8),
            ..Capabilities::default()
        });
        let (one, other) = (
            ResourceRequest::default(),
            ResourceRequest {
                cpus: 2,
                ..ResourceRequest::default()
            },
        );
        let [first, second] = [0, 1].map(|_| ContainerUuid::generate("zzzzz"));
        assert_eq!(
            uniform.key(&first, &one),
            uniform.key(&second, &one.clone())
        );
        assert_ne!(uniform.key(&first, &one), uniform.key(&first, &other));
        assert!(!uniform.should_batch(7) && uniform.should_batch(8));
        uniform.submit_alone(first.clone());
        assert_ne!(uniform.key(&first, &one), uniform.key(&second, &one));
        uniform.forget(&first);
        assert_eq!(uniform.key(&first, &one), uniform.key(&second, &one));
        let any = Batcher::new(any_batch_of_three());
        assert_eq!(any.key(&first, &one), any.key(&second, &other));
        assert!(any.should_batch(1));
    }
}
