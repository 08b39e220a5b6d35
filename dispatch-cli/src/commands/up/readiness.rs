//! Waits until the programs of `dispatch up` are ready, up to a timeout and a number of starts.

use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use super::{API_SERVER, DISPATCHER, Ready, Supervisor};
use crate::error::CliError;
use crate::local_status::URL_FILE;
use crate::state_dir::StateDir;
use crate::supervise::UpError;
use crate::supervise::child::Event;

/// Timeout until a program is ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum number of starts of a program that has never been ready.
const MAX_START_ATTEMPTS: u32 = 5;
/// Exit status of a program for a configuration error, which a restart does not fix.
pub const EX_CONFIG: i32 = 78;

/// Waits until dispatch-api has printed its address. `None` after a signal to stop.
pub async fn wait_for_api(supervisor: &mut Supervisor) -> Result<Option<Ready>, CliError> {
    let mut deadline = ReadinessDeadline::new(API_SERVER);
    loop {
        let Some(event) = deadline.next(supervisor).await? else {
            return Ok(None);
        };
        if let Event::StdoutLine {
            name: API_SERVER,
            line,
        } = event
        {
            return match serde_json::from_str(&line) {
                Ok(ready) => Ok(Some(ready)),
                Err(_) => Err(UpError::BadReadyLine(line).into()),
            };
        }
    }
}

/// Waits until dispatch-local is recorded and accepts connections. False after a signal to stop.
pub async fn wait_for_local(supervisor: &mut Supervisor) -> Result<bool, CliError> {
    let (mut deadline, mut is_noted) = (ReadinessDeadline::new(DISPATCHER), false);
    loop {
        let look_again = Instant::now() + Duration::from_millis(50);
        if is_noted && answers(&supervisor.state).await {
            return Ok(true);
        }
        tokio::select! {
            event = deadline.next(supervisor) => match event? {
                None => return Ok(false),
                Some(Event::Started(child)) => is_noted |= child.name == DISPATCHER,
                Some(_) => {}
            },
            () = sleep_until(look_again) => {}
        }
    }
}

async fn answers(state: &StateDir) -> bool {
    let Ok(url) = std::fs::read_to_string(state.join(URL_FILE)) else {
        return false;
    };
    let address = url
        .trim()
        .trim_start_matches("http://")
        .trim_end_matches("/status");
    tokio::net::TcpStream::connect(address).await.is_ok()
}

/// Waits for a program to become ready, up to a timeout and a number of starts.
struct ReadinessDeadline {
    name: &'static str,
    until: Instant,
    deaths: u32,
}

impl ReadinessDeadline {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            until: Instant::now() + READY_TIMEOUT,
            deaths: 0,
        }
    }

    async fn next(&mut self, supervisor: &mut Supervisor) -> Result<Option<Event>, CliError> {
        let event = tokio::select! {
            event = supervisor.next() => event?,
            () = sleep_until(self.until) => {
                return Err(UpError::NotReady {
                    name: self.name.to_owned(),
                    seconds: READY_TIMEOUT.as_secs(),
                    log: supervisor.log_of(self.name),
                }
                .into());
            }
        };
        match event {
            Some(Event::Exited { name, status, .. }) if name == self.name => {
                self.deaths += 1;
                if self.deaths < MAX_START_ATTEMPTS && status.code() != Some(EX_CONFIG) {
                    return Ok(Some(Event::StdoutLine {
                        name: "",
                        line: String::new(),
                    }));
                }
                let log = supervisor.log_of(name);
                Err(UpError::DoesNotStart {
                    name: name.to_owned(),
                    status: status.to_string(),
                    last_line: last_log_line(&log),
                    log,
                }
                .into())
            }
            Some(Event::SpawnFailed { error }) => Err(error.into()),
            other => Ok(other),
        }
    }
}

/// The last line that the program logged, which usually names the error.
pub fn last_log_line(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().rev();
    match lines.find(|line| !line.contains("dispatch up:") && !line.trim().is_empty()) {
        Some(line) => format!(": {}", line.trim()),
        None => String::new(),
    }
}
