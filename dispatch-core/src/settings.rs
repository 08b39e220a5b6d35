//! What an admin may set of the engine, and what a site gets that sets nothing.

use std::time::Duration;

use arvados_client::retry::REFUSAL_WINDOW;

use crate::attempts::TokenMode;
use crate::credentials::GatewayKey;

/// What an admin may set.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Between looks, when nothing says to look sooner.
    pub poll_interval: Duration,
    /// Between looks, at least.
    pub shortest_interval: Duration,
    /// Bytes of memory for crunch-run itself, added to each container's.
    pub reserve_ram: u64,
    /// Containers that may wait in the scheduler at once.
    pub max_pending: usize,
    /// Workflow runners that may wait or run at once: they must leave room for the containers they ask for.
    pub max_supervisors: usize,
    /// A container whose attempt came to nothing waits so long at first before it is tried again.
    pub retry_period: Duration,
    /// Commands to the scheduler a second, beside one listing an interval; 0 is no limit.
    pub commands_per_second: f64,
    /// Up to so many containers are asked for by name in every look; of more, only what changed.
    pub asked_by_name: usize,
    /// How long crunch-run may take to end when asked, before it is forced.
    pub stop_grace: Duration,
    /// A job that will not start by itself is given up after so long; none: never.
    pub start_timeout: Option<Duration>,
    /// Results that could not be delivered may wait on their node for so long, before the record is cancelled.
    pub undelivered_wait: Duration,
    /// A container counts as deleted, and a token as refused, when the server has said so for so long.
    pub refusal_window: Duration,
    /// An attempt's token outlives the container's run time limit by this; one that is needed longer is renewed.
    pub token_margin: Duration,
    /// Whose token holds the locks.
    pub token_mode: TokenMode,
    /// What the secrets of container gateways are derived from; none: jobs get no such secret.
    pub gateway: Option<GatewayKey>,
    /// Names this dispatcher among those of the same user: same name after a restart, different name elsewhere.
    pub label: String,
}

impl Default for Settings {
    /// What a site gets that sets nothing; the label is for the program to choose.
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(10),
            shortest_interval: Duration::from_millis(20),
            reserve_ram: 64 << 20,
            max_pending: 100,
            max_supervisors: 50,
            retry_period: Duration::from_secs(2),
            commands_per_second: 50.0,
            asked_by_name: 500,
            stop_grace: Duration::from_secs(60),
            start_timeout: Some(Duration::from_secs(86400)),
            undelivered_wait: Duration::from_secs(86400),
            refusal_window: REFUSAL_WINDOW,
            token_margin: Duration::from_secs(14 * 86400),
            token_mode: TokenMode::PerAttempt,
            gateway: None,
            label: String::new(),
        }
    }
}
