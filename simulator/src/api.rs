//! The simulated API server as a dispatcher sees it: over a network that loses, delays and refuses.

use std::sync::Arc;
use std::time::Duration;

use arvados_client::api::{Bulk, Each, NewLog, NewToken, WantedLock};
use arvados_client::records::{Authorization, ContainerState};
use arvados_client::{ContainerUuid, Error, Token, TokenUuid};
use dispatch_core::Api;
use dispatch_core::api::{self, Place, Row};
use dispatch_core::last_log::LastLogError;
use dispatch_core::needs::Needs;
use dispatch_core::news::News;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::{Notify, oneshot};

use crate::faults::{Broken, LATEST};
use crate::server::{Who, authorization, refuse};
use crate::world::{Record, Shared, World};

/// What happens to one call.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// It is answered.
    Answered,
    /// It is refused with this status before anything happened.
    Refused(u16),
    /// It takes effect and the answer is lost.
    Lost,
    /// The answer is lost, and it takes effect so much later.
    Late(Duration),
}

/// The server, as one dispatcher or one executor asks it.
#[derive(Debug, Clone)]
pub struct SimApi {
    world: Shared,
    /// Whose tokens it lists.
    user: usize,
    wake: Arc<Notify>,
}

impl SimApi {
    pub fn new(world: Shared, user: usize, wake: Arc<Notify>) -> Self {
        Self { world, user, wake }
    }

    /// Whether tokens are not ended, against the rule.
    fn keeps_left_overs(&self) -> bool {
        self.world.get().broken == Some(Broken::LeftOver)
    }

    /// One call. It happens at the server even if the caller is killed meanwhile.
    pub async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        effect: impl FnOnce(&mut World) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, reply) = oneshot::channel();
        let (fate, before, after) = fate(&mut self.world.get());
        let world = self.world.clone();
        tokio::spawn(async move {
            tokio::time::sleep(before).await;
            let lost = || Err(refuse(502, "the answer was lost"));
            let _ = match fate {
                Fate::Refused(status) => answer.send(Err(refuse(status, "not now"))),
                Fate::Answered | Fate::Lost => {
                    let done = run(&world, what, effect);
                    tokio::time::sleep(after).await;
                    match fate {
                        Fate::Lost => answer.send(lost()),
                        _ => answer.send(done),
                    }
                }
                Fate::Late(delay) => {
                    let told = answer.send(lost());
                    tokio::time::sleep(delay).await;
                    drop(run(&world, what, effect));
                    told
                }
            };
        });
        reply
            .await
            .unwrap_or_else(|_| Err(refuse(502, "no answer")))
    }
}

fn run<T>(
    world: &Shared,
    what: &'static str,
    effect: impl FnOnce(&mut World) -> Result<T, Error>,
) -> Result<T, Error> {
    let mut world = world.get();
    world.tally.api_calls += 1;
    *world.tally.calls.entry(what).or_default() += 1;
    let done = effect(&mut world);
    if let Err(error) = &done {
        world.note(|| format!("{what} refused: {error}"));
    }
    done
}

fn fate(world: &mut World) -> (Fate, Duration, Duration) {
    let slow = world.faults.slow;
    let most = match world.happens(slow) {
        true => Duration::from_secs(30),
        false => Duration::from_millis(40),
    };
    let (before, after) = (world.upto(most), world.upto(most));
    let faults = world.faults.clone();
    let fate =
        if tokio::time::Instant::now() < world.api_away_until || world.happens(faults.refused) {
            Fate::Refused([429, 500, 503][world.rng.usize(..3)])
        } else if is_refused(world) {
            Fate::Refused(401)
        } else if world.happens(faults.lost) {
            Fate::Lost
        } else if world.happens(faults.late) {
            Fate::Late(world.upto(LATEST))
        } else {
            Fate::Answered
        };
    (fate, before, after)
}

/// The server does not know a valid token for the moment.
fn is_refused(world: &mut World) -> bool {
    let (until, often) = world.refuses_tokens;
    tokio::time::Instant::now() < until && world.happens(often)
}

fn row(uuid: &ContainerUuid, record: &Record) -> Row {
    Row::Container(Box::new(api::Record {
        uuid: uuid.clone(),
        etag: record.version.to_string(),
        state: record.state.clone(),
        priority: record.priority,
        locked_by: record.locked_by.clone(),
        modified_at: Some(record.modified_at),
        log: None,
        status: None,
        exit_code: None,
        tells_end: true,
        needs: None,
    }))
}

/// The same with what the container needs.
fn whole(row: Row) -> Row {
    match row {
        Row::Container(record) => {
            let needs = Some(Needs {
                cpus: 1,
                ..Needs::default()
            });
            Row::Container(Box::new(api::Record { needs, ..*record }))
        }
        unreadable => unreadable,
    }
}

impl World {
    /// A page as the server may give it: cut short, or with something twice.
    fn page(&mut self, mut rows: Vec<Row>) -> Vec<Row> {
        let odd = self.faults.odd_page;
        if rows.len() > 1 && self.happens(odd) {
            match self.rng.bool() {
                true => rows.truncate(1 + rows.len() / 2),
                false => rows.insert(0, rows[rows.len() / 2].clone()),
            }
        }
        rows
    }
}

impl Api for SimApi {
    fn now(&self) -> Timestamp {
        self.world.get().now()
    }

    async fn queued(&self, after: Option<&Place>, limit: u64) -> Result<Vec<Row>, Error> {
        let after = after.map(|p| (std::cmp::Reverse(p.priority), p.uuid.clone()));
        self.call("queue", move |world| {
            let behind = |place: &&(std::cmp::Reverse<i64>, ContainerUuid)| {
                after.as_ref().is_none_or(|after| *place > after)
            };
            let places = world.queue.iter().filter(behind);
            let rows = places
                .map(|(_, uuid)| row(uuid, &world.containers[uuid]))
                .take(limit as usize)
                .collect();
            Ok(world.page(rows))
        })
        .await
    }

    async fn records(&self, uuids: &[ContainerUuid]) -> Result<Vec<Row>, Error> {
        self.named("records", uuids).await
    }

    async fn whole_records(&self, uuids: &[ContainerUuid]) -> Result<Vec<Row>, Error> {
        let rows = self.named("whole records", uuids).await?;
        Ok(rows.into_iter().map(whole).collect())
    }

    async fn changed(&self, since: Timestamp) -> Result<Option<Vec<Row>>, Error> {
        self.call("changes", move |world| {
            let changed = world.containers.iter().filter(|(_, record)| {
                let held = record.priority == 0 && record.locked_by.is_some();
                held || record.modified_at >= since
            });
            let rows: Vec<Row> = changed.map(|(uuid, record)| row(uuid, record)).collect();
            Ok((rows.len() < 20_000).then_some(rows))
        })
        .await
    }

    async fn record(&self, by: Option<&Token>, uuid: &ContainerUuid) -> Result<Row, Error> {
        let (who, uuid) = (by.map_or(Who::Dispatcher, Who::of), uuid.clone());
        self.call("record", move |world| {
            world.admit(&who, &uuid)?;
            let record = world.containers.get(&uuid);
            record
                .map(|record| whole(row(&uuid, record)))
                .ok_or_else(|| refuse(404, "not found"))
        })
        .await
    }

    async fn sees_all(&self) -> Result<bool, Error> {
        self.call("user", |_| Ok(true)).await
    }

    async fn own_token(&self) -> Result<Authorization, Error> {
        Err(refuse(404, "the dispatch token is not shared here"))
    }

    async fn mint(&self, new: &NewToken) -> Result<Authorization, Error> {
        let (user, new) = (self.user, new.clone());
        self.call("mint", move |world| {
            Ok(world.mint(user, &new.scopes, new.expires_at))
        })
        .await
    }

    async fn bulk(&self) -> Result<Bulk, Error> {
        self.call("discovery", |world| {
            Ok(Bulk {
                starts: world.bulk,
                logs: world.bulk,
            })
        })
        .await
    }

    async fn mint_all(&self, new: &[NewToken]) -> Result<Each<Authorization>, Error> {
        let (user, new) = (self.user, new.to_vec());
        self.call("mint of many", move |world| {
            world.has_bulk(new.len())?;
            let made = new
                .iter()
                .map(|new| Ok(world.mint(user, &new.scopes, new.expires_at)));
            Ok(made.collect())
        })
        .await
    }

    async fn lock_all(&self, wanted: &[WantedLock]) -> Result<Each<()>, Error> {
        let wanted = wanted.to_vec();
        self.call("lock of many", move |world| {
            world.has_bulk(wanted.len())?;
            let locked = wanted
                .iter()
                .map(|lock| world.lock(&Who::of(&lock.by), &lock.uuid, &lock.etag));
            Ok(locked.collect())
        })
        .await
    }

    async fn renew(&self, token: &TokenUuid, end: Timestamp) -> Result<(), Error> {
        let token = token.clone();
        if end <= self.now() && self.keeps_left_overs() {
            return Ok(());
        }
        self.call("renew", move |world| match world.tokens.get_mut(&token) {
            Some(known) => {
                known.expires_at = end;
                Ok(())
            }
            None => Err(refuse(404, "no such token")),
        })
        .await
    }

    async fn revoke(&self, token: &TokenUuid) -> Result<(), Error> {
        let token = token.clone();
        if self.keeps_left_overs() {
            return Ok(());
        }
        self.call("revoke", move |world| {
            world.tokens.remove(&token);
            world.note(|| format!("{token} ended"));
            Ok(())
        })
        .await
    }

    async fn tokens(&self) -> Result<Vec<Authorization>, Error> {
        let user = self.user;
        self.call("tokens", move |world| {
            let ours = world.tokens.iter().filter(|(_, token)| token.user == user);
            Ok(ours
                .map(|(uuid, token)| authorization(uuid, token))
                .collect())
        })
        .await
    }

    async fn held_by(&self, _: &TokenUuid) -> Result<Vec<ContainerUuid>, Error> {
        Ok(Vec::new())
    }

    async fn lock(&self, by: &Token, uuid: &ContainerUuid, etag: &str) -> Result<(), Error> {
        let (who, uuid, etag) = (Who::of(by), uuid.clone(), etag.to_owned());
        self.call("lock", move |world| world.lock(&who, &uuid, &etag))
            .await
    }

    async fn unlock(&self, by: &Token, uuid: &ContainerUuid) -> Result<ContainerState, Error> {
        let broken = self.world.get().broken == Some(Broken::Unlock);
        let who = match broken {
            true => Who::Dispatcher,
            false => Who::of(by),
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
        let (who, uuid) = (by.map_or(Who::Dispatcher, Who::of), uuid.clone());
        self.call("update", move |world| {
            world.update(&who, &uuid, &change, false)
        })
        .await
    }

    async fn save_log(
        &self,
        _: &ContainerUuid,
        _: bool,
        _: String,
    ) -> Result<String, LastLogError> {
        let saved = self.call("log", |_| Ok("a log by the dispatcher".to_owned()));
        Ok(saved.await?)
    }

    async fn note(&self, _: &NewLog) -> Result<(), Error> {
        self.call("note", |_| Ok(())).await
    }

    async fn note_all(&self, entries: &[NewLog]) -> Result<Each<()>, Error> {
        let items = entries.len();
        self.call("note of many", move |world| {
            world.has_bulk(items)?;
            Ok((0..items).map(|_| Ok(())).collect())
        })
        .await
    }

    async fn follow(&self, news: Arc<News>) {
        loop {
            self.wake.notified().await;
            news.ring();
        }
    }
}

impl SimApi {
    async fn named(&self, what: &'static str, uuids: &[ContainerUuid]) -> Result<Vec<Row>, Error> {
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

/// The executor's calls.
impl SimApi {
    pub async fn executor_update(
        &self,
        token: &TokenUuid,
        uuid: &ContainerUuid,
        change: Value,
    ) -> Result<(), Error> {
        let (who, uuid) = (Who::Attempt(token.clone()), uuid.clone());
        self.call("executor's update", move |world| {
            world.update(&who, &uuid, &change, true)
        })
        .await
    }

    /// The state of the container, if this attempt holds it.
    pub async fn executor_look(
        &self,
        token: &TokenUuid,
        uuid: &ContainerUuid,
    ) -> Result<Option<ContainerState>, Error> {
        let (token, uuid) = (token.clone(), uuid.clone());
        self.call("executor's look", move |world| {
            world.admit(&Who::Attempt(token.clone()), &uuid)?;
            let record = world.containers.get(&uuid);
            let held = record.filter(|record| record.locked_by.as_ref() == Some(&token));
            Ok(held.map(|record| record.state.clone()))
        })
        .await
    }

    pub fn world(&self) -> &Shared {
        &self.world
    }
}

/// What a first Running says.
pub fn running() -> Value {
    json!({"state": "Running", "log": "a log by the executor"})
}
