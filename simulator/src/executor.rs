//! A simulated crunch-run: claims its container, starts its command once that is on record, and reports the end.

use std::time::Duration;

use arvados_client::records::ContainerState;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error, TokenUuid};
use serde_json::json;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::api::{SimApi, running};

/// How long an executor tries to record something before it gives up.
const PATIENCE: Duration = Duration::from_secs(3600);

/// The record is not its own any more, or never was.
struct NotOurs;

/// Runs one job of `attempt` until its end. `term` rings when it is asked to end.
pub async fn execute(api: SimApi, container: ContainerUuid, attempt: TokenUuid, term: &Notify) {
    let staging = api.world().get().upto(Duration::from_secs(20));
    let stillborn = {
        let mut world = api.world().get();
        let stillborn = world.faults.stillborn;
        world.happens(stillborn)
    };
    let claim = stubborn(|| api.executor_look(&attempt, &container)).await;
    if !matches!(claim, Ok(Some(ContainerState::Locked))) {
        return;
    }
    if timeout(staging, term.notified()).await.is_ok() || stillborn {
        return;
    }
    if begin(&api, &attempt, &container).await.is_err() {
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
            let tidying = api.world().get().upto(Duration::from_secs(20));
            sleep(tidying).await;
            json!({"state": "Cancelled", "runtime_status": {"error": "it was asked to end"}})
        }
    };
    let _ = stubborn(|| api.executor_update(&attempt, &container, end.clone())).await;
}

/// Locked → Running, and sure of it.
async fn begin(
    api: &SimApi,
    attempt: &TokenUuid,
    container: &ContainerUuid,
) -> Result<(), NotOurs> {
    let began = Instant::now();
    let mut refused = RefusalTimer::default();
    while began.elapsed() < PATIENCE {
        let asked = api.executor_update(attempt, container, running()).await;
        match asked {
            Ok(()) => return Ok(()),
            Err(error) if error.is_ambiguous() => {
                // It may be on record: only a look tells, and only while nothing else can make it so.
                let seen = stubborn(|| api.executor_look(attempt, container)).await?;
                match seen {
                    Some(ContainerState::Running) => return Ok(()),
                    Some(ContainerState::Locked) => {}
                    _ => return Err(NotOurs),
                }
            }
            Err(error) if is_final(&error, &mut refused) => return Err(NotOurs),
            Err(_) => {}
        }
        sleep(Duration::from_secs(2)).await;
    }
    Err(NotOurs)
}

/// A refusal of the token is believed after a minute.
fn is_final(error: &Error, refused: &mut RefusalTimer) -> bool {
    error.is_refused() || refused.has_failed(error, Instant::now().into_std())
}

/// Tries until there is an answer that counts.
async fn stubborn<T, F>(mut ask: impl FnMut() -> F) -> Result<T, NotOurs>
where
    F: Future<Output = Result<T, Error>>,
{
    let began = Instant::now();
    let mut refused = RefusalTimer::default();
    while began.elapsed() < PATIENCE {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(error) if is_final(&error, &mut refused) => return Err(NotOurs),
            Err(_) => sleep(Duration::from_secs(5)).await,
        }
    }
    Err(NotOurs)
}
