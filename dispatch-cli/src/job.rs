//! A job: a container request with the container that serves it, and its state in one word.

use std::time::Duration;

use arvados_client::Uuid;
use arvados_client::records::{Container, ContainerRequest, ContainerState, RequestState};
use clap::ValueEnum;
use jiff::Timestamp;
use serde_json::{Map, Value};

use crate::exit::Exit;

/// Property of a request that holds its number.
pub const ID_PROPERTY: &str = "dispatch_id";
/// Property of a request that holds the uuid of the user the number belongs to.
pub const USER_PROPERTY: &str = "dispatch_user";

/// Property of a request that was killed before it started. A server keeps such a request Committed
/// with priority 0, as one on hold.
pub const KILLED_PROPERTY: &str = "dispatch_killed";
/// Property with the login name of another user who killed the job.
pub const KILLED_BY_PROPERTY: &str = "dispatch_killed_by";
/// Property with the priority that a held job gets when it is released.
pub const HELD_PRIORITY_PROPERTY: &str = "dispatch_held_priority";

/// Property of a request with the uuid of the one that does the same once more.
pub const RETRIED_PROPERTY: &str = "dispatch_retried_as";
/// Property of a request with the uuid of the one that it does once more.
pub const RETRY_OF_PROPERTY: &str = "dispatch_retry_of";

/// Property of a request that was removed and keeps its number from being given again.
pub const REMOVED_PROPERTY: &str = "dispatch_removed";

/// Numbers are below this: what JSON readers keep exactly.
const MAX_NUMBER: u64 = 1 << 53;

/// The state of a job in one word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum JobState {
    /// Not committed.
    Draft,
    /// Not started, with priority 0: on hold until the priority is raised.
    Held,
    /// Pending: no dispatcher has locked it.
    Queued,
    /// Locked by a dispatcher.
    Locked,
    /// Its command runs.
    Running,
    /// Being stopped.
    Stopping,
    /// Its command ended, with any exit code.
    Complete,
    /// It ended in any other way.
    Cancelled,
}

impl JobState {
    /// The state as users see it.
    pub fn as_str(self) -> &'static str {
        match self {
            JobState::Draft => "Draft",
            JobState::Held => "Held",
            JobState::Queued => "Queued",
            JobState::Locked => "Locked",
            JobState::Running => "Running",
            JobState::Stopping => "Stopping",
            JobState::Complete => "Complete",
            JobState::Cancelled => "Cancelled",
        }
    }

    /// Parses a state as users see it, in any case.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::from_str(text, true).map_err(|_| {
            let states = Self::value_variants().iter().map(|state| state.as_str());
            let known: Vec<&str> = states.collect();
            format!(
                "there is no state {text:?}; the states are {}",
                known.join(", ")
            )
        })
    }

    /// Whether the job has ended; one on hold may still be released.
    pub fn has_ended(self) -> bool {
        matches!(self, JobState::Complete | JobState::Cancelled)
    }

    /// Whether it waits to be started, or runs.
    pub fn is_active(self) -> bool {
        matches!(
            self,
            JobState::Queued | JobState::Locked | JobState::Running
        )
    }

    /// Whether the job changes no more by itself.
    pub fn is_over(self) -> bool {
        self.has_ended() || self == JobState::Held
    }

    /// State from the records of the server.
    fn of(request: &RequestState, priority: i64, container: Option<&Container>) -> Self {
        match (request, container.map(|c| &c.state)) {
            (RequestState::Uncommitted, _) => JobState::Draft,
            (_, Some(ContainerState::Complete)) => JobState::Complete,
            (RequestState::Final, _) => JobState::Cancelled,
            // The server replaces a cancelled container unless the priority is 0.
            (_, Some(ContainerState::Cancelled)) => match priority {
                0 => JobState::Cancelled,
                _ => JobState::Queued,
            },
            (_, Some(ContainerState::Locked | ContainerState::Running))
                if container.is_some_and(|c| c.priority == 0) =>
            {
                JobState::Stopping
            }
            (_, Some(ContainerState::Locked)) => JobState::Locked,
            (_, Some(ContainerState::Running)) => JobState::Running,
            _ => match priority {
                0 => JobState::Held,
                _ => JobState::Queued,
            },
        }
    }
}

/// A request and its container.
#[derive(Debug, Clone)]
pub struct Job {
    /// The container request.
    pub request: ContainerRequest,
    /// The container that serves the request, if this token can read it.
    pub container: Option<Container>,
    /// Its number, which belongs to one user.
    pub number: Option<u64>,
}

impl Job {
    /// Combines a request with its container; `user` is the current user.
    pub fn new(request: ContainerRequest, container: Option<Container>, user: &str) -> Self {
        let number = number_of(&request, user);
        Self {
            request,
            container,
            number,
        }
    }

    /// The state in one word.
    pub fn state(&self) -> JobState {
        let state = JobState::of(
            &self.request.state,
            self.request.priority,
            self.container.as_ref(),
        );
        match state {
            JobState::Held if self.was_killed() => JobState::Cancelled,
            state => state,
        }
    }

    /// Whether `dispatch kill` stopped it, or kept it from starting.
    pub fn was_killed(&self) -> bool {
        has_flag(&self.request, KILLED_PROPERTY)
    }

    /// " by user NAME" if another user killed it, else nothing.
    pub fn killed_by(&self) -> String {
        let by = self.property(KILLED_BY_PROPERTY);
        by.map_or(String::new(), |name| format!(" by user {name}"))
    }

    /// The properties of the request. An update replaces all of them.
    pub fn properties(&self) -> Map<String, Value> {
        properties_of(&self.request)
    }

    /// The text of a property of the request.
    pub fn property(&self, name: &str) -> Option<&str> {
        property(&self.request, name)?.as_str()
    }

    /// Whether the container is present, if there is one. The reply to a new request has no
    /// container, so the result of a reused container is missing from it.
    pub fn has_its_container(&self) -> bool {
        self.request.container_uuid.is_none() || self.container.is_some()
    }

    /// The number, or the uuid of a job without one.
    pub fn name(&self) -> String {
        match self.number {
            Some(number) => number.to_string(),
            None => self.request.uuid.to_string(),
        }
    }

    /// Exit code of the command.
    pub fn exit_code(&self) -> Option<i32> {
        self.container
            .as_ref()
            .filter(|c| c.state == ContainerState::Complete)?
            .exit_code
    }

    /// Time from the start to the end, or to now.
    pub fn run_time(&self, now: Timestamp) -> Option<Duration> {
        let container = self.container.as_ref()?;
        let start = container.started_at?;
        let ended = container.finished_at.unwrap_or(now);
        Duration::try_from(ended.duration_since(start)).ok()
    }

    /// The error in the `runtime_status` of the container.
    pub fn error(&self) -> Option<&str> {
        self.container.as_ref()?.runtime_status.error.as_deref()
    }

    /// Whether it was cancelled, or ended with an exit code other than 0.
    pub fn has_failed(&self) -> bool {
        match self.state() {
            JobState::Cancelled => true,
            JobState::Complete => self.verdict() != Some(Exit::Ok),
            _ => false,
        }
    }

    /// The warnings in the `runtime_status` of the container.
    pub fn warnings(&self) -> Vec<&str> {
        let status = self.container.as_ref().map(|c| &c.runtime_status);
        let first = status.and_then(|status| status.warning.as_deref());
        let more = status.and_then(|status| status.warning_detail.as_deref());
        first
            .into_iter()
            .chain(more.unwrap_or_default().lines())
            .collect()
    }

    /// Exit status of a command that waits for the job; `None` until the job has ended.
    pub fn verdict(&self) -> Option<Exit> {
        let state = self.state();
        match (state, self.exit_code()) {
            (JobState::Complete, Some(code)) => Some(Exit::of_job(code)),
            // Complete without an exit code gives no result of the command.
            (JobState::Complete, None) => Some(Exit::Cancelled),
            _ if state.is_over() => Some(Exit::Cancelled),
            _ => None,
        }
    }

    /// The uuids whose events concern the job.
    pub fn uuids(&self) -> impl Iterator<Item = &str> {
        let container = self.request.container_uuid.as_ref();
        std::iter::once(self.request.uuid.as_str()).chain(container.map(|uuid| uuid.as_str()))
    }
}

/// Whether the request was removed, and only keeps its number from being given again.
pub fn is_removed(request: &ContainerRequest) -> bool {
    has_flag(request, REMOVED_PROPERTY)
}

/// The properties of a request. An update replaces all of them.
pub fn properties_of(request: &ContainerRequest) -> Map<String, Value> {
    let properties = request.extra.get("properties").and_then(Value::as_object);
    properties.cloned().unwrap_or_default()
}

fn property<'a>(request: &'a ContainerRequest, name: &str) -> Option<&'a Value> {
    request.extra.get("properties")?.get(name)
}

fn has_flag(request: &ContainerRequest, name: &str) -> bool {
    property(request, name) == Some(&Value::Bool(true))
}

/// The number of a request, if it belongs to `user`.
pub fn number_of(request: &ContainerRequest, user: &str) -> Option<u64> {
    // Another user may share a request that names this user and any number.
    let is_own = |owner: &Uuid| owner.as_str() == user;
    if !request.owner_uuid.as_ref().is_none_or(is_own) {
        return None;
    }
    (property(request, USER_PROPERTY)?.as_str() == Some(user))
        .then(|| property(request, ID_PROPERTY)?.as_u64())?
        .filter(|number| *number < MAX_NUMBER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn job(request: &str, priority: i64, container: Option<(&str, i64, Value)>) -> Job {
        let request = json!({
            "uuid": "zzzzz-xvhdp-0123456789abcde", "state": request, "priority": priority,
            "properties": {"dispatch_id": 7, "dispatch_user": "me"},
        });
        let container = container.map(|(state, priority, exit)| {
            serde_json::from_value(json!({
                "uuid": "zzzzz-dz642-0123456789abcde", "state": state, "priority": priority, "exit_code": exit,
            }))
            .unwrap()
        });
        Job::new(serde_json::from_value(request).unwrap(), container, "me")
    }

    #[test]
    fn the_state_in_one_word() {
        let none = || Value::Null;
        let rows = [
            ("Uncommitted", 0, None, "Draft", None),
            ("Committed", 500, None, "Queued", None),
            (
                "Committed",
                500,
                Some(("Queued", 9, none())),
                "Queued",
                None,
            ),
            (
                "Committed",
                0,
                Some(("Queued", 0, none())),
                "Held",
                Some(123),
            ),
            (
                "Committed",
                500,
                Some(("Locked", 9, none())),
                "Locked",
                None,
            ),
            (
                "Committed",
                0,
                Some(("Locked", 0, none())),
                "Stopping",
                None,
            ),
            (
                "Committed",
                500,
                Some(("Running", 9, none())),
                "Running",
                None,
            ),
            (
                "Committed",
                0,
                Some(("Running", 0, none())),
                "Stopping",
                None,
            ),
            // Another request still uses the container.
            (
                "Committed",
                0,
                Some(("Running", 9, none())),
                "Running",
                None,
            ),
            (
                "Committed",
                500,
                Some(("Cancelled", 0, none())),
                "Queued",
                None,
            ),
            (
                "Committed",
                0,
                Some(("Cancelled", 0, none())),
                "Cancelled",
                Some(123),
            ),
            (
                "Committed",
                500,
                Some(("Complete", 9, json!(0))),
                "Complete",
                Some(0),
            ),
            (
                "Final",
                500,
                Some(("Complete", 0, json!(3))),
                "Complete",
                Some(3),
            ),
            (
                "Final",
                500,
                Some(("Complete", 0, none())),
                "Complete",
                Some(123),
            ),
            (
                "Final",
                500,
                Some(("Cancelled", 0, json!(3))),
                "Cancelled",
                Some(123),
            ),
            (
                "Final",
                500,
                Some(("Running", 0, none())),
                "Cancelled",
                Some(123),
            ),
            ("Final", 500, None, "Cancelled", Some(123)),
            (
                "Committed",
                500,
                Some(("Paused", 9, none())),
                "Queued",
                None,
            ),
        ];
        for (request, priority, container, word, verdict) in rows {
            let label = format!("{request} {priority} {container:?}");
            let job = job(request, priority, container);
            assert_eq!(job.state().as_str(), word, "{label}");
            assert_eq!(job.verdict().map(Exit::code), verdict, "{label}");
        }
    }

    #[test]
    fn a_number_is_only_its_owners() {
        let request = job("Committed", 1, None).request;
        assert_eq!(number_of(&request, "me"), Some(7));
        assert_eq!(number_of(&request, "you"), None);
        let of = |owner: &str, number: u64| -> ContainerRequest {
            serde_json::from_value(json!({
                "uuid": "zzzzz-xvhdp-0123456789abcde", "owner_uuid": owner,
                "properties": {"dispatch_id": number, "dispatch_user": ME},
            }))
            .unwrap()
        };
        const ME: &str = "zzzzz-tpzed-0123456789abcde";
        assert_eq!(number_of(&of(ME, 7), ME), Some(7));
        assert_eq!(number_of(&of(ME, 1 << 53), ME), None);
        assert_eq!(number_of(&of("zzzzz-tpzed-000000000000001", 7), ME), None);
    }
}
