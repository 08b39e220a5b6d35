//! The simulated API server as a dispatcher sees it: calls are refused, delayed, or lose their
//! answers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arvados_client::api::{Bulk, Each, NameKind, NewLog, NewToken, WantedLock};
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::{ContainerRequestUuid, ContainerUuid, Error, Token, TokenUuid, UserUuid};
use dispatch_core::Api;
use dispatch_core::act::crash_log::{CrashLogError, OtherLogs};
use dispatch_core::api::RequestAttempts;
use dispatch_core::model::container_record::ListedRecord;
use dispatch_core::model::snapshot::{QueueCursor, RequestFacts};
use dispatch_core::observe::change_feed::ChangeFeed;
use dispatch_core::scheduler::submit_host::TrialFailure;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::call_fate::{CallFate, draw_fate};
use crate::faults::SeededBug;
use crate::listing::{row, with_resources};
use crate::server::{Caller, api_error, authorization};
use crate::state::{SharedWorld, SimWorld};

/// Maximum time from a trial that found the file storage full until no task locks containers.
const MAX_TIME_TO_HOLD: Duration = Duration::from_secs(60);
/// Maximum time until a fault of the storage is noticed: an end that was recorded before may be
/// learned late, when calls take long or the API was away.
const MAX_TIME_TO_NOTICE: Duration = Duration::from_secs(900);

/// Maximum number of tokens in a page.
const TOKENS_PAGE_SIZE: usize = 50;

/// The server, as one dispatcher or one executor asks it.
#[derive(Debug, Clone)]
pub struct SimApi {
    world: SharedWorld,
    /// Index of the user whose tokens are listed.
    user: usize,
    wake: Arc<Notify>,
    /// When a trial of the file storage found it full, if none has succeeded since.
    found_full: Arc<Mutex<Option<Instant>>>,
}

impl SimApi {
    pub fn new(world: SharedWorld, user: usize, wake: Arc<Notify>) -> Self {
        Self {
            world,
            user,
            wake,
            found_full: Arc::default(),
        }
    }

    pub fn world(&self) -> &SharedWorld {
        &self.world
    }

    /// Whether tokens are not ended, against the rule.
    fn skips_revocation(&self) -> bool {
        self.world.get().seeded_bug == Some(SeededBug::OrphanToken)
    }

    /// Makes one call. The call takes effect at the server even if the caller is killed meanwhile.
    pub async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        effect: impl FnOnce(&mut SimWorld) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, reply) = oneshot::channel();
        let (fate, before, after) = draw_fate(&mut self.world.get());
        let world = self.world.clone();
        tokio::spawn(async move {
            tokio::time::sleep(before).await;
            let lost = || Err(api_error(502, "the answer was lost"));
            let _ = match fate {
                CallFate::Refused(status) => answer.send(Err(api_error(status, "not now"))),
                CallFate::Answered | CallFate::Lost => {
                    let done = run(&world, what, effect);
                    tokio::time::sleep(after).await;
                    match fate {
                        CallFate::Lost => answer.send(lost()),
                        _ => answer.send(done),
                    }
                }
                CallFate::Late(delay) => {
                    let sent = answer.send(lost());
                    tokio::time::sleep(delay).await;
                    drop(run(&world, what, effect));
                    sent
                }
            };
        });
        reply
            .await
            .unwrap_or_else(|_| Err(api_error(502, "no answer")))
    }
}

fn run<T>(
    world: &SharedWorld,
    what: &'static str,
    effect: impl FnOnce(&mut SimWorld) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut world = world.get();
    world.tally.api_calls += 1;
    *world.tally.calls.entry(what).or_default() += 1;
    let done = effect(&mut world);
    if let Err(error) = &done {
        world.record_event(|| format!("{what} refused: {error}"));
    }
    done
}

impl Api for SimApi {
    fn now(&self) -> Timestamp {
        self.world.get().now()
    }

    async fn queued(
        &self,
        after: Option<&QueueCursor>,
        except: &BTreeSet<UserUuid>,
        limit: u64,
    ) -> Result<Vec<ListedRecord>, Error> {
        // Nobody owns a simulated container.
        assert!(except.is_empty());
        let after = after.map(|p| (Reverse(p.priority), p.uuid.clone()));
        self.call("queue", move |world| {
            let is_after = |entry: &&(Reverse<i64>, ContainerUuid)| {
                after.as_ref().is_none_or(|after| *entry > after)
            };
            let entries = world.queue.iter().filter(is_after);
            let rows = entries
                .map(|(_, uuid)| row(uuid, &world.containers[uuid]))
                .take(limit as usize)
                .collect();
            Ok(world.page(rows))
        })
        .await
    }

    async fn store_trial_block(&self) -> Result<(), TrialFailure> {
        let fault = self.world.get().storage_fault();
        let mut found_full = self.found_full.lock().unwrap();
        match fault {
            None => {
                *found_full = None;
                Ok(())
            }
            Some((_, is_certain)) => {
                if is_certain {
                    found_full.get_or_insert(Instant::now());
                }
                Err(TrialFailure {
                    reason: "it takes nothing".to_owned(),
                    is_certain,
                })
            }
        }
    }

    async fn records(&self, uuids: &[ContainerUuid]) -> Result<Vec<ListedRecord>, Error> {
        self.named("records", uuids).await
    }

    async fn full_records(&self, uuids: &[ContainerUuid]) -> Result<Vec<ListedRecord>, Error> {
        let rows = self.named("whole records", uuids).await?;
        Ok(rows.into_iter().map(with_resources).collect())
    }

    async fn request_facts(
        &self,
        containers: &[ContainerUuid],
    ) -> Result<BTreeMap<ContainerUuid, RequestFacts>, Error> {
        let containers = containers.to_vec();
        let facts = containers
            .into_iter()
            .map(|container| (container, RequestFacts::default()));
        self.call("request_facts", |_| Ok(facts.collect())).await
    }

    async fn names(
        &self,
        _: NameKind,
        _: &BTreeSet<String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        self.call("names", |_| Ok(BTreeMap::new())).await
    }

    async fn changed(&self, since: Timestamp) -> Result<Option<Vec<ListedRecord>>, Error> {
        self.call("changes", move |world| {
            let changed = world.containers.iter().filter(|(_, record)| {
                let held = record.priority == 0 && record.locked_by.is_some();
                held || record.modified_at >= since
            });
            let rows: Vec<ListedRecord> = changed.map(|(uuid, record)| row(uuid, record)).collect();
            Ok((rows.len() < 20_000).then_some(rows))
        })
        .await
    }

    async fn record(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
    ) -> Result<ListedRecord, Error> {
        let (who, uuid) = (by.map_or(Caller::Dispatcher, Caller::of), uuid.clone());
        self.call("record", move |world| {
            world.admit(&who, &uuid)?;
            let record = world.containers.get(&uuid);
            record
                .map(|record| with_resources(row(&uuid, record)))
                .ok_or_else(|| api_error(404, "not found"))
        })
        .await
    }

    async fn can_read_all(&self) -> Result<bool, Error> {
        self.call("user", |_| Ok(true)).await
    }

    async fn own_token(&self) -> Result<Authorization, Error> {
        Err(api_error(404, "the dispatch token is not shared here"))
    }

    async fn bulk(&self) -> Result<Bulk, Error> {
        self.call("discovery", |world| {
            Ok(Bulk {
                starts: world.max_bulk,
                logs: world.max_bulk,
                updates: 1,
            })
        })
        .await
    }

    async fn mint(&self, new: &[NewToken]) -> Result<Each<Authorization>, Error> {
        let user = self.user;
        if let [one] = new {
            let one = one.clone();
            let minted = self.call("mint", move |world| {
                Ok(world.mint(user, &one.scopes, one.expires_at))
            });
            return Ok(vec![minted.await]);
        }
        let new = new.to_vec();
        self.call("mint of many", move |world| {
            world.check_bulk(new.len())?;
            let minted = new
                .iter()
                .map(|new| Ok(world.mint(user, &new.scopes, new.expires_at)));
            Ok(minted.collect())
        })
        .await
    }

    async fn lock(&self, wanted: &[WantedLock]) -> Result<Each<()>, Error> {
        let found_full = *self.found_full.lock().unwrap();
        if found_full.is_some_and(|since| since.elapsed() > MAX_TIME_TO_HOLD) {
            let what = "containers are locked although a trial found the file storage full";
            self.world.get().violation(what.to_owned());
        }
        if let Some((began, true)) = self.world.get().storage_fault()
            && began.elapsed() > MAX_TIME_TO_NOTICE
        {
            let what = "containers are locked while the file storage is full, and was not tried";
            self.world.get().violation(what.to_owned());
        }
        let lock = |world: &mut SimWorld, wanted: &WantedLock| {
            world.lock(&Caller::of(&wanted.by), &wanted.uuid, &wanted.etag)
        };
        let wanted = wanted.to_vec();
        if let [_] = wanted.as_slice() {
            let locked = self.call("lock", move |world| lock(world, &wanted[0]));
            return Ok(vec![locked.await]);
        }
        self.call("lock of many", move |world| {
            world.check_bulk(wanted.len())?;
            Ok(wanted.iter().map(|one| lock(world, one)).collect())
        })
        .await
    }

    async fn renew(&self, token: &TokenUuid, end: Timestamp) -> Result<(), Error> {
        let token = token.clone();
        if end <= self.now() && self.skips_revocation() {
            return Ok(());
        }
        let user = self.user;
        self.call("renew", move |world| match world.tokens.get_mut(&token) {
            Some(known) if known.user == user => {
                known.expires_at = end;
                Ok(())
            }
            _ => Err(api_error(404, "no such token")),
        })
        .await
    }

    async fn revoke(&self, token: &TokenUuid) -> Result<(), Error> {
        let token = token.clone();
        if self.skips_revocation() {
            return Ok(());
        }
        let user = self.user;
        self.call("revoke", move |world| {
            if world
                .tokens
                .get(&token)
                .is_some_and(|known| known.user == user)
            {
                world.tokens.remove(&token);
                world.record_event(|| format!("{token} ended"));
            }
            Ok(())
        })
        .await
    }

    async fn newest_tokens(&self, skip: u64) -> Result<Vec<Authorization>, Error> {
        let user = self.user;
        self.call("tokens", move |world| {
            let lists_all = world.faults.lists_all_tokens;
            let listed = world.tokens.iter();
            let mut listed: Vec<_> = listed
                .filter(|(_, token)| lists_all || token.user == user)
                .collect();
            listed.sort_by_key(|(uuid, token)| (Reverse(token.created_at), *uuid));
            let skip = match world.faults.first_page_again {
                true => 0,
                false => skip as usize,
            };
            let page = listed.into_iter().skip(skip).take(TOKENS_PAGE_SIZE);
            let without_secret = |token: Authorization| Authorization {
                api_token: None,
                ..token
            };
            Ok(page
                .map(|(uuid, token)| without_secret(authorization(uuid, token)))
                .collect())
        })
        .await
    }

    async fn token(&self, token: &TokenUuid) -> Result<Option<Authorization>, Error> {
        let (user, token) = (self.user, token.clone());
        self.call("token", move |world| {
            let known = world.tokens.get(&token);
            let visible = known.filter(|known| known.user == user);
            Ok(visible.map(|known| authorization(&token, known)))
        })
        .await
    }

    async fn locked_by(&self, _: &TokenUuid) -> Result<Vec<ContainerUuid>, Error> {
        Ok(Vec::new())
    }

    async fn unlock(&self, by: &Token, uuid: &ContainerUuid) -> Result<ContainerState, Error> {
        let seeded_bug = self.world.get().seeded_bug == Some(SeededBug::Unlock);
        let who = match seeded_bug {
            true => Caller::Dispatcher,
            false => Caller::of(by),
        };
        let uuid = uuid.clone();
        self.call("unlock", move |world| world.unlock(&who, &uuid))
            .await
    }

    async fn update(
        &self,
        by: Option<&Token>,
        uuid: &ContainerUuid,
        change: Value,
    ) -> Result<(), Error> {
        let (who, uuid) = (by.map_or(Caller::Dispatcher, Caller::of), uuid.clone());
        self.call("update", move |world| {
            world.update(&who, &uuid, &change, false)
        })
        .await
    }

    async fn requests_of(&self, _: &ContainerUuid) -> Result<Vec<RequestAttempts>, Error> {
        self.call("requests", |_| Ok(Vec::new())).await
    }

    async fn set_max_containers(&self, _: &ContainerRequestUuid, _: u32) -> Result<(), Error> {
        self.call("request", |_| Ok(())).await
    }

    async fn save_log(
        &self,
        _: &ContainerUuid,
        _: OtherLogs<'_>,
        _: String,
    ) -> Result<String, CrashLogError> {
        let saved = self.call("log", |_| Ok("a log by the dispatcher".to_owned()));
        Ok(saved.await?)
    }

    async fn create_logs(&self, entries: &[NewLog]) -> Result<Each<()>, Error> {
        let count = entries.len();
        if count == 1 {
            return Ok(vec![self.call("note", |_| Ok(())).await]);
        }
        self.call("note of many", move |world| {
            world.check_bulk(count)?;
            Ok((0..count).map(|_| Ok(())).collect())
        })
        .await
    }

    async fn subscribe(&self, feed: Arc<ChangeFeed>) {
        loop {
            self.wake.notified().await;
            feed.notify();
        }
    }
}

impl SimApi {
    async fn named(
        &self,
        what: &'static str,
        uuids: &[ContainerUuid],
    ) -> Result<Vec<ListedRecord>, Error> {
        let uuids = uuids.to_vec();
        self.call(what, move |world| {
            let found = uuids
                .iter()
                .filter_map(|u| Some((u, world.containers.get(u)?)));
            let rows = found.map(|(uuid, record)| row(uuid, record)).collect();
            Ok(world.page(rows))
        })
        .await
    }
}
