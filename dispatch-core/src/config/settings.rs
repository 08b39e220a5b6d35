//! The settings of the controller, with their defaults.

use std::str::FromStr;
use std::time::Duration;

use arvados_client::endpoint::REFUSAL_WINDOW;

use crate::act::attempt_tokens::TokenMode;
use crate::scheduler::credentials::GatewayKey;

/// Minimum and maximum number of scheduler commands per second.
const COMMAND_RATES: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// Maximum rate of scheduler commands, in addition to one listing per poll.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum CommandRate {
    /// No limit.
    Unlimited,
    /// Commands per second, from 0.1 to 10,000.
    PerSecond(f64),
}

/// Why a text is not a [`CommandRate`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is out of range: write a number of commands per second from 0.1 to 10000, or \"none\" for no limit"
)]
pub struct CommandRateError(String);

impl FromStr for CommandRate {
    type Err = CommandRateError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "none" {
            return Ok(Self::Unlimited);
        }
        let rate: Option<f64> = text.parse().ok();
        // A value that is not a number is in no range.
        rate.filter(|rate| COMMAND_RATES.contains(rate))
            .map(Self::PerSecond)
            .ok_or_else(|| CommandRateError(text.to_owned()))
    }
}

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
    /// Maximum rate of scheduler commands, in addition to one listing an interval. Cancellations
    /// have the same rate again, so that submissions do not delay them.
    pub command_rate: CommandRate,
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
            command_rate: CommandRate::PerSecond(50.0),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_out_of_its_range_is_refused() {
        for (text, rate) in [
            ("none", Some(CommandRate::Unlimited)),
            ("0.1", Some(CommandRate::PerSecond(0.1))),
            ("50", Some(CommandRate::PerSecond(50.0))),
            ("10000", Some(CommandRate::PerSecond(10_000.0))),
            ("10001", None),
            ("0.05", None),
            ("0", None),
            ("-1", None),
            ("1e-30", None),
            ("nan", None),
            ("inf", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), rate, "{text}");
        }
    }
}
