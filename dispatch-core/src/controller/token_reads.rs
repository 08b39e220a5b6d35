//! Finds the attempts of an earlier run, and tokens that nobody uses, beside the polls.
//!
//! Input: the schedule of the scans, and tokens to read by UUID. Output: attempt tokens for the
//! reconciler. Nothing waits for this except retries of containers that were locked before: the
//! list of tokens may be long, and its server slow.

use std::time::Duration;

use arvados_client::{ContainerUuid, Error, TokenUuid};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::act::TaskRunner;
use crate::act::attempt_tokens::TokenList;
use crate::api::Api;
use crate::controller::Controller;
use crate::model::attempt_token::AttemptToken;
use crate::scheduler::Scheduler;

/// Maximum number of tokens that are read in one round.
const READS_PER_ROUND: usize = 100;
/// Maximum number of reads at once.
const CONCURRENT_READS: usize = 4;

/// A token that was read: its container, its UUID, and the token if the dispatch token can see it.
type TokenRead = (ContainerUuid, TokenUuid, Option<AttemptToken>);

/// The result of one round.
pub(crate) struct TokenReply {
    /// The attempts of earlier runs that have a job directory, in the first round.
    left_over: Vec<(ContainerUuid, TokenUuid)>,
    scan: Option<TokenScan>,
    /// The tokens that were read, until the first error.
    read: Vec<Result<TokenRead, Error>>,
}

/// The result of a scan.
struct TokenScan {
    /// From which creation time on tokens were listed.
    since: Option<Timestamp>,
    list: Result<TokenList, Error>,
    took: Duration,
}

impl<A: Api, S: Scheduler> TaskRunner<A, S> {
    async fn scan_tokens(&self, since: Option<Timestamp>) -> TokenScan {
        let began = Instant::now();
        TokenScan {
            since,
            list: self.attempts.list(since).await,
            took: began.elapsed(),
        }
    }

    async fn read_token(
        &self,
        container: ContainerUuid,
        token: TokenUuid,
    ) -> Result<TokenRead, Error> {
        let read = self.token_or_read(&container, &token, None).await?;
        Ok((container, token, read))
    }
}

impl<A: Api, S: Scheduler> Controller<A, S> {
    /// Starts a round, unless one is under way or nothing is due.
    pub(crate) fn start_token_reads(&mut self) {
        if self.token_reads.is_some() {
            return;
        }
        let now = Instant::now();
        let scan_due = self.token_scans.is_due(now);
        let since = self.token_scans.since(now);
        let unread = self.reconciler.tokens_to_read(READS_PER_ROUND);
        if !scan_due && unread.is_empty() {
            return;
        }
        let runner = self.runner.clone();
        let is_first = !self.token_scans.has_begun();
        self.token_reads = Some(tokio::spawn(async move {
            let left_over = match is_first {
                true => runner.scheduler.attempts_with_directory().await,
                false => Vec::new(),
            };
            let scan = match scan_due {
                true => Some(runner.scan_tokens(since).await),
                false => None,
            };
            let reads = unread
                .into_iter()
                .map(|(container, token)| runner.read_token(container, token));
            let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
            let mut read = Vec::new();
            while let Some(one) = reads.next().await {
                let is_error = one.is_err();
                read.push(one);
                if is_error {
                    break;
                }
            }
            TokenReply {
                left_over,
                scan,
                read,
            }
        }));
    }

    /// Applies the result of a round. Starts the next one at once if there is more to read. Returns
    /// whether a poll is to show what the tokens hold.
    pub(crate) fn on_token_reply(&mut self, reply: TokenReply) -> bool {
        self.has_found_tokens |= !reply.left_over.is_empty();
        self.reconciler.apply_left_over(reply.left_over);
        if let Some(scan) = reply.scan {
            self.on_token_scan(scan);
        }
        let (mut hidden, mut has_failed) = (0, false);
        for one in reply.read {
            match one {
                Ok((container, token, read)) => {
                    let is_read = read.is_some();
                    let is_shown = read.as_ref().is_some_and(|read| read.expires_at.is_some());
                    let is_hidden = !is_shown && !self.runner.attempts.is_shared();
                    let now = self.now();
                    let is_attempt = self
                        .reconciler
                        .apply_read_token(now, container, token, read);
                    hidden += usize::from(is_attempt && is_hidden);
                    self.has_found_tokens |= is_read && !is_attempt;
                }
                Err(error) => {
                    has_failed = true;
                    tracing::warn!(%error, event = "token_read_failed", "could not read the token of an attempt; a later poll tries again");
                }
            }
        }
        if hidden > 0 {
            tracing::warn!(
                event = "tokens_hidden",
                attempts = hidden,
                "the dispatch token cannot see the tokens of running attempts, because another user's dispatch token made them: their jobs continue, but their tokens are not renewed; use a dispatch token of that user until these jobs have ended"
            );
        }
        if !has_failed {
            self.start_token_reads();
        }
        // One poll is enough for many rounds.
        self.token_reads.is_none() && std::mem::take(&mut self.has_found_tokens)
    }

    fn on_token_scan(&mut self, scan: TokenScan) {
        let now = Instant::now();
        match scan.list {
            Ok(list) => {
                let is_first = !self.token_scans.has_succeeded();
                match list.is_complete {
                    true => {
                        let (took, newest) = (scan.took, list.newest);
                        self.token_scans.succeeded(now, took, scan.since, newest);
                    }
                    false => {
                        self.token_scans.failed(now, scan.took);
                        tracing::warn!(
                            event = "token_scan_failed",
                            "the API server's list of tokens repeats itself: orphaned tokens may be missing from it"
                        );
                    }
                }
                if is_first && list.is_complete {
                    let tokens = list.ours.len();
                    tracing::info!(tokens, "found attempt tokens of an earlier run");
                }
                self.reconciler
                    .apply_token_list(list.ours, list.is_complete);
            }
            Err(error) => {
                self.token_scans.failed(now, scan.took);
                tracing::warn!(%error, event = "token_scan_failed", "could not list the attempt tokens; containers that were locked before are not started before this succeeds once");
            }
        }
    }
}

/// A round under way.
pub(crate) type TokenReads = Option<JoinHandle<TokenReply>>;
