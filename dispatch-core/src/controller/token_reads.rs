//! Finds the attempts of an earlier run, and tokens that nobody uses, beside the polls.
//!
//! Input: the schedule of the scans, and tokens to read by UUID. Output: attempt tokens for the
//! reconciler. Scans and reads are apart, because the list of tokens may be long and its server
//! slow. Only containers that were locked before wait for the first scan, and only the end of an
//! attempt waits for its token.

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

/// The read of a token: its container, its UUID, and the token if it was found.
type TokenRead = (
    ContainerUuid,
    TokenUuid,
    Result<Option<AttemptToken>, Error>,
);

/// The result of one round of reads.
pub(crate) struct TokenReply {
    /// The attempts of earlier runs that have a job directory, in the first round.
    left_over: Vec<(ContainerUuid, TokenUuid)>,
    /// The tokens that were read, until the server was away.
    read: Vec<TokenRead>,
}

/// The result of a scan.
pub(crate) struct TokenScan {
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

    async fn read_token(&self, container: ContainerUuid, token: TokenUuid) -> TokenRead {
        let read = self.token_or_read(&container, &token, None).await;
        (container, token, read)
    }
}

impl<A: Api, S: Scheduler> Controller<A, S> {
    /// Starts a scan and a round of reads, each if it is due and none is under way.
    pub(crate) fn start_token_reads(&mut self) {
        let now = Instant::now();
        // The first one comes after the first poll: a server may answer one of two at a time.
        let may_scan = self.poll_schedule.has_polled() && self.token_scan.is_none();
        if may_scan && self.token_scans.is_due(now) {
            self.reconciler.token_list_begins();
            let (runner, since) = (self.runner.clone(), self.token_scans.since(now));
            let scan = async move { runner.scan_tokens(since).await };
            self.token_scan = Some(tokio::spawn(scan));
        }
        if self.token_reads.is_some() {
            return;
        }
        let is_first = !std::mem::replace(&mut self.has_read_directories, true);
        let unread = self.reconciler.tokens_to_read(self.now(), READS_PER_ROUND);
        if !is_first && unread.is_empty() {
            return;
        }
        let runner = self.runner.clone();
        self.token_reads = Some(tokio::spawn(async move {
            let left_over = match is_first {
                true => runner.scheduler.attempts_with_directory().await,
                false => Vec::new(),
            };
            let reads = unread
                .into_iter()
                .map(|(container, token)| runner.read_token(container, token));
            let mut reads = stream::iter(reads).buffered(CONCURRENT_READS);
            let mut read = Vec::new();
            while let Some(one) = reads.next().await {
                // A server that answers may answer the next read.
                let is_away = matches!(&one.2, Err(error) if error.status().is_none());
                read.push(one);
                if is_away {
                    break;
                }
            }
            TokenReply { left_over, read }
        }));
    }

    /// Applies the result of a round of reads. Starts the next one at once if there is more to
    /// read. Returns whether a poll is to show what the tokens hold.
    pub(crate) fn on_token_reply(&mut self, reply: TokenReply) -> bool {
        self.has_found_tokens |= !reply.left_over.is_empty();
        self.reconciler.apply_left_over(reply.left_over);
        let mut hidden = 0;
        let now = self.now();
        for (container, token, read) in reply.read {
            let read = match read {
                Ok(read) => read,
                Err(error) => {
                    self.reconciler.token_read_failed(now, &container, &token);
                    tracing::warn!(%container, %error, event = "token_read_failed", "could not read the token of an attempt; a later poll tries again");
                    continue;
                }
            };
            let is_listed = read.as_ref().is_some_and(|read| read.expires_at.is_some());
            let is_shown = is_listed || (read.is_some() && self.runner.attempts.is_shared());
            self.has_found_tokens |= read.is_some();
            let is_hidden = self
                .reconciler
                .apply_read_token(now, container, token, read, is_shown);
            hidden += usize::from(is_hidden);
        }
        if hidden > 0 {
            tracing::warn!(
                event = "tokens_hidden",
                attempts = hidden,
                "the dispatch token cannot see the tokens of running attempts, because another user's dispatch token made them: their jobs continue, but their tokens are not renewed; use a dispatch token of that user until these jobs have ended"
            );
        }
        self.start_token_reads();
        // One poll is enough for many rounds.
        self.token_reads.is_none() && std::mem::take(&mut self.has_found_tokens)
    }

    /// Applies the result of a scan, and starts to read the tokens that it found.
    pub(crate) fn on_token_scan(&mut self, scan: TokenScan) {
        let now = Instant::now();
        match scan.list {
            Ok(list) => {
                let is_first = !self.token_scans.has_succeeded();
                if list.is_complete {
                    let (took, newest) = (scan.took, list.newest);
                    self.token_scans.succeeded(now, took, scan.since, newest);
                } else {
                    self.token_scans.failed(now, scan.took);
                    tracing::warn!(
                        event = "token_scan_failed",
                        "the API server's list of tokens repeats itself: orphaned tokens may be missing from it"
                    );
                }
                if is_first && list.is_complete {
                    let tokens = list.ours.len();
                    tracing::info!(
                        tokens,
                        "found attempt tokens of an earlier run that this dispatch token may see"
                    );
                }
                self.reconciler
                    .apply_token_list(list.ours, list.is_complete);
            }
            Err(error) => {
                self.token_scans.failed(now, scan.took);
                tracing::warn!(%error, event = "token_scan_failed", "could not list the attempt tokens; containers that were locked before are not started before this succeeds once");
            }
        }
        self.start_token_reads();
    }
}

/// A round of reads under way.
pub(crate) type TokenReads = Option<JoinHandle<TokenReply>>;
