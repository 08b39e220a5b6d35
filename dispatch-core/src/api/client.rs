//! The calls of a dispatcher to a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arvados_client::api::{Bulk, Each, NameKind, NewLog, NewToken, WantedLock};
use arvados_client::client::Call;
use arvados_client::filter::Query;
use arvados_client::keep::BlockStore;
use arvados_client::records::{Authorization, Container, ContainerState};
use arvados_client::{
    Client, ContainerRequestUuid, ContainerUuid, Error, Token, TokenUuid, UserUuid,
};
use exp_backoff::Backoff;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::listing::{POLL_RETRY_BUDGET, fetch_named, fetch_page, fetch_page_after, parse_row};
use super::{Api, RequestAttempts, request_facts};
use crate::act::crash_log::{self, CrashLogError, OtherLogs};
use crate::model::container_record::ListedRecord;
use crate::model::snapshot::{QueueCursor, RequestFacts};
use crate::observe::change_feed::{ChangeFeed, changed_container};
use crate::scheduler::submit_host::TrialFailure;

/// Columns of every list of containers.
const COLUMNS: &str = "uuid state priority locked_by_uuid created_at modified_at lock_count";
/// Columns of queued containers besides these.
const OF_QUEUED: &str = "runtime_user_uuid";
/// Columns of followed containers besides these. They include the exit code and the runtime status.
const OF_FOLLOWED: &str = "exit_code runtime_status started_at finished_at";
/// Columns with the resource request. Mounts may have any size, so they are read only once per
/// container.
const OF_NEW: &str =
    "runtime_constraints scheduling_parameters mounts container_image runtime_user_uuid";
/// Time after which a websocket connection counts as stable and resets the reconnect back-off. It
/// is also the interval between tries to read the server's bulk limits.
const STABLE_CONNECTION_TIME: Duration = Duration::from_secs(60);
/// Timeout of a trial of the file storage.
const TRIAL_TIMEOUT: Duration = Duration::from_secs(8);
/// Types of events that may report a new or changed container.
const CHANGE_EVENTS: [&str; 3] = ["create", "update", "delete"];
/// Maximum number of records in a page of changes. The server may return fewer.
const CHANGES_PAGE_SIZE: u64 = 1000;
/// Maximum number of pages of changes. Beyond it, a full listing is cheaper.
const MAX_CHANGE_PAGES: usize = 20;

/// Number of tokens in the first page of a list, which is all that most scans read.
const FIRST_TOKENS_PAGE_SIZE: u64 = 50;
/// Maximum number of tokens in a later page. A busy Arvados takes a second for them.
const TOKENS_PAGE_SIZE: u64 = 500;

/// The attempts of a container request. One number that no program could mean must not keep the
/// container of another request from its end.
#[derive(Debug, Serialize, Deserialize)]
struct RequestRow {
    uuid: ContainerRequestUuid,
    #[serde(default)]
    container_count: Value,
    #[serde(default)]
    container_count_max: Value,
}

fn columns(more: &'static str) -> Vec<&'static str> {
    COLUMNS.split(' ').chain(more.split(' ')).collect()
}

/// A number that is missing or negative is 0.
fn bounded(number: Value) -> u32 {
    let number = number.as_i64().unwrap_or_default().max(0);
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Api for Client {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn queued(
        &self,
        after: Option<&QueueCursor>,
        except: &BTreeSet<UserUuid>,
        limit: u64,
    ) -> Result<Vec<ListedRecord>, Error> {
        let mut queue = Query::new()
            .filter("state", "=", "Queued")
            .filter("priority", ">", 0)
            .select(&columns(OF_QUEUED))
            .limit(limit);
        if !except.is_empty() {
            queue = queue.filter("runtime_user_uuid", "not in", except);
        }
        let after = after.map(|cursor| (cursor.priority, &cursor.uuid));
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        fetch_page_after(&client, queue, ("priority", "<", "priority desc"), after).await
    }

    async fn records(&self, uuids: &[ContainerUuid]) -> Result<Vec<ListedRecord>, Error> {
        fetch_named(self, uuids, &columns(OF_FOLLOWED)).await
    }

    async fn full_records(&self, uuids: &[ContainerUuid]) -> Result<Vec<ListedRecord>, Error> {
        fetch_named(self, uuids, &columns(OF_NEW)).await
    }

    async fn request_facts(
        &self,
        containers: &[ContainerUuid],
    ) -> Result<BTreeMap<ContainerUuid, RequestFacts>, Error> {
        request_facts::request_facts(self, containers).await
    }

    async fn names(
        &self,
        kind: NameKind,
        uuids: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        Client::names(&client, kind, uuids).await
    }

    async fn changed(&self, since: Timestamp) -> Result<Option<Vec<ListedRecord>>, Error> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        let held = Query::new()
            .filter("state", "in", ["Locked", "Running"])
            .filter("priority", "=", 0)
            .order("uuid asc")
            .select(&columns(OF_FOLLOWED))
            .limit(CHANGES_PAGE_SIZE);
        let mut all = fetch_page(&client, held).await?;
        if all.len() as u64 >= CHANGES_PAGE_SIZE {
            return Ok(None);
        }
        let recent = Query::new()
            .filter("modified_at", ">=", since)
            .select(&columns(OF_FOLLOWED))
            .limit(CHANGES_PAGE_SIZE);
        let mut after: Option<(Timestamp, ContainerUuid)> = None;
        for _ in 0..MAX_CHANGE_PAGES {
            let cursor = after.as_ref().map(|(at, uuid)| (*at, uuid));
            let order = ("modified_at", ">", "modified_at asc");
            let page = fetch_page_after(&client, recent.clone(), order, cursor).await?;
            let last = page.iter().rev().find_map(|row| match row {
                ListedRecord::Parsed(record) => Some((record.modified_at?, record.uuid.clone())),
                ListedRecord::Malformed(..) => None,
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

    async fn record(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
    ) -> Result<ListedRecord, Error> {
        let client = match by {
            None => self.with_retry_budget(POLL_RETRY_BUDGET),
            Some(token) => self.with_token(token.clone()),
        };
        let record: Value = client.send(Call::get(format!("containers/{uuid}"))).await?;
        Ok(parse_row(record).unwrap_or_else(|| {
            ListedRecord::Malformed(uuid.clone(), "it has another container's uuid".into())
        }))
    }

    async fn can_read_all(&self) -> Result<bool, Error> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        Ok(client.current_user().await?.is_admin)
    }

    async fn store_trial_block(&self) -> Result<(), TrialFailure> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        let mut options = client.keep_options().await.map_err(|e| e.to_string())?;
        // The next trial is soon, and must not wait for this one.
        (options.retry_budget, options.stall_timeout) = (Duration::ZERO, TRIAL_TIMEOUT);
        let keep = client.keep(options).await.map_err(|e| e.to_string())?;
        // Storage that is full may still take a block that it has.
        let data = format!("dispatcher trial {}\n", fastrand::u128(..));
        let stored = BlockStore::put(&keep, data.into()).await;
        stored.map(drop).map_err(|error| TrialFailure {
            is_certain: error.is_fault_of_service(),
            // The hash of the block would make each reason a new one.
            reason: match error.failure() {
                Some(failure) => failure.to_string(),
                None => error.to_string(),
            },
        })
    }

    async fn own_token(&self) -> Result<Authorization, Error> {
        self.with_retry_budget(POLL_RETRY_BUDGET)
            .current_token()
            .await
    }

    async fn bulk(&self) -> Result<Bulk, Error> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        Ok(client.discovery().await?.bulk())
    }

    async fn mint(&self, new: &[NewToken]) -> Result<Each<Authorization>, Error> {
        match new {
            [one] => Ok(vec![self.create_token(one).await]),
            several => self.create_tokens(several).await,
        }
    }

    async fn lock(&self, wanted: &[WantedLock]) -> Result<Each<()>, Error> {
        if let [one] = wanted {
            // The server has just created this token, so it accepts it.
            let client = self.with_token(one.by.clone()).with_accepted_token();
            let locked = client.lock_container(&one.uuid, &one.etag).await;
            return Ok(vec![locked.map(drop)]);
        }
        let locked = self.lock_containers(wanted).await?;
        Ok(locked.into_iter().map(|one| one.map(drop)).collect())
    }

    async fn renew(&self, token: &TokenUuid, end: Timestamp) -> Result<(), Error> {
        self.renew_token(token, end).await
    }

    async fn revoke(&self, token: &TokenUuid) -> Result<(), Error> {
        self.delete_token(token).await
    }

    async fn newest_tokens(&self, skip: u64) -> Result<Vec<Authorization>, Error> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        let limit = match skip {
            0 => FIRST_TOKENS_PAGE_SIZE,
            _ => TOKENS_PAGE_SIZE,
        };
        Client::newest_tokens(&client, skip, limit).await
    }

    async fn token(&self, token: &TokenUuid) -> Result<Option<Authorization>, Error> {
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        Client::token(&client, token).await
    }

    async fn locked_by(&self, holder: &TokenUuid) -> Result<Vec<ContainerUuid>, Error> {
        let query = Query::new()
            .filter("locked_by_uuid", "=", holder)
            .filter("state", "in", ["Locked", "Running"])
            .select(&["uuid"]);
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        let records: Vec<Container> = client
            .all("containers", query, |c: &Container| c.uuid.as_str())
            .await?;
        Ok(records.into_iter().map(|record| record.uuid).collect())
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

    async fn requests_of(&self, container: &ContainerUuid) -> Result<Vec<RequestAttempts>, Error> {
        let query = Query::new()
            .filter("container_uuid", "=", container)
            .filter("state", "=", "Committed")
            .filter("priority", ">", 0)
            // What runs for a project in the trash goes on.
            .include_trash()
            .select(&["uuid", "container_count", "container_count_max"]);
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        let requests: Vec<RequestRow> = client
            .all("container_requests", query, |r: &RequestRow| {
                r.uuid.as_str()
            })
            .await?;
        let attempts = requests.into_iter().map(|request| RequestAttempts {
            uuid: request.uuid,
            containers: bounded(request.container_count),
            max_containers: bounded(request.container_count_max),
        });
        Ok(attempts.collect())
    }

    async fn set_max_containers(
        &self,
        request: &ContainerRequestUuid,
        max_containers: u32,
    ) -> Result<(), Error> {
        let change = json!({"container_count_max": max_containers});
        let client = self.with_retry_budget(POLL_RETRY_BUDGET);
        client
            .update_container_request(request, change)
            .await
            .map(drop)
    }

    async fn save_log(
        &self,
        container: &ContainerUuid,
        others: OtherLogs<'_>,
        text: String,
    ) -> Result<String, CrashLogError> {
        crash_log::save(self, container, others, &text).await
    }

    async fn create_logs(&self, entries: &[NewLog]) -> Result<Each<()>, Error> {
        match entries {
            [one] => Ok(vec![self.create_log(one).await]),
            several => self.create_logs(several).await,
        }
    }

    /// Subscribes only to a server whose events include priorities, as dispatch-api does. On an
    /// Arvados server, each event for an administrator's subscription costs a permission check.
    /// Polling finds the same changes there.
    async fn subscribe(&self, feed: Arc<ChangeFeed>) {
        let has_full_events = loop {
            match self.bulk().await {
                Ok(bulk) => break bulk.starts > 1,
                Err(_) => tokio::time::sleep(STABLE_CONNECTION_TIME).await,
            }
        };
        if !has_full_events {
            return std::future::pending().await;
        }
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
        loop {
            if let Ok(mut events) = self.events(&CHANGE_EVENTS).await {
                let began = Instant::now();
                feed.request_resync();
                while let Ok(event) = events.next().await {
                    if let Some(container) = changed_container(&event) {
                        feed.mark_changed(container);
                    }
                }
                // A connection that ends early increases the reconnect delay.
                if began.elapsed() > STABLE_CONNECTION_TIME {
                    backoff.reset();
                }
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_numbers_of_attempts_are_read() {
        for (number, expected) in [
            (json!(3), 3),
            (json!(null), 0),
            (json!(-5), 0),
            (json!(1_i64 << 40), u32::MAX),
            (json!(u64::MAX), 0),
            (json!("many"), 0),
        ] {
            assert_eq!(bounded(number.clone()), expected, "{number}");
        }
    }
}
