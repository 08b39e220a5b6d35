//! The tasks under way. Input: tasks to spawn. Output: their results, also of a task that panicked:
//! its containers must not count as busy for ever.

use std::collections::HashMap;

use arvados_client::ContainerUuid;
use tokio::task::{Id, JoinError, JoinSet};

use crate::act::TaskRunner;
use crate::act::runner::{TaskResult, TaskResults};
use crate::api::Api;
use crate::model::task::Task;
use crate::scheduler::Scheduler;

/// The spawned tasks, with the containers of each.
#[derive(Debug, Default)]
pub(crate) struct RunningTasks {
    tasks: JoinSet<TaskResults>,
    containers: HashMap<Id, Vec<ContainerUuid>>,
}

impl RunningTasks {
    pub(crate) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub(crate) fn spawn<A: Api, S: Scheduler>(&mut self, runner: TaskRunner<A, S>, task: Task) {
        let containers = task.containers().into_iter().cloned().collect();
        let spawned = self.tasks.spawn(async move { runner.run(task).await });
        self.containers.insert(spawned.id(), containers);
    }

    /// Waits for the end of a task. None if there is no task.
    pub(crate) async fn next(&mut self) -> Option<TaskResults> {
        let done = self.tasks.join_next_with_id().await?;
        Some(self.results(done))
    }

    /// The results of a task that has ended.
    pub(crate) fn try_next(&mut self) -> Option<TaskResults> {
        let done = self.tasks.try_join_next_with_id()?;
        Some(self.results(done))
    }

    fn results(&mut self, done: Result<(Id, TaskResults), JoinError>) -> TaskResults {
        let id = done.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let containers = self.containers.remove(&id).unwrap_or_default();
        match done {
            Ok((_, results)) => results,
            Err(error) => containers
                .into_iter()
                .map(|container| {
                    let result = TaskResult::failed(&container, &error);
                    (container, result)
                })
                .collect(),
        }
    }
}
