//! Containers of failed submissions, in groups that narrow down which one HTCondor rejects. Pure.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::scheduler::SubmitRequest;

/// Maximum number of containers that are remembered.
const MAX_SUSPECTS: usize = 5000;

/// Containers of submissions that failed for an unknown reason. HTCondor may reject one of them, so
/// the next submissions have half of them each.
#[derive(Debug, Default)]
pub struct SuspectGroups {
    groups: BTreeMap<ContainerUuid, u64>,
    last_group: u64,
}

impl SuspectGroups {
    /// Records the requests of one failed command, in two groups.
    pub fn record_failed(&mut self, orders: &[&SubmitRequest]) {
        if orders.len() < 2 {
            return;
        }
        // Some containers may never be submitted again.
        if self.groups.len() > MAX_SUSPECTS {
            self.groups.clear();
        }
        for half in orders.chunks(orders.len().div_ceil(2)) {
            self.last_group += 1;
            let containers = half.iter().map(|order| order.container.clone());
            self.groups
                .extend(containers.map(|container| (container, self.last_group)));
        }
    }

    /// Removes a container and returns its group.
    pub fn take_group(&mut self, container: &ContainerUuid) -> Option<u64> {
        self.groups.remove(container)
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::{Token, TokenUuid};
    use dispatch_core::model::resources::ResourceRequest;

    use super::*;

    #[test]
    fn what_failed_for_no_known_reason_goes_in_halves_next_time() {
        let order = || SubmitRequest {
            container: ContainerUuid::generate("zzzzz"),
            attempt: TokenUuid::generate("zzzzz"),
            credentials: Token::new("secret").into(),
            needs: ResourceRequest::default(),
            avoid: Vec::new(),
            owner: None,
        };
        let orders: Vec<SubmitRequest> = (0..5).map(|_| order()).collect();
        let all: Vec<&SubmitRequest> = orders.iter().collect();
        let mut suspects = SuspectGroups::default();
        suspects.record_failed(&all[..1]);
        suspects.record_failed(&all);
        let mut halves = |those: &[&SubmitRequest]| -> Vec<Option<u64>> {
            let take = |order: &&SubmitRequest| suspects.take_group(&order.container);
            those.iter().map(take).collect()
        };
        let (one, other) = (Some(1), Some(2));
        assert_eq!(halves(&all), [one, one, one, other, other]);
        assert_eq!(halves(&all), [None; 5], "only the next time");
    }
}
