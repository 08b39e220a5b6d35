//! The seam to the API server: the trait [`Api`] with all calls of a dispatcher.
//!
//! Input: tokens, UUIDs and attributes. Output: records, tokens and errors of the server.
//! `client` implements the trait for a real server. The simulator has its own implementation.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

use arvados_client::api::{Bulk, Each, NameKind, NewLog, NewToken, WantedLock};
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid, Error, Token, TokenUuid, UserUuid};
use jiff::Timestamp;
use serde_json::Value;

use crate::act::crash_log::{CrashLogError, OtherLogs};
use crate::model::container_record::ListedRecord;
use crate::model::snapshot::{QueueCursor, RequestFacts};
use crate::observe::change_feed::ChangeFeed;
use crate::scheduler::submit_host::TrialFailure;

mod client;
pub mod error_hint;
pub(crate) mod listing;
pub mod log_writer;
mod request_facts;

/// How often a container request was tried, and may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestAttempts {
    /// UUID of the request.
    pub uuid: ContainerRequestUuid,
    /// `container_count`: its containers so far.
    pub containers: u32,
    /// `container_count_max`: its most containers. 0: the default of the server.
    pub max_containers: u32,
}

/// The calls a dispatcher makes to the API server. A call that takes a token is authorized by it.
/// All other calls use the dispatch token.
pub trait Api: Clone + Send + Sync + 'static {
    /// The current time, for the expiry of tokens.
    fn now(&self) -> Timestamp;

    /// Queued containers with a priority above 0, highest first, after `after`, without resource
    /// requests, but not those of the users in `except`. An empty page is the end of the queue. A
    /// page shorter than `limit` is not.
    fn queued(
        &self,
        after: Option<&QueueCursor>,
        except: &BTreeSet<UserUuid>,
        limit: u64,
    ) -> impl Future<Output = Result<Vec<ListedRecord>, Error>> + Send;

    /// The records of `uuids` that exist, with exit code and runtime status. A missing record does
    /// not prove that its container is gone.
    fn records(
        &self,
        uuids: &[ContainerUuid],
    ) -> impl Future<Output = Result<Vec<ListedRecord>, Error>> + Send;

    /// The records of `uuids` that exist, with resource requests.
    fn full_records(
        &self,
        uuids: &[ContainerUuid],
    ) -> impl Future<Output = Result<Vec<ListedRecord>, Error>> + Send;

    /// What the requests of `containers` say of them. One without a committed request with a
    /// priority above 0 is left out.
    fn request_facts(
        &self,
        containers: &[ContainerUuid],
    ) -> impl Future<Output = Result<BTreeMap<ContainerUuid, RequestFacts>, Error>> + Send;

    /// The names of users or projects, by uuid. One that does not exist is left out.
    fn names(
        &self,
        kind: NameKind,
        uuids: &BTreeSet<String>,
    ) -> impl Future<Output = Result<BTreeMap<String, String>, Error>> + Send;

    /// Every container changed at `since` or later, and all Locked or Running ones at priority 0.
    /// The latter are included because a priority change need not update `modified_at`. None: too
    /// many changes.
    fn changed(
        &self,
        since: Timestamp,
    ) -> impl Future<Output = Result<Option<Vec<ListedRecord>>, Error>> + Send;

    /// One record, read with the dispatch token or with the token `by`.
    fn record(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
    ) -> impl Future<Output = Result<ListedRecord, Error>> + Send;

    /// Whether the dispatch token may read every record. The server reports a record that it may
    /// not read as "not found".
    fn can_read_all(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Stores a few random bytes in the file storage, to see that it takes them. Nothing refers to
    /// them, so the storage removes them later.
    fn store_trial_block(&self) -> impl Future<Output = Result<(), TrialFailure>> + Send;

    /// The record of the dispatch token.
    fn own_token(&self) -> impl Future<Output = Result<Authorization, Error>> + Send;

    /// The server's limits for the bulk calls of this trait.
    fn bulk(&self) -> impl Future<Output = Result<Bulk, Error>> + Send;

    /// Creates tokens for the dispatcher's user, with one result per token. An error of the whole
    /// call means for each token what its own error would mean. A server that does not support
    /// several tokens in one call refuses such a call.
    fn mint(
        &self,
        new: &[NewToken],
    ) -> impl Future<Output = Result<Each<Authorization>, Error>> + Send;

    /// Changes containers from Queued to Locked, each for its token and only if the record still
    /// has its etag. Results and errors are as in [`mint`](Self::mint).
    fn lock(&self, wanted: &[WantedLock]) -> impl Future<Output = Result<Each<()>, Error>> + Send;

    /// Changes the expiry time of a token.
    fn renew(
        &self,
        token: &TokenUuid,
        end: Timestamp,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Revokes a token. A token that does not exist is a success.
    fn revoke(&self, token: &TokenUuid) -> impl Future<Output = Result<(), Error>> + Send;

    /// A page of the tokens of the dispatcher's user, newest first and without secrets, after the
    /// `skip` newest. An empty page is the end. A server may also list tokens of others.
    fn newest_tokens(
        &self,
        skip: u64,
    ) -> impl Future<Output = Result<Vec<Authorization>, Error>> + Send;

    /// A token with its secret. None: the dispatch token cannot see a token with this UUID. That
    /// does not prove that there is none.
    fn token(
        &self,
        token: &TokenUuid,
    ) -> impl Future<Output = Result<Option<Authorization>, Error>> + Send;

    /// All Locked or Running containers whose lock `holder` has.
    fn locked_by(
        &self,
        holder: &TokenUuid,
    ) -> impl Future<Output = Result<Vec<ContainerUuid>, Error>> + Send;

    /// Changes Locked to Queued, or to Cancelled after the last attempt the server allows.
    fn unlock(
        &self,
        by: &Token,
        uuid: &ContainerUuid,
    ) -> impl Future<Output = Result<ContainerState, Error>> + Send;

    /// Updates attributes of a container, all or none.
    fn update(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
        attributes: Value,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// The committed requests of a container that are not on hold.
    fn requests_of(
        &self,
        container: &ContainerUuid,
    ) -> impl Future<Output = Result<Vec<RequestAttempts>, Error>> + Send;

    /// Sets `container_count_max` of a committed request.
    fn set_max_containers(
        &self,
        request: &ContainerRequestUuid,
        max_containers: u32,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Saves `text` as a log file beside the others. Returns the portable data hash of the new log.
    fn save_log(
        &self,
        container: &ContainerUuid,
        others: OtherLogs<'_>,
        text: String,
    ) -> impl Future<Output = Result<String, CrashLogError>> + Send;

    /// Writes entries to the server's `logs` table. Results and errors are as in
    /// [`mint`](Self::mint).
    fn create_logs(
        &self,
        entries: &[NewLog],
    ) -> impl Future<Output = Result<Each<()>, Error>> + Send;

    /// Reports changes of containers to `feed`. Never returns.
    fn subscribe(&self, feed: Arc<ChangeFeed>) -> impl Future<Output = ()> + Send;
}
