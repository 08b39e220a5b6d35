//! The seam to the API server: what a dispatcher asks of it, as verbs. [`Client`] is the real server's; the
//! simulator has another.

use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::api::{Bulk, Each, NewLog, NewToken, WantedLock};
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::records::{Authorization, Container, ContainerState};
use arvados_client::{Client, ContainerUuid, Error, Token, TokenUuid};
use jiff::Timestamp;
use serde_json::Value;

use crate::last_log::{self, LastLogError};
use crate::news::{News, news};

mod listing;
mod record;

pub(crate) use listing::row;
use listing::{behind, named, rows};
pub use record::{Record, Row, UNDELIVERED_SINCE, WARNING_BEFORE, WARNING_DETAIL_BEFORE};

/// Columns of the queue: what may change.
const QUEUE: [&str; 6] = [
    "uuid",
    "state",
    "priority",
    "locked_by_uuid",
    "created_at",
    "modified_at",
];
/// Columns of containers that are followed: also how they ended.
const FOLLOWED: [&str; 8] = [
    "uuid",
    "state",
    "priority",
    "locked_by_uuid",
    "created_at",
    "modified_at",
    "exit_code",
    "runtime_status",
];
/// Columns that also tell what a container needs. Mounts may be any size: each is read once.
const WHOLE: [&str; 10] = [
    "uuid",
    "state",
    "priority",
    "locked_by_uuid",
    "runtime_constraints",
    "scheduling_parameters",
    "mounts",
    "container_image",
    "created_at",
    "modified_at",
];
/// How long calls of a look are repeated. The next look asks again; and until then a server that is away is told of.
const LOOK: Duration = Duration::from_secs(10);
/// A connection that lasts so long is one.
const STEADY: Duration = Duration::from_secs(60);
/// Events that may tell of a container that is new, or has changed.
const CHANGES: [&str; 3] = ["create", "update", "delete"];
/// Records a page of changes has at most; the server may give fewer.
const PAGE: u64 = 1000;
/// Changes are read in so many pages at most; more than that are better had by asking for everything.
const PAGES: usize = 20;

/// A place in the queue: behind this container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Its priority.
    pub priority: i64,
    /// Its name.
    pub uuid: ContainerUuid,
}

/// What a dispatcher asks of the API server. Where a call names a token it is made as that token, else as the
/// dispatcher.
pub trait Api: Clone + Send + Sync + 'static {
    /// The time by which tokens end.
    fn now(&self) -> Timestamp;

    /// Queued containers with a priority above 0, highest first, behind `after`, without what they need. None at all is the end of the queue;
    /// fewer than `limit` is not.
    fn queued(
        &self,
        after: Option<&Place>,
        limit: u64,
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// The records of these names, as many as there are, with how they ended; fewer is no proof that one is gone.
    fn records(
        &self,
        uuids: &[ContainerUuid],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// The records of these names, as many as there are, with what they need.
    fn whole_records(
        &self,
        uuids: &[ContainerUuid],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// Every container whose record changed at `since` or later, and those that are not Queued at priority 0 (a change
    /// of priority need not show in `modified_at`). None: too many.
    fn changed(
        &self,
        since: Timestamp,
    ) -> impl Future<Output = Result<Option<Vec<Row>>, Error>> + Send;

    /// One record, as the dispatcher or as an attempt.
    fn record(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
    ) -> impl Future<Output = Result<Row, Error>> + Send;

    /// Whether the dispatcher may see every record: to one that may not, a record it may not see is "not found".
    fn sees_all(&self) -> impl Future<Output = Result<bool, Error>> + Send;

    /// The dispatcher's own token.
    fn own_token(&self) -> impl Future<Output = Result<Authorization, Error>> + Send;

    /// A new token for the dispatcher's user.
    fn mint(&self, new: &NewToken) -> impl Future<Output = Result<Authorization, Error>> + Send;

    /// How many the server takes in one call of those below that are for many.
    fn bulk(&self) -> impl Future<Output = Result<Bulk, Error>> + Send;

    /// [`mint`](Self::mint) of many, each answered by itself. An error of the call as a whole says of each what that of
    /// a single call would.
    fn mint_all(
        &self,
        new: &[NewToken],
    ) -> impl Future<Output = Result<Each<Authorization>, Error>> + Send;

    /// [`lock`](Self::lock) of many, as `mint_all`.
    fn lock_all(
        &self,
        wanted: &[WantedLock],
    ) -> impl Future<Output = Result<Each<()>, Error>> + Send;

    /// Moves a token's end.
    fn renew(
        &self,
        token: &TokenUuid,
        end: Timestamp,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Ends a token. One that is gone is success.
    fn revoke(&self, token: &TokenUuid) -> impl Future<Output = Result<(), Error>> + Send;

    /// Every token of the dispatcher's user.
    fn tokens(&self) -> impl Future<Output = Result<Vec<Authorization>, Error>> + Send;

    /// Every container that `holder` holds.
    fn held_by(
        &self,
        holder: &TokenUuid,
    ) -> impl Future<Output = Result<Vec<ContainerUuid>, Error>> + Send;

    /// Queued → Locked for `by`, if the record is still the one with this etag.
    fn lock(
        &self,
        by: &Token,
        uuid: &ContainerUuid,
        etag: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Locked → Queued, or Cancelled if that was the last attempt the server allows.
    fn unlock(
        &self,
        by: &Token,
        uuid: &ContainerUuid,
    ) -> impl Future<Output = Result<ContainerState, Error>> + Send;

    /// Changes attributes, all or none.
    fn update(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
        attributes: Value,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Saves `text` as a file, on request beside those of the log that was saved last; the new log's name.
    fn save_log(
        &self,
        container: &ContainerUuid,
        beside_earlier: bool,
        text: String,
    ) -> impl Future<Output = Result<String, LastLogError>> + Send;

    /// Writes an entry to the server's `logs`.
    fn note(&self, entry: &NewLog) -> impl Future<Output = Result<(), Error>> + Send;

    /// [`note`](Self::note) of many, each answered by itself.
    fn note_all(&self, entries: &[NewLog]) -> impl Future<Output = Result<Each<()>, Error>> + Send;

    /// Tells what happens to containers. Never ends.
    fn follow(&self, news: Arc<News>) -> impl Future<Output = ()> + Send;
}

impl Api for Client {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn queued(&self, after: Option<&Place>, limit: u64) -> Result<Vec<Row>, Error> {
        let queue = Query::new()
            .filter("state", "=", "Queued")
            .filter("priority", ">", 0)
            .select(&QUEUE)
            .limit(limit);
        let after = after.map(|place| (place.priority, &place.uuid));
        let client = self.with_retry_budget(LOOK);
        behind(&client, queue, ("priority", "<", "priority desc"), after).await
    }

    async fn records(&self, uuids: &[ContainerUuid]) -> Result<Vec<Row>, Error> {
        named(self, uuids, &FOLLOWED).await
    }

    async fn whole_records(&self, uuids: &[ContainerUuid]) -> Result<Vec<Row>, Error> {
        named(self, uuids, &WHOLE).await
    }

    async fn changed(&self, since: Timestamp) -> Result<Option<Vec<Row>>, Error> {
        let client = self.with_retry_budget(LOOK);
        let held = Query::new()
            .filter("state", "in", ["Locked", "Running"])
            .filter("priority", "=", 0)
            .order("uuid asc")
            .select(&FOLLOWED)
            .limit(PAGE);
        let mut all = rows(&client, held).await?;
        if all.len() as u64 >= PAGE {
            return Ok(None);
        }
        let recent = Query::new()
            .filter("modified_at", ">=", since)
            .select(&FOLLOWED)
            .limit(PAGE);
        let mut after: Option<(Timestamp, ContainerUuid)> = None;
        for _ in 0..PAGES {
            let place = after.as_ref().map(|(at, uuid)| (*at, uuid));
            let order = ("modified_at", ">", "modified_at asc");
            let page = behind(&client, recent.clone(), order, place).await?;
            let last = page.iter().rev().find_map(|row| match row {
                Row::Container(record) => Some((record.modified_at?, record.uuid.clone())),
                Row::Unreadable(..) => None,
            });
            match last {
                None if page.is_empty() => return Ok(Some(all)),
                None => return Ok(None),
                last => after = last,
            }
            all.extend(page);
        }
        Ok(None)
    }

    async fn record(&self, by: Option<&Token>, uuid: &ContainerUuid) -> Result<Row, Error> {
        let client = match by {
            None => self.with_retry_budget(LOOK),
            Some(token) => self.with_token(token.clone()),
        };
        let record: Value = client.send(Call::get(format!("containers/{uuid}"))).await?;
        Ok(row(record).unwrap_or_else(|| {
            Row::Unreadable(uuid.clone(), "it has another container's uuid".into())
        }))
    }

    async fn sees_all(&self) -> Result<bool, Error> {
        let client = self.with_retry_budget(LOOK);
        Ok(client.current_user().await?.is_admin)
    }

    async fn own_token(&self) -> Result<Authorization, Error> {
        self.with_retry_budget(LOOK).current_token().await
    }

    async fn mint(&self, new: &NewToken) -> Result<Authorization, Error> {
        self.create_token(new).await
    }

    async fn bulk(&self) -> Result<Bulk, Error> {
        let client = self.with_retry_budget(LOOK);
        Ok(client.discovery().await?.bulk())
    }

    async fn mint_all(&self, new: &[NewToken]) -> Result<Each<Authorization>, Error> {
        self.create_tokens(new).await
    }

    async fn lock_all(&self, wanted: &[WantedLock]) -> Result<Each<()>, Error> {
        let locked = self.lock_containers(wanted).await?;
        Ok(locked.into_iter().map(|one| one.map(drop)).collect())
    }

    async fn renew(&self, token: &TokenUuid, end: Timestamp) -> Result<(), Error> {
        self.renew_token(token, end).await
    }

    async fn revoke(&self, token: &TokenUuid) -> Result<(), Error> {
        self.delete_token(token).await
    }

    async fn tokens(&self) -> Result<Vec<Authorization>, Error> {
        let client = self.with_retry_budget(LOOK);
        client
            .all(
                "api_client_authorizations",
                Query::new(),
                |t: &Authorization| t.uuid.as_str(),
            )
            .await
    }

    async fn held_by(&self, holder: &TokenUuid) -> Result<Vec<ContainerUuid>, Error> {
        let query = Query::new()
            .filter("locked_by_uuid", "=", holder)
            .filter("state", "in", ["Locked", "Running"])
            .select(&["uuid"]);
        let client = self.with_retry_budget(LOOK);
        let records: Vec<Container> = client
            .all("containers", query, |c: &Container| c.uuid.as_str())
            .await?;
        Ok(records.into_iter().map(|record| record.uuid).collect())
    }

    async fn lock(&self, by: &Token, uuid: &ContainerUuid, etag: &str) -> Result<(), Error> {
        // The server has just made it.
        let client = self.with_token(by.clone()).with_accepted_token();
        client.lock_container(uuid, etag).await.map(drop)
    }

    async fn unlock(&self, by: &Token, uuid: &ContainerUuid) -> Result<ContainerState, Error> {
        let client = self.with_token(by.clone());
        Ok(client.unlock_container(uuid).await?.state)
    }

    async fn update(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
        attributes: Value,
    ) -> Result<(), Error> {
        match by {
            None => self.update_container(uuid, attributes).await,
            Some(token) => {
                let client = self.with_token(token.clone());
                client.update_container(uuid, attributes).await
            }
        }
    }

    async fn save_log(
        &self,
        container: &ContainerUuid,
        beside_earlier: bool,
        text: String,
    ) -> Result<String, LastLogError> {
        last_log::save(self, container, beside_earlier, &text).await
    }

    async fn note(&self, entry: &NewLog) -> Result<(), Error> {
        self.create_log(entry).await
    }

    async fn note_all(&self, entries: &[NewLog]) -> Result<Each<()>, Error> {
        self.create_logs(entries).await
    }

    /// Only a server that tells of changes of priority, as dispatch-api does, is listened to. At a real Arvados server each
    /// event costs a permission check for an administrator's subscription, and polling finds as much.
    async fn follow(&self, heard: Arc<News>) {
        let tells_all = loop {
            match self.bulk().await {
                Ok(bulk) => break bulk.starts > 1,
                Err(_) => tokio::time::sleep(STEADY).await,
            }
        };
        if !tells_all {
            return std::future::pending().await;
        }
        let mut wait = Duration::from_secs(1);
        loop {
            if let Ok(mut events) = self.events(&CHANGES).await {
                let began = Instant::now();
                heard.missed();
                while let Ok(event) = events.next().await {
                    if let Some(container) = news(&event) {
                        heard.tell(container);
                    }
                }
                // A server that takes connections only to end them is asked less and less.
                if began.elapsed() > STEADY {
                    wait = Duration::from_secs(1);
                }
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_secs(60));
        }
    }
}
