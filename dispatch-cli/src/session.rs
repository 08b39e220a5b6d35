//! Chooses the server and token of a command, from flags, environment, a running `dispatch up`, or
//! the settings file.

use std::path::Path;
use std::sync::Once;
use std::time::Duration;

use arvados_client::endpoint::{EndpointError, REFUSAL_WINDOW};
use arvados_client::{Client, Endpoint};

use crate::error::CliError;
use crate::printer::eprint_note_over_line;
use crate::state_dir::StateDir;

/// Retry budget while the server is unreachable; short, because a user waits.
const OUTAGE_BUDGET: Duration = Duration::from_secs(5);
/// Retry budget of a call in total: longer than the window in which refusals are retried.
const RETRY_BUDGET: Duration = Duration::from_secs(REFUSAL_WINDOW.as_secs() + 30);

/// A client of the server, and the local `dispatch up` that runs the server, if any.
#[derive(Debug, Clone)]
pub struct Session {
    pub client: Client,
    /// State directory of the `dispatch up` that runs this server on this machine.
    pub local: Option<StateDir>,
}

impl Session {
    /// Chooses by `--state-dir`, else `ARVADOS_API_HOST`, else a running `dispatch up`, else the
    /// settings file of the user.
    pub fn open(state: Option<&Path>) -> Result<Self, CliError> {
        let dir = StateDir::locate(state);
        let named = std::env::var_os("ARVADOS_API_HOST").is_some_and(|host| !host.is_empty());
        let mut endpoint = if state.is_some() {
            dir.as_ref()
                .map_err(|_| CliError::NoServer(String::new()))?
                .endpoint()?
        } else if named {
            Endpoint::from_env().map_err(CliError::Endpoint)?
        } else {
            match &dir {
                Ok(dir) if dir.is_up() => dir.endpoint()?,
                _ => Endpoint::from_env().map_err(|error| match error {
                    EndpointError::NoHost => CliError::NoServer(not_running(dir.as_ref().ok())),
                    other => CliError::Endpoint(other),
                })?,
            }
        };
        // The environment may name the server of this `dispatch up`, too.
        let local = dir.ok().filter(|dir| {
            dir.endpoint()
                .is_ok_and(|theirs| theirs.host == endpoint.host)
        });
        endpoint.is_direct |= local.is_some();
        Ok(Self {
            client: client_for_people(endpoint)?,
            local,
        })
    }

    /// The same server with the rights of an administrator: on the machine of `dispatch up`, with
    /// the token of its administrator.
    pub fn as_admin(&self) -> Result<Self, CliError> {
        let Some(dir) = self.local.clone() else {
            return Ok(self.clone());
        };
        Ok(Self {
            client: client_for_people(dir.admin_endpoint()?)?,
            local: Some(dir),
        })
    }

    /// The server, for messages.
    pub fn host(&self) -> &str {
        &self.client.endpoint().host
    }
}

/// A client that gives up soon, and says so when it waits: a person waits for it.
fn client_for_people(mut endpoint: Endpoint) -> Result<Client, CliError> {
    endpoint.outage_budget = Some(OUTAGE_BUDGET);
    endpoint.retry_budget = RETRY_BUDGET;
    endpoint.slow_notice = Some(note_slow_server);
    Ok(Client::new(endpoint)?)
}

/// Says once that the server takes long.
fn note_slow_server(host: &str) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        eprint_note_over_line(&format!("dispatch: waiting for an answer of {host}"));
    });
}

/// Where a `dispatch up` has run that does not run now.
fn not_running(dir: Option<&StateDir>) -> String {
    match dir.filter(|dir| dir.path().exists()) {
        Some(dir) => format!("; the one on {} is not running", dir.path().display()),
        None => String::new(),
    }
}
