//! The settings of the controller, with their defaults.

use std::time::Duration;

use arvados_client::endpoint::REFUSAL_WINDOW;

use crate::act::attempt_tokens::TokenMode;
use crate::scheduler::credentials::GatewayKey;

/// The settings of the controller.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Interval between polls without events.
    pub poll_interval: Duration,
    /// Minimum interval between polls.
    pub min_poll_interval: Duration,
    /// Bytes of memory for crunch-run itself, added to each container's.
    pub reserve_ram: u64,
    /// Maximum number of containers that wait in the scheduler at once.
    pub max_pending: usize,
    /// Maximum number of workflow runners that wait or run at once. They must leave room for the
    /// containers that they request.
    pub max_supervisors: usize,
    /// Maximum memory of more than one of them, in bytes.
    pub max_supervisor_ram: Option<u64>,
    /// Delay before a container is tried again after its first failed attempt.
    pub retry_period: Duration,
    /// Maximum number of scheduler commands a second, in addition to one listing an interval; 0
    /// means no limit.
    pub commands_per_second: f64,
    /// Maximum number of containers requested by name in every poll. If there are more, polls
    /// request only changes.
    pub asked_by_name: usize,
    /// Time that crunch-run gets to end when asked, before it is forced.
    pub stop_grace: Duration,
    /// Time after which a job that cannot start by itself is given up; `None` means never.
    pub start_timeout: Option<Duration>,
    /// Time for which undelivered results may stay on their node before the record is cancelled.
    pub undelivered_wait: Duration,
    /// Number of containers of a request up to which evictions do not count as its attempts.
    pub max_evictions: u32,
    /// Time for which the server must report a container as deleted, or a token as refused, before
    /// that counts.
    pub refusal_window: Duration,
    /// Margin by which an attempt's token outlives the container's run time limit. A token needed
    /// longer is renewed.
    pub token_margin: Duration,
    /// Kind of token that holds the locks.
    pub token_mode: TokenMode,
    /// Key from which the secrets of container gateways are derived. `None`: jobs get no such
    /// secret.
    pub gateway: Option<GatewayKey>,
    /// Name of this dispatcher among those of the same user. It stays the same after a restart and
    /// differs elsewhere.
    pub label: String,
}

impl Default for Settings {
    /// The defaults. The program sets the label.
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_secs(10),
            min_poll_interval: Duration::from_millis(20),
            reserve_ram: 64 << 20,
            max_pending: 100,
            max_supervisors: 50,
            max_supervisor_ram: None,
            retry_period: Duration::from_secs(2),
            commands_per_second: 50.0,
            asked_by_name: 500,
            stop_grace: Duration::from_secs(60),
            start_timeout: Some(Duration::from_secs(86400)),
            undelivered_wait: Duration::from_secs(86400),
            max_evictions: 10,
            refusal_window: REFUSAL_WINDOW,
            token_margin: Duration::from_secs(14 * 86400),
            token_mode: TokenMode::PerAttempt,
            gateway: None,
            label: String::new(),
        }
    }
}
