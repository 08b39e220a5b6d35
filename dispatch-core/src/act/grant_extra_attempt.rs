//! Gives the container requests of an evicted container one more attempt each, so that what the
//! site took away, or a node that failed, does not count. `cancel_record.rs` calls it when it
//! cancels the attempt; `model/exit_cause.rs` tells which ends are of this kind.
//!
//! Input: the container, which is still Running, and the token that holds it. Output: raised values
//! of `container_count_max`. The server makes the next container when this one is cancelled, in the
//! same transaction, so this comes first. The new values are written to the record of the container
//! before: after a lost answer or a restart no value is raised twice. A container may write to its
//! record, too. So the record only tells what was raised already, never what to raise.

use std::collections::BTreeMap;

use arvados_client::{ContainerRequestUuid, ContainerUuid};
use crunch_contract::runtime_status::RETRY_LIMITS;
use serde_json::json;

use crate::act::TaskRunner;
use crate::act::holder::HolderError;
use crate::api::{Api, RequestAttempts};
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::ListedRecord;
use crate::scheduler::Scheduler;

/// The value of `container_count_max` where a request has none: Arvados' default of
/// `Containers.MaxRetryAttempts`.
const DEFAULT_MAX_CONTAINERS: u32 = 3;

/// Values of `container_count_max` by request.
type Limits = BTreeMap<ContainerRequestUuid, u32>;

/// The limits that requests are to have which have had at most `max_evictions` containers. Others
/// keep theirs: this container counts. A request with the limit that the record of the container
/// has was raised already.
fn raised(requests: &[RequestAttempts], recorded: &Limits, max_evictions: u32) -> Limits {
    let below = |request: &&RequestAttempts| request.containers <= max_evictions;
    let raised = requests.iter().filter(below).map(|request| {
        let limit = match (recorded.get(&request.uuid), request.max_containers) {
            (Some(recorded), limit) if *recorded == limit => limit,
            (_, 0) => DEFAULT_MAX_CONTAINERS + 1,
            (_, limit) => limit.saturating_add(1),
        };
        (request.uuid.clone(), limit)
    });
    raised.collect()
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Raises the limits. Returns whether the container does not count for any of its requests.
    pub(super) async fn grant_extra_attempt(
        &self,
        container: &ContainerUuid,
        by: &AttemptToken,
    ) -> Result<bool, HolderError> {
        let requests = self.api.requests_of(container).await;
        let requests = requests.map_err(HolderError::Api)?;
        let recorded = self.recorded_limits(container).await?;
        let limits = raised(&requests, &recorded, self.max_evictions);
        if limits != recorded {
            self.record_limits(container, by, &limits).await?;
        }
        let is_raised = |request: &RequestAttempts| limits.contains_key(&request.uuid);
        let mut all_raised = requests.iter().all(is_raised);
        for request in &requests {
            let limit = limits.get(&request.uuid);
            let Some(limit) = limit.filter(|limit| **limit != request.max_containers) else {
                continue;
            };
            let request = &request.uuid;
            match self.api.set_max_containers(request, *limit).await {
                Ok(()) => {}
                // The request was deleted, or has ended.
                Err(error) if error.is_not_found() || error.is_refused() || error.is_denied() => {
                    tracing::warn!(
                        %container, %request, %error,
                        "an eviction counts as an attempt: the server does not raise container_count_max"
                    );
                    all_raised = false;
                }
                Err(error) => return Err(HolderError::Api(error)),
            }
        }
        Ok(all_raised)
    }

    /// The limits that an earlier call, or the container, wrote to the record.
    async fn recorded_limits(&self, container: &ContainerUuid) -> Result<Limits, HolderError> {
        let record = match self.api.record(None, container).await {
            Ok(ListedRecord::Parsed(record)) => record,
            Ok(ListedRecord::Malformed(_, why)) => return Err(HolderError::Unreadable(why)),
            Err(error) => return Err(HolderError::Api(error)),
        };
        let status = record.status.as_ref();
        let recorded = status.and_then(|status| status.extra.get(RETRY_LIMITS));
        let recorded = recorded.and_then(|limits| serde_json::from_value(limits.clone()).ok());
        Ok(recorded.unwrap_or_default())
    }

    async fn record_limits(
        &self,
        container: &ContainerUuid,
        by: &AttemptToken,
        limits: &Limits,
    ) -> Result<(), HolderError> {
        let change = json!({"runtime_status": {RETRY_LIMITS: limits}});
        let call = || self.api.update(Some(&by.token), container, change.clone());
        self.as_holder(container, by, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eviction_adds_one_container_until_there_were_many() {
        // containers so far, limit, limit in the record, evictions allowed, new limit
        for (containers, max_containers, recorded, max_evictions, expected) in [
            (1, 3, None, 10, Some(4)),
            (3, 3, None, 10, Some(4)),
            (10, 12, None, 10, Some(13)),
            (11, 13, None, 10, None),
            (1, 0, None, 10, Some(4)),
            (1, 1, None, 1, Some(2)),
            (1, 3, None, 0, None),
            (1, u32::MAX, None, 10, Some(u32::MAX)),
            // The answer was lost, before and after it took effect.
            (1, 3, Some(4), 10, Some(4)),
            (1, 4, Some(4), 10, Some(4)),
            // What a container invents raises nothing.
            (1, 3, Some(1000), 10, Some(4)),
            (11, 3, Some(1000), 10, None),
        ] {
            let request = RequestAttempts {
                uuid: ContainerRequestUuid::generate("zzzzz"),
                containers,
                max_containers,
            };
            let mut recorded: Limits = recorded
                .map(|limit| (request.uuid.clone(), limit))
                .into_iter()
                .collect();
            recorded.insert(ContainerRequestUuid::generate("zzzzz"), 1000);
            let limits = raised(std::slice::from_ref(&request), &recorded, max_evictions);
            assert_eq!(limits.get(&request.uuid).copied(), expected, "{request:?}");
            assert!(limits.len() <= 1, "no other request");
        }
    }
}
