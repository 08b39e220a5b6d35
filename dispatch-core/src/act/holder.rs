//! Calls with an attempt's token, whose refusal is believed only when it lasts though the record names the attempt as the
//! holder: a server may refuse a valid token for a while, as after a restart of its database.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error};
use tokio::time::{Instant, sleep};

use super::Hands;
use crate::api::{Api, Record, Row};
use crate::attempts::AttemptToken;
use crate::scheduler::Scheduler;

/// Time between two tries of a call that is refused.
const RETRY_PAUSE: Duration = Duration::from_secs(3);

/// Why a call with an attempt's token did not succeed.
#[derive(Debug)]
pub(super) enum HolderError {
    /// It was refused, and the attempt does not hold the lock: the record.
    NotHolder(Box<Record>),
    /// It was refused for a minute, and the attempt holds the lock: its token has ended.
    Expired,
    /// It was refused, and the record cannot be read.
    Unreadable(String),
    /// Anything else.
    Api(Error),
}

impl<A: Api, S: Scheduler> Hands<A, S> {
    /// Makes a call with the token of an attempt that holds the lock of `container`, as far as is known.
    pub(super) async fn as_holder<T, F>(
        &self,
        container: &ContainerUuid,
        token: &AttemptToken,
        call: impl Fn() -> F,
    ) -> Result<T, HolderError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let mut refused = RefusalTimer::default();
        loop {
            let error = match call().await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_denied() => error,
                Err(error) => return Err(HolderError::Api(error)),
            };
            let record = match self.api.record(None, container).await {
                Ok(Row::Container(record)) => record,
                Ok(Row::Unreadable(_, why)) => return Err(HolderError::Unreadable(why)),
                Err(error) => return Err(HolderError::Api(error)),
            };
            let holds = record.locked_by.as_ref() == Some(&token.uuid);
            if !holds || record.state == ContainerState::Queued || record.state.is_final() {
                return Err(HolderError::NotHolder(record));
            }
            let has_ended = token.expires_at.is_some_and(|end| end <= self.api.now());
            if has_ended || refused.has_failed(&error, Instant::now().into_std()) {
                return Err(HolderError::Expired);
            }
            sleep(RETRY_PAUSE).await;
        }
    }
}
