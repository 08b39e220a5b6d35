//! Starts attempts: mints their tokens and locks their containers.
//!
//! Input: a batch of [`Start`]s. Output: an [`Outcome`] for each. A server that does not take
//! batches gets each container as a batch of its own.

use arvados_client::api::WantedLock;
use arvados_client::error::StatusCode;
use arvados_client::{ContainerUuid, Error};
use fail_points::fail_point;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};

use crate::act::attempt_tokens::MintError;
use crate::act::runner::TaskResults;
use crate::act::{TaskResult, TaskRunner};
use crate::api::Api;
use crate::model::attempt_token::AttemptToken;
use crate::model::container_record::ListedRecord;
use crate::model::decision::Decision;
use crate::model::outcome::Outcome;
use crate::model::task::Start;
use crate::scheduler::Scheduler;

/// Maximum number of concurrent calls for one batch that the server does not take as a whole.
const MAX_CONCURRENT_CALLS: usize = 8;

/// A lock to request.
struct LockRequest {
    container: ContainerUuid,
    etag: String,
    token: AttemptToken,
    /// Whether an earlier request with this token had no answer.
    is_repeated: bool,
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    /// Mints tokens for the containers without one, and locks all of them.
    pub(super) async fn start(&self, batch: Vec<Start>) -> TaskResults {
        let batch = match self.mint_and_lock(batch).await {
            Ok(results) => return results,
            Err(batch) => batch,
        };
        let each = batch.into_iter().map(|start| async {
            // Only a batch of several containers can be unsupported.
            let mut results = self.mint_and_lock(vec![start]).await.unwrap_or_default();
            for (_, result) in &mut results {
                result.feedback.bulk_unsupported = true;
            }
            results
        });
        let each: Vec<_> = each.collect();
        let results = stream::iter(each).buffered(MAX_CONCURRENT_CALLS);
        results.map(stream::iter).flatten().collect().await
    }

    /// Mints with one call, then locks. Returns the batch if the server does not take several
    /// tokens in one call.
    async fn mint_and_lock(&self, batch: Vec<Start>) -> Result<TaskResults, Vec<Start>> {
        let wanted: Vec<_> = batch
            .iter()
            .filter(|start| start.token.is_none())
            .map(|start| (&start.container, start.max_run_time))
            .collect();
        let minted = match self.attempts.mint(&wanted).await {
            Ok(minted) if minted.len() < wanted.len() && wanted.len() > 1 => return Err(batch),
            Err(error) if is_unsupported_call(&error) && wanted.len() > 1 => return Err(batch),
            minted => minted,
        };
        let (mut minted, failure) = match minted {
            Ok(minted) => (minted.into_iter(), MintError::NoAnswer),
            Err(error) => (Vec::new().into_iter(), MintError::Api(error)),
        };
        let mut results = Vec::new();
        let mut requests = Vec::with_capacity(batch.len());
        for start in batch {
            let Start {
                container,
                etag,
                token,
                ..
            } = start;
            let is_repeated = token.is_some();
            let token = match token {
                Some(token) => Ok(token),
                None => match minted.next() {
                    Some(Ok(token)) => Ok(token),
                    Some(Err(error)) => Err(mint_failed(&container, &error)),
                    None => Err(mint_failed(&container, &failure)),
                },
            };
            match token {
                Ok(token) if !is_repeated && self.stopping.is_cancelled() => {
                    let result = TaskResult::new(self.give_up(&container, token).await, vec![]);
                    results.push((container, result));
                }
                Ok(token) => requests.push(LockRequest {
                    container,
                    etag,
                    token,
                    is_repeated,
                }),
                Err(result) => results.push((container, result)),
            }
        }
        if !requests.is_empty() {
            let records = requests
                .iter()
                .map(|one| self.record_lock(&one.container, &one.token));
            join_all(records).await;
            results.extend(self.lock(requests).await);
        }
        Ok(results)
    }

    /// Locks with one call. Requests that the server does not take in one call, or leaves without
    /// an answer, are repeated one by one.
    async fn lock(&self, requests: Vec<LockRequest>) -> TaskResults {
        let is_batch = requests.len() > 1;
        let locked = self.request_locks(&requests).await;
        let (mut answers, failure) = match locked {
            Ok(answers) => (answers.into_iter(), None),
            Err(error) => (Vec::new().into_iter(), Some(error)),
        };
        let failure = failure.as_ref();
        let is_unsupported = is_batch && failure.is_some_and(is_unsupported_call);
        let concluded = requests.into_iter().map(|mut request| {
            let answer = answers.next();
            async move {
                let container = request.container.clone();
                let result = match (&answer, failure) {
                    _ if is_unsupported => self.lock_alone(request).await,
                    (Some(answer), _) => self.resolve_lock(request, answer.as_ref().copied()).await,
                    (None, Some(error)) => self.resolve_lock(request, Err(error)).await,
                    (None, None) => {
                        request.is_repeated = true;
                        self.lock_alone(request).await
                    }
                };
                (container, result)
            }
        });
        let concluded: Vec<_> = concluded.collect();
        let results = stream::iter(concluded).buffered(MAX_CONCURRENT_CALLS);
        results.collect().await
    }

    async fn lock_alone(&self, request: LockRequest) -> TaskResult {
        match self.request_locks(std::slice::from_ref(&request)).await {
            Ok(answers) => match answers.first() {
                Some(answer) => self.resolve_lock(request, answer.as_ref().copied()).await,
                // The record shows later whether the lock was granted.
                None => TaskResult::new(Outcome::LockUnknown(request.token), vec![]),
            },
            Err(error) => self.resolve_lock(request, Err(&error)).await,
        }
    }

    async fn request_locks(
        &self,
        requests: &[LockRequest],
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let wanted = requests.iter().map(|request| WantedLock {
            by: request.token.token.clone(),
            uuid: request.container.clone(),
            etag: request.etag.clone(),
        });
        let wanted: Vec<WantedLock> = wanted.collect();
        let locked = self.api.lock(&wanted).await;
        fail_point("dispatcher.after-lock");
        locked
    }

    /// Interprets the answer to a lock request.
    async fn resolve_lock(&self, request: LockRequest, answer: Result<(), &Error>) -> TaskResult {
        let LockRequest {
            container,
            token,
            is_repeated,
            ..
        } = request;
        let Err(error) = answer else {
            return locked(container, token);
        };
        // This request, or an earlier one with this token, may have taken effect or may still do
        // so. The record shows the holder.
        let is_unknown = is_repeated || error.is_ambiguous();
        if is_unknown
            && let Ok(ListedRecord::Parsed(record)) =
                self.api.record(Some(&token.token), &container).await
            && record.locked_by.as_ref() == Some(&token.uuid)
        {
            return locked(container, token);
        }
        let failed = Decision::LockFailed {
            container: container.clone(),
            error: error.to_string(),
            lost: error.is_refused() || error.is_stale(),
        };
        let outcome = match is_unknown {
            // Only this token can undo a lost request that takes effect later, so it must stay
            // valid.
            true => Outcome::LockUnknown(token),
            false => self.give_up(&container, token).await,
        };
        TaskResult::new(outcome, vec![failed]).with_feedback(error)
    }

    /// Revokes the token of an attempt that certainly does not hold the lock.
    async fn give_up(&self, container: &ContainerUuid, token: AttemptToken) -> Outcome {
        self.forget_lock(container).await;
        match self.attempts.revoke(&token.uuid).await {
            Ok(()) => Outcome::NotLocked,
            Err(_) => Outcome::NotLockedTokenLive(token),
        }
    }
}

fn locked(container: ContainerUuid, token: AttemptToken) -> TaskResult {
    let event = Decision::DecidedToRun {
        container,
        attempt: token.uuid.clone(),
    };
    TaskResult::new(Outcome::Locked(token), vec![event])
}

fn mint_failed(container: &ContainerUuid, error: &MintError) -> TaskResult {
    let outcome = match error {
        MintError::NotAllowed(_) => Outcome::MintDenied,
        MintError::Api(_) | MintError::NoAnswer => Outcome::NotLocked,
    };
    let failed = Decision::LockFailed {
        container: container.clone(),
        error: error.to_string(),
        lost: false,
    };
    let result = TaskResult::new(outcome, vec![failed]);
    match error {
        MintError::Api(error) => result.with_feedback(error),
        MintError::NotAllowed(_) | MintError::NoAnswer => result,
    }
}

/// Whether the server permanently refused the call itself: it does not support the call, or not for
/// this token.
pub fn is_unsupported_call(error: &Error) -> bool {
    error.status().is_some_and(|status| {
        status.is_client_error()
            && status != StatusCode::TOO_MANY_REQUESTS
            && status != StatusCode::REQUEST_TIMEOUT
    })
}
