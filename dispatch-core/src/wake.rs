//! What makes the next look come sooner. Nothing here decides anything.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::{Client, ContainerUuid};
use tokio::sync::Notify;

use crate::scheduler::Scheduler;

/// Wakes the loop when something happens to a container.
pub async fn follow_events(client: Client, wake: Arc<Notify>) {
    let mut wait = Duration::from_secs(1);
    loop {
        if let Ok(mut events) = client.events().await {
            wait = Duration::from_secs(1);
            wake.notify_one();
            while let Ok(event) = events.next().await {
                if event
                    .object_uuid
                    .is_some_and(|uuid| ContainerUuid::parse(&uuid).is_ok())
                {
                    wake.notify_one();
                }
            }
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(Duration::from_secs(60));
    }
}

/// Wakes the loop when a job may have ended.
pub async fn follow_jobs<S: Scheduler>(scheduler: Arc<S>, wake: Arc<Notify>) {
    loop {
        scheduler.wake().await;
        wake.notify_one();
    }
}
