//! The beginning of an attempt: a token made for it, and the lock had with that token. One by one, or many at once
//! where the server takes many; what an answer means, or the lack of one, is the same for both.

use arvados_client::api::WantedLock;
use arvados_client::error::StatusCode;
use arvados_client::{ContainerUuid, Error};
use fail_points::fail_point;
use futures_util::{StreamExt, stream};

use super::{Hands, Outcome, Report, Start};
use crate::api::{Api, Row};
use crate::attempts::{AttemptToken, MintError};
use crate::events::Event;
use crate::needs::Needs;
use crate::scheduler::Scheduler;

/// Calls at once for a batch whose containers must be asked about one by one.
const ABREAST: usize = 8;

impl<A: Api, S: Scheduler> Hands<A, S> {
    pub(super) async fn start(
        &self,
        container: ContainerUuid,
        etag: &str,
        needs: &Needs,
        earlier: Option<AttemptToken>,
    ) -> Report {
        let again = earlier.is_some();
        let token = match earlier {
            Some(token) => Ok(token),
            None => self.attempts.mint(&container, needs.max_run_time).await,
        };
        match token {
            Ok(token) => self.lock(container, etag, token, again).await,
            Err(error) => not_minted(container, &error),
        }
    }

    /// The same for many, none of which has a token yet.
    pub(super) async fn start_all(&self, batch: Vec<Start>) -> Vec<(ContainerUuid, Report)> {
        let wanted: Vec<_> = batch
            .iter()
            .map(|start| (&start.container, start.max_run_time))
            .collect();
        let minted = match self.attempts.mint_all(&wanted).await {
            Ok(minted) if minted.len() == batch.len() => minted,
            Ok(_) => return self.one_by_one(batch).await,
            Err(error) if is_no_such_call(&error) => return self.one_by_one(batch).await,
            Err(error) => {
                let error = MintError::Api(error);
                let failed = batch.into_iter().map(|start| {
                    let container = start.container;
                    (container.clone(), not_minted(container, &error))
                });
                return failed.collect();
            }
        };
        let mut reports = Vec::with_capacity(batch.len());
        let mut locks = Vec::with_capacity(batch.len());
        for (start, minted) in batch.into_iter().zip(minted) {
            match minted {
                Ok(token) => locks.push((start, token)),
                Err(error) => {
                    let container = start.container;
                    reports.push((container.clone(), not_minted(container, &error)));
                }
            }
        }
        reports.extend(self.lock_all(locks).await);
        reports
    }

    /// The single calls, for a batch that the server does not take.
    async fn one_by_one(&self, batch: Vec<Start>) -> Vec<(ContainerUuid, Report)> {
        let started = batch.into_iter().map(|start| async move {
            let container = start.container;
            let minted = self.attempts.mint(&container, start.max_run_time).await;
            let mut report = match minted {
                Ok(token) => {
                    self.lock(container.clone(), &start.etag, token, false)
                        .await
                }
                Err(error) => not_minted(container.clone(), &error),
            };
            report.hints.one_by_one = true;
            (container, report)
        });
        stream::iter(started).buffered(ABREAST).collect().await
    }

    async fn lock_all(&self, wanted: Vec<(Start, AttemptToken)>) -> Vec<(ContainerUuid, Report)> {
        let locks: Vec<WantedLock> = wanted
            .iter()
            .map(|(start, token)| WantedLock {
                by: token.token.clone(),
                uuid: start.container.clone(),
                etag: start.etag.clone(),
            })
            .collect();
        let locked = self.api.lock_all(&locks).await;
        fail_point("dispatcher.after-lock");
        let (mut each, whole) = match locked {
            Ok(each) => (each.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        let whole = whole.as_ref();
        let singly = whole.is_some_and(is_no_such_call);
        let asked = wanted.into_iter().map(|(start, token)| {
            let answer = each.next();
            async move {
                let Start {
                    container, etag, ..
                } = start;
                let name = container.clone();
                let answer = match (&answer, whole) {
                    (Some(Ok(())), _) => Ok(()),
                    (Some(Err(error)), _) | (None, Some(error)) => Err(error),
                    // Asked for, and not answered.
                    (None, None) => return (name, self.lock(container, &etag, token, true).await),
                };
                let report = match singly {
                    true => self.lock(container, &etag, token, false).await,
                    false => self.asked_for_lock(container, token, false, answer).await,
                };
                (name, report)
            }
        });
        let asked: Vec<_> = asked.collect();
        stream::iter(asked).buffered(ABREAST).collect().await
    }

    async fn lock(
        &self,
        container: ContainerUuid,
        etag: &str,
        token: AttemptToken,
        again: bool,
    ) -> Report {
        let locked = self.api.lock(&token.token, &container, etag).await;
        fail_point("dispatcher.after-lock");
        let locked = locked.as_ref().copied();
        self.asked_for_lock(container, token, again, locked).await
    }

    /// What the answer to a request for a lock means. `again`: an earlier one with this token was not answered.
    async fn asked_for_lock(
        &self,
        container: ContainerUuid,
        token: AttemptToken,
        again: bool,
        locked: Result<(), &Error>,
    ) -> Report {
        // This request, or an earlier one with the same token, may have taken effect, or may still: the record tells.
        let unclear = again || locked.is_err_and(Error::is_ambiguous);
        let mut locked = locked;
        if locked.is_err()
            && unclear
            && let Ok(Row::Container(record)) =
                self.api.record(Some(&token.token), &container).await
            && record.locked_by.as_ref() == Some(&token.uuid)
        {
            locked = Ok(());
        }
        let error = match locked {
            Ok(()) => {
                let event = Event::DecidedToRun {
                    container,
                    attempt: token.uuid.clone(),
                };
                return Report::new(Outcome::Locked(token), vec![event]);
            }
            Err(error) => error,
        };
        let told = Event::LockFailed {
            container,
            error: error.to_string(),
            lost: error.is_refused() || error.is_stale(),
        };
        let outcome = match unclear {
            // Should a lost request take effect after all, only this token can undo it: it must live until then.
            true => Outcome::LockUnclear(token),
            false => match self.attempts.end(&token.uuid).await {
                Ok(()) => Outcome::NotLocked,
                Err(_) => Outcome::NotLockedWith(token),
            },
        };
        Report::new(outcome, vec![told]).after(error)
    }
}

fn not_minted(container: ContainerUuid, error: &MintError) -> Report {
    let outcome = match error {
        MintError::NotAllowed(_) => Outcome::MayNotMint,
        MintError::Api(_) => Outcome::NotLocked,
    };
    let told = Event::LockFailed {
        container,
        error: error.to_string(),
        lost: false,
    };
    let report = Report::new(outcome, vec![told]);
    match error {
        MintError::Api(error) => report.after(error),
        MintError::NotAllowed(_) => report,
    }
}

/// The server refused the call itself, for certain and not for now: it has it no more, or not for this token.
pub fn is_no_such_call(error: &Error) -> bool {
    error.status().is_some_and(|status| {
        status.is_client_error()
            && status != StatusCode::TOO_MANY_REQUESTS
            && status != StatusCode::REQUEST_TIMEOUT
    })
}
