//! A cache of the pool's capacity, refreshed by `condor_status` when it is old.

use std::time::Duration;

use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::cached_query::{CachedQuery, answer};
use dispatch_core::scheduler::command::Command;

use crate::query::slot_classes::{SLOT_ATTRIBUTES, SlotClasses, WHOLE_SLOTS};

/// The capacity of the pool, as the last answers of condor_status show it.
#[derive(Debug, Default)]
pub struct SlotClassCache {
    cached: CachedQuery<SlotClasses>,
    /// Whether machines join on demand, so that today's capacity is no limit.
    pool_grows: bool,
}

impl SlotClassCache {
    /// An empty cache.
    pub fn new(pool_grows: bool) -> Self {
        Self {
            pool_grows,
            cached: CachedQuery::default(),
        }
    }

    /// Whether a container could ever run in this pool. Without a known capacity every container
    /// could.
    pub fn fit(&self, needs: &ResourceRequest) -> Admission {
        if self.pool_grows {
            return Admission::Now;
        }
        self.cached.fit(|capacity| capacity.fit(needs))
    }

    /// Whether a job that one machine cannot run has another machine to try.
    pub fn has_other_machines(&self) -> bool {
        let machines = self.cached.read(SlotClasses::machines);
        self.pool_grows || machines.is_none_or(|machines| machines > 1)
    }

    /// Whether a container fits another machine than these.
    pub fn fits_beside(&self, needs: &ResourceRequest, machines: &[String]) -> bool {
        let fits = self.cached.read(|pool| pool.fits_beside(needs, machines));
        fits.unwrap_or(false)
    }

    /// Runs condor_status if the cached capacity is old.
    pub async fn refresh(&self, timeout: Duration) {
        let arguments = [
            "-json",
            "-attributes",
            SLOT_ATTRIBUTES,
            "-constraint",
            WHOLE_SLOTS,
        ];
        let command = Command::new("condor_status").args(arguments);
        self.refresh_by(command, timeout).await;
    }

    async fn refresh_by(&self, command: Command, timeout: Duration) {
        let query = answer(command, timeout, SlotClasses::parse);
        if let Err(reason) = self.cached.refresh(query).await {
            tracing::warn!(
                reason,
                "condor_status shows no slots; using the slots of the last hour, or none: then oversized containers are submitted too"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_no_slot_has_is_refused_unless_the_pool_grows() {
        let small = r#"[{"Machine": "n1", "Cpus": 1, "Memory": 1, "Disk": 1}]"#;
        for (grows, known, cpus, fits, others) in [
            (false, false, 9, true, true),
            (false, true, 1, true, false),
            (false, true, 9, false, false),
            (true, true, 9, true, true),
        ] {
            let pool = SlotClassCache::new(grows);
            if known {
                let command = Command::new("echo").args([small]);
                pool.refresh_by(command, Duration::from_secs(60)).await;
            }
            let needs = ResourceRequest {
                cpus,
                ..ResourceRequest::default()
            };
            let found = (
                pool.fit(&needs) == Admission::Now,
                pool.has_other_machines(),
            );
            assert_eq!(found, (fits, others), "{grows} {known} {cpus}");
        }
    }
}
