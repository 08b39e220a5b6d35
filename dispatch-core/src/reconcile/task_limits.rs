//! Limits on tasks: concurrency slots, batches and the rate of scheduler commands.

use std::collections::{BTreeMap, BTreeSet};

use arvados_client::ContainerUuid;

use crate::config::settings::CommandRate;
use crate::model::resources::ResourceRequest;
use crate::model::scheduling::Capabilities;
use crate::model::task::Task;
use crate::reconcile::batcher::Batcher;
use crate::reconcile::concurrency::AimdLimit;
use crate::reconcile::rate_limit::TokenBucket;

/// Maximum number of tasks under way at once.
pub(crate) const MAX_CONCURRENT_TASKS: usize = 10;
/// Number of slots reserved for tasks that need only the API. They make progress while a scheduler
/// hangs.
pub(crate) const RESERVED_API_SLOTS: usize = 2;
/// Maximum number of scheduler commands in a burst after a quiet time.
pub(crate) const COMMAND_BURST: u32 = 50;

/// Slots, batches and command rate, with the tasks that use them.
#[derive(Debug)]
pub(crate) struct TaskLimits {
    pub(crate) concurrency: AimdLimit,
    pub(crate) command_rate: TokenBucket,
    /// Rate of cancellations. They do not wait for submissions.
    pub(crate) cancel_rate: TokenBucket,
    pub(crate) batcher: Batcher,
    /// Containers with a task under way that asks the scheduler, with the number of the task, and
    /// whether it asks the API server, too.
    scheduler_tasks: BTreeMap<ContainerUuid, (u64, bool)>,
    last_scheduler_task: u64,
}

impl TaskLimits {
    /// No task is under way.
    pub(crate) fn new(rate: CommandRate, capabilities: Capabilities) -> Self {
        Self {
            concurrency: AimdLimit::new(MAX_CONCURRENT_TASKS),
            command_rate: TokenBucket::new(rate, COMMAND_BURST),
            cancel_rate: TokenBucket::new(rate, COMMAND_BURST),
            batcher: Batcher::new(capabilities),
            scheduler_tasks: BTreeMap::new(),
            last_scheduler_task: 0,
        }
    }

    /// Number of slots for further tasks while tasks for `in_flight` containers are under way.
    pub(crate) fn free_slots(&self, in_flight: usize) -> usize {
        MAX_CONCURRENT_TASKS.saturating_sub(self.batcher.slots_used(in_flight))
    }

    /// The same for tasks that ask the API server. An overloaded one lowers their number.
    pub(crate) fn free_api_slots(&self, in_flight: usize) -> usize {
        let quiet = self.scheduler_tasks(|asks_api| !asks_api);
        let used = self.batcher.slots_used(in_flight).saturating_sub(quiet);
        self.concurrency.limit().saturating_sub(used)
    }

    /// Number of further tasks that may ask the scheduler now.
    pub(crate) fn free_scheduler_slots(&self) -> usize {
        let limit = MAX_CONCURRENT_TASKS - RESERVED_API_SLOTS;
        limit.saturating_sub(self.scheduler_tasks(|_| true))
    }

    fn scheduler_tasks(&self, is_counted: impl Fn(bool) -> bool) -> usize {
        let under_way = self.scheduler_tasks.values();
        let counted = under_way.filter(|(_, asks_api)| is_counted(*asks_api));
        counted.collect::<BTreeSet<_>>().len()
    }

    /// Records that a task starts. `needs` returns the resource request of a container.
    pub(crate) fn task_started<'a>(
        &mut self,
        task: &Task,
        needs: impl Fn(&ContainerUuid) -> Option<&'a ResourceRequest>,
    ) {
        self.batcher.task_started(task, needs);
        if task.asks_scheduler() {
            self.last_scheduler_task += 1;
            let containers = task.containers().into_iter().cloned();
            let task = (self.last_scheduler_task, task.asks_api());
            let numbered = containers.map(|uuid| (uuid, task));
            self.scheduler_tasks.extend(numbered);
        }
    }

    /// Records that the task of a container has finished.
    pub(crate) fn task_finished(&mut self, container: &ContainerUuid) {
        self.batcher.task_finished(container);
        self.scheduler_tasks.remove(container);
    }
}
