//! A simulated crunch-run: claims its container, records Running, starts the command, and records
//! the end.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::api::SimApi;
use crate::executor_calls::running;

/// Maximum time for which an executor repeats a call.
const RECORD_TIMEOUT: Duration = Duration::from_secs(3600);

/// The executor does not hold the container's lock, or has lost it.
struct ContainerLost;

/// Runs one job of `attempt` until its end. `term` is notified when the job is cancelled.
pub async fn execute(api: SimApi, container: ContainerUuid, attempt: TokenUuid, term: &Notify) {
    let staging = api.world().get().random_duration(Duration::from_secs(20));
    let executor_dies_early = {
        let mut world = api.world().get();
        let executor_dies_early = world.faults.executor_dies_early;
        world.draw(executor_dies_early)
    };
    let claim = retry_until_answered(|| api.executor_fetch(&attempt, &container)).await;
    if !matches!(claim, Ok(Some(ContainerState::Locked))) {
        return;
    }
    if timeout(staging, term.notified()).await.is_ok() || executor_dies_early {
        return;
    }
    // As crunch-run, which stores its log first.
    while api.world().get().storage_fault().is_some() {
        if timeout(Duration::from_secs(5), term.notified())
            .await
            .is_ok()
        {
            return;
        }
    }
    if record_running(&api, &attempt, &container).await.is_err() {
        return;
    }
    let work = {
        let mut world = api.world().get();
        world.start(&container);
        world
            .containers
            .get(&container)
            .map_or(Duration::ZERO, |r| r.work)
    };
    let end = match timeout(work, term.notified()).await {
        Err(_) => json!({"state": "Complete", "exit_code": 0}),
        Ok(()) => {
            let cleanup = api.world().get().random_duration(Duration::from_secs(20));
            sleep(cleanup).await;
            json!({"state": "Cancelled", "runtime_status": {"error": "it was asked to end"}})
        }
    };
    let _ = retry_until_answered(|| api.executor_update(&attempt, &container, end.clone())).await;
}

/// Records Running, and reads the record back after an unclear answer.
async fn record_running(
    api: &SimApi,
    attempt: &TokenUuid,
    container: &ContainerUuid,
) -> Result<(), ContainerLost> {
    let began = Instant::now();
    let mut refused = RefusalTimer::default();
    while began.elapsed() < RECORD_TIMEOUT {
        let updated = api.executor_update(attempt, container, running()).await;
        match updated {
            Ok(()) => return Ok(()),
            Err(error) if error.is_ambiguous() => {
                // Running may be on record: only reading the record shows it.
                let seen = retry_until_answered(|| api.executor_fetch(attempt, container)).await?;
                match seen {
                    Some(ContainerState::Running) => return Ok(()),
                    Some(ContainerState::Locked) => {}
                    _ => return Err(ContainerLost),
                }
            }
            Err(error) if is_final(&error, &mut refused) => return Err(ContainerLost),
            Err(_) => {}
        }
        sleep(Duration::from_secs(2)).await;
    }
    Err(ContainerLost)
}

/// Whether an error is final. A refused token is final after a minute.
fn is_final(error: &Error, refused: &mut RefusalTimer) -> bool {
    error.is_refused() || refused.record_failure(error, Instant::now().into_std())
}

/// Repeats a call until it has a final answer.
async fn retry_until_answered<T, F>(mut ask: impl FnMut() -> F) -> Result<T, ContainerLost>
where
    F: Future<Output = Result<T, Error>>,
{
    let began = Instant::now();
    let mut refused = RefusalTimer::default();
    while began.elapsed() < RECORD_TIMEOUT {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if is_final(&error, &mut refused) => return Err(ContainerLost),
            Err(_) => sleep(Duration::from_secs(5)).await,
        }
    }
    Err(ContainerLost)
}
