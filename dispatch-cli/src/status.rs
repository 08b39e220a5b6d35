//! What dispatch-local says about itself: capacity, what is free, and why each container waits.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::session::Session;

/// It is on this machine; slower than this is not working.
const PATIENCE: Duration = Duration::from_secs(3);
/// Where `up` writes the address.
pub const URL_FILE: &str = "status-url";

/// An amount of everything that is handed out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Amounts {
    pub cpus: u64,
    pub ram: u64,
    pub scratch: u64,
    pub gpus: u64,
}

/// One container as the dispatcher sees it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Tracked {
    pub container: String,
    pub state: String,
    pub priority: i64,
    /// It holds the lock.
    pub ours: bool,
    /// Why it is not running, in words.
    pub waits: Option<String>,
}

/// The whole answer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub health: serde_json::Value,
    pub error: Option<String>,
    pub uptime_seconds: f64,
    pub capacity: Option<Amounts>,
    pub free: Option<Amounts>,
    pub containers: Vec<Tracked>,
}

impl Status {
    /// What it says about one container.
    pub fn of(&self, container: &str) -> Option<&Tracked> {
        self.containers.iter().find(|c| c.container == container)
    }
}

/// What asking the dispatcher of this machine gave.
#[derive(Debug, Clone)]
pub enum Asked {
    /// The server is not run by a `dispatch up` of this machine.
    Elsewhere,
    /// It should be here and does not answer.
    Silent,
    /// Its answer.
    Answer(Box<Status>),
}

/// Asks the dispatcher that `up` runs beside this session's server.
pub async fn ask(session: &Session) -> Asked {
    let Some(state) = &session.local else {
        return Asked::Elsewhere;
    };
    let Ok(url) = std::fs::read_to_string(state.join(URL_FILE)) else {
        return Asked::Silent;
    };
    let http = session.client.http();
    let answer = async {
        let reply = http.get(url.trim()).timeout(PATIENCE).send().await.ok()?;
        let body = reply.bytes().await.ok()?;
        serde_json::from_slice(&body).ok()
    };
    match answer.await {
        Some(status) => Asked::Answer(Box::new(status)),
        None => Asked::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_may_leave_anything_out() {
        let status: Status = serde_json::from_str(
            r#"{"health":"ok","containers":[{"container":"c","waits":"not enough memory"},{"container":"d"}],
                "capacity":{"cpus":4,"ram":1024,"scratch":1,"gpus":0},"more":1}"#,
        )
        .unwrap();
        assert_eq!(status.capacity.unwrap().cpus, 4);
        assert_eq!(
            status.of("c").unwrap().waits.as_deref(),
            Some("not enough memory")
        );
        assert!(status.of("d").unwrap().waits.is_none() && status.free.is_none());
    }
}
