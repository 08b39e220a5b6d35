//! The server a command talks to, and as whom.

use std::path::Path;
use std::time::Duration;

use arvados_client::endpoint::EndpointError;
use arvados_client::retry::REFUSAL_WINDOW;
use arvados_client::{Client, Endpoint};

use crate::failure::Failure;
use crate::state_dir::StateDir;

/// Time for which a call is repeated while the server cannot be reached: a person waits for the answer.
const OUTAGE_BUDGET: Duration = Duration::from_secs(5);
/// Time for which a call is repeated in all: longer than a refusal of what worked before is asked again.
const RETRY_BUDGET: Duration = Duration::from_secs(REFUSAL_WINDOW.as_secs() + 30);

/// A connection, and the `dispatch up` behind it if it is ours.
#[derive(Debug, Clone)]
pub struct Session {
    /// Talks to the server.
    pub client: Client,
    /// The state directory of the `up` that runs this server on this machine.
    pub local: Option<StateDir>,
}

impl Session {
    /// By `--state`, else `ARVADOS_API_HOST`, else a running `up`, else the user's settings file.
    pub fn open(state: Option<&Path>) -> Result<Self, Failure> {
        let dir = StateDir::locate(state);
        let named = std::env::var_os("ARVADOS_API_HOST").is_some_and(|host| !host.is_empty());
        let mut endpoint = if state.is_some() {
            dir.as_ref().map_err(|_| no_server(""))?.endpoint()?
        } else if named {
            Endpoint::from_env().map_err(Failure::Endpoint)?
        } else {
            match &dir {
                Ok(dir) if dir.is_up() => dir.endpoint()?,
                _ => Endpoint::from_env().map_err(|error| match error {
                    EndpointError::NoHost => no_server(""),
                    other => Failure::Endpoint(other),
                })?,
            }
        };
        endpoint.outage_budget = Some(OUTAGE_BUDGET);
        endpoint.retry_budget = RETRY_BUDGET;
        // With the two lines of `up` in the environment it is the same server all the same.
        let local = dir.ok().filter(|dir| {
            dir.endpoint()
                .is_ok_and(|theirs| theirs.host == endpoint.host)
        });
        Ok(Self {
            client: Client::new(endpoint)?,
            local,
        })
    }

    /// The server, for sentences.
    pub fn host(&self) -> &str {
        &self.client.endpoint().host
    }
}

fn no_server(hint: &str) -> Failure {
    Failure::NoServer(hint.to_owned())
}
