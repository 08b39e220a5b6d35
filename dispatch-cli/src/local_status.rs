//! Reads the status page of the dispatch-local that `dispatch up` runs: capacity, free resources,
//! and pending reasons.

use std::fmt;
use std::time::Duration;

use arvados_client::Client;
use arvados_client::records::ContainerRequest;
use serde::{Deserialize, Serialize};

use crate::job::Job;
use crate::jobs;
use crate::session::Session;
use crate::state_dir::StateDir;
use crate::text::plural;
use units::format_size;

/// Timeout of the status page, which is on this machine.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);
/// What is said of a dispatcher that does not reply.
pub const NO_REPLY: &str =
    "the dispatcher of this machine does not reply; see the log named by: dispatch info";
/// File in the state directory with the URL of the status page.
pub const URL_FILE: &str = "status-url";

/// Resources that the dispatcher assigns to containers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Resources {
    pub cpus: u64,
    pub ram: u64,
    pub scratch: u64,
    pub gpus: u64,
}

impl Resources {
    /// What a job takes of its machine.
    pub fn of_request(request: &ContainerRequest) -> Self {
        let needs = &request.runtime_constraints;
        let capacities = request.mounts.values().map(|mount| mount.capacity);
        Self {
            cpus: needs.vcpus.into(),
            ram: needs.ram,
            scratch: capacities.fold(0, u64::saturating_add),
            gpus: needs.gpu.device_count.into(),
        }
    }

    /// Whether a job with these requests fits if nothing else runs.
    pub fn can_hold(self, job: Self) -> bool {
        let (has, wants) = (self, job);
        has.cpus >= wants.cpus
            && has.ram >= wants.ram
            && has.scratch >= wants.scratch
            && has.gpus >= wants.gpus
    }

    /// In words, such as "2 CPUs, 24 GiB memory, 58 GiB scratch, 1 GPU".
    pub fn description(self) -> String {
        let mut text = format!(
            "{}, {} memory, {} scratch",
            plural(self.cpus, "CPU"),
            format_size(self.ram),
            format_size(self.scratch)
        );
        if self.gpus > 0 {
            text.push_str(&format!(", {}", plural(self.gpus, "GPU")));
        }
        text
    }
}

/// A container in the status of the dispatcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrackedContainer {
    pub container: String,
    pub state: String,
    pub priority: i64,
    /// Whether this dispatcher holds the lock.
    pub ours: bool,
    /// Why the container is pending.
    pub waits: Option<String>,
    /// Its place among those that wait and can start, from 1.
    pub place: Option<usize>,
    /// Whether the container can never start on this machine.
    pub never_fits: bool,
}

/// The place of a container in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueuePlace {
    /// 1 for the next one.
    pub number: usize,
    /// Number of containers that wait.
    pub of: usize,
}

impl fmt::Display for QueuePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "number {} of {} that wait", self.number, self.of)
    }
}

/// The status of the dispatcher.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub health: serde_json::Value,
    pub error: Option<String>,
    pub uptime_seconds: f64,
    pub capacity: Option<Resources>,
    pub free: Option<Resources>,
    /// What jobs of other dispatchers on this machine hold.
    pub others: Option<Resources>,
    pub containers: Vec<TrackedContainer>,
}

impl Status {
    /// The entry of one container.
    pub fn container(&self, container: &str) -> Option<&TrackedContainer> {
        self.containers.iter().find(|c| c.container == container)
    }

    /// Number of containers that hold resources of this machine, as far as the dispatcher knows.
    pub fn being_handled(&self) -> u64 {
        let holds = |row: &&TrackedContainer| row.ours && row.state != "Queued";
        self.containers.iter().filter(holds).count() as u64
    }

    /// The place of a container among those that wait and can start, in the order of the
    /// dispatcher. `None` if it is alone, or does not wait.
    pub fn place(&self, container: &str) -> Option<QueuePlace> {
        let number = self.container(container)?.place?;
        let waiting = self.containers.iter().filter(|row| row.place.is_some());
        let of = waiting.count();
        (of > 1).then_some(QueuePlace { number, of })
    }
}

/// Result of reading the status.
#[derive(Debug, Clone)]
pub enum StatusReply {
    /// The server is not run by a `dispatch up` of this machine.
    NotLocal,
    /// The dispatcher of this machine does not reply.
    NoReply,
    Reply(Box<Status>),
}

/// Fetches the status of the dispatcher that `dispatch up` runs beside the server of this session.
pub async fn fetch(session: &Session) -> StatusReply {
    match &session.local {
        Some(state) => fetch_from(&session.client, state).await,
        None => StatusReply::NotLocal,
    }
}

/// [`fetch`], with the names of jobs in the reason why this one waits.
pub async fn fetch_for(session: &Session, job: &Job) -> StatusReply {
    let mut reply = fetch(session).await;
    if let StatusReply::Reply(status) = &mut reply
        && let Some(container) = &job.request.container_uuid
        && let mut rows = status.containers.iter_mut()
        && let Some(row) = rows.find(|row| row.container == container.as_str())
        && let Some(waits) = row.waits.take()
    {
        row.waits = Some(jobs::with_names(&session.client, waits).await);
    }
    reply
}

/// Fetches the status of the dispatcher with this state directory.
pub async fn fetch_from(client: &Client, state: &StateDir) -> StatusReply {
    let Ok(url) = std::fs::read_to_string(state.join(URL_FILE)) else {
        return StatusReply::NoReply;
    };
    let http = client.http();
    let answer = async {
        let request = http.get(url.trim()).timeout(STATUS_TIMEOUT);
        let body = request.send().await.ok()?.bytes().await.ok()?;
        serde_json::from_slice(&body).ok()
    };
    match answer.await {
        Some(status) => StatusReply::Reply(Box::new(status)),
        None => StatusReply::NoReply,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_the_dispatchers() {
        let row = |container: &str, place: Option<usize>| TrackedContainer {
            container: container.to_owned(),
            state: "Queued".to_owned(),
            place,
            ..TrackedContainer::default()
        };
        let mut status = Status {
            containers: vec![
                row("a", Some(2)),
                row("large", None),
                row("b", Some(1)),
                TrackedContainer {
                    ours: true,
                    state: "Running".to_owned(),
                    ..row("runs", None)
                },
            ],
            ..Status::default()
        };
        for (container, place) in [
            ("b", Some(1)),
            ("a", Some(2)),
            ("large", None),
            ("none", None),
        ] {
            let expected = place.map(|number| QueuePlace { number, of: 2 });
            assert_eq!(status.place(container), expected, "{container}");
        }
        assert_eq!(status.being_handled(), 1);
        status.containers.truncate(2);
        assert_eq!(status.place("a"), None, "it is alone");
    }

    #[test]
    fn an_answer_may_leave_anything_out() {
        let status: Status = serde_json::from_str(
            r#"{"health":"ok","containers":[{"container":"c","waits":"not enough memory"},{"container":"d"}],
                "capacity":{"cpus":4,"ram":1024,"scratch":1,"gpus":0},"more":1}"#,
        )
        .unwrap();
        assert_eq!(status.capacity.unwrap().cpus, 4);
        assert_eq!(
            status.container("c").unwrap().waits.as_deref(),
            Some("not enough memory")
        );
        assert!(status.container("d").unwrap().waits.is_none() && status.free.is_none());
    }
}
