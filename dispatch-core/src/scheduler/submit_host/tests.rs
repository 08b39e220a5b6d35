//! Tests of the trials of the submit host and of the file storage.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

/// Attempts that find no storage wait, and report nothing.
#[tokio::test(start_paused = true)]
async fn storage_is_tried_before_starts_unless_something_was_stored_lately() {
    let trials = Arc::new(AtomicUsize::new(0));
    let counted = trials.clone();
    let storage = Precondition::file_storage(None, move || {
        let number = counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if number < 2 {
                Ok(())
            } else {
                Err("away".to_owned().into())
            }
        }
    });
    let pass = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let count = || trials.load(Ordering::Relaxed);
    storage.check_if_due(false).await;
    assert_eq!(count(), 0, "nothing waits");
    storage.check_if_due(true).await;
    storage.check_if_due(true).await;
    assert_eq!(count(), 1);
    pass(15).await;
    storage.submission_sent();
    pass(15).await;
    storage.check_if_due(true).await;
    assert_eq!(count(), 1, "an attempt stored its results");
    pass(5).await;
    storage.check_if_due(true).await;
    assert_eq!((count(), storage.fault()), (2, None));
    pass(20).await;
    storage.check_if_due(true).await;
    assert_eq!(count(), 3);
    assert!(storage.fault().unwrap().contains("away"));
    // The end of a fault is looked for whether or not something waits.
    pass(5).await;
    storage.check_if_due(false).await;
    assert_eq!(count(), 4);
}

/// Otherwise a busy site would never have a trial that can be believed.
#[tokio::test(start_paused = true)]
async fn storage_is_tried_beside_attempts_until_a_trial_has_succeeded() {
    let storage = Precondition::file_storage(None, || async { Err("away".to_owned().into()) });
    for _ in 0..3 {
        storage.check_if_due(true).await;
        let tried = storage.state.lock().tried;
        tokio::time::sleep(Duration::from_secs(61)).await;
        storage.submission_sent();
        storage.check_if_due(true).await;
        assert_ne!(storage.state.lock().tried, tried);
    }
}

/// Everything is restarted after a power cut, and Keep is the last to come back.
#[tokio::test(start_paused = true)]
async fn a_restart_forgets_no_fault_of_storage_that_was_reached_before() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("storage-reached");
    let start = |is_away: bool| {
        Precondition::file_storage(Some(file.clone()), move || async move {
            match is_away {
                true => Err("away".to_owned().into()),
                false => Ok(()),
            }
        })
    };
    for (is_away, is_believed) in [(true, false), (false, false), (true, true)] {
        let storage = start(is_away);
        storage.check_if_due(true).await;
        assert_eq!(storage.fault().is_some(), is_believed, "{is_away}");
    }
}

/// What is started while the storage hangs only waits in its job.
#[tokio::test(start_paused = true)]
async fn nothing_is_started_on_old_evidence_while_a_trial_goes_on() {
    let trials = AtomicUsize::new(0);
    let storage = Precondition::file_storage(None, move || {
        let is_first = trials.fetch_add(1, Ordering::Relaxed) == 0;
        async move {
            match is_first {
                true => Ok(()),
                false => std::future::pending().await,
            }
        }
    });
    storage.check_if_due(true).await;
    assert_eq!(storage.fault(), None);
    tokio::time::sleep(EVIDENCE_LASTS).await;
    storage.check_if_due(true).await;
    assert_eq!(storage.fault().unwrap(), "Keep has not answered yet");
    let checked = storage.check_if_due(true);
    tokio::pin!(checked);
    assert!(futures_util::poll!(&mut checked).is_pending());
    assert!(storage.is_awaited(), "the next check waits for the trial");
    checked.await;
    storage.submission_sent();
    assert_eq!(storage.fault(), None, "an attempt stored its results");
    tokio::time::sleep(TRIAL_TIMEOUT).await;
    storage.check_if_due(true).await;
    assert!(storage.fault().unwrap().contains("takes no data"));
    assert!(!storage.is_awaited(), "the fault is known");
}

#[tokio::test(start_paused = true)]
async fn a_slow_trial_makes_no_evidence_older() {
    let seconds = Duration::from_secs;
    let storage = Precondition::file_storage(None, move || async move {
        tokio::time::sleep(seconds(5)).await;
        Ok(())
    });
    storage.check_if_due(true).await;
    tokio::time::sleep(seconds(1)).await;
    storage.submission_sent();
    let stored = storage.state.lock().succeeded;
    tokio::time::sleep(seconds(3)).await;
    storage.check_if_due(true).await;
    let state = storage.state.lock();
    assert!(!state.is_trying);
    assert_eq!(state.succeeded, stored);
}

/// Also after a restart while the storage hangs: what is started then only waits in its job.
#[tokio::test(start_paused = true)]
async fn nothing_is_started_before_the_first_trial_has_ended() {
    let storage = Precondition::file_storage(None, std::future::pending::<TrialResult>);
    assert_eq!(storage.fault(), None);
    storage.check_if_due(true).await;
    let fault = storage.fault();
    assert!(fault.unwrap().contains("Keep"), "the trial goes on");
    tokio::time::sleep(TRIAL_TIMEOUT).await;
    storage.check_if_due(true).await;
    assert_eq!(
        storage.fault(),
        None,
        "the nodes may reach what this host never has"
    );
}
