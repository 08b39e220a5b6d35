//! Looks, as the loop begins them and takes them in: the scheduler's jobs first, then the API.

use std::sync::atomic::Ordering;
use std::time::Duration;

use arvados_client::api::Bulk;
use arvados_client::retry::RefusalTimer;
use arvados_client::{ContainerUuid, Error};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::Engine;
use crate::api::Api;
use crate::attempts::AttemptToken;
use crate::health::View;
use crate::news::{Named, News};
use crate::observe::{Interest, Look, look};
use crate::records::Records;
use crate::scheduler::{Scheduler, SchedulerError};
use crate::trouble::Trouble;
use crate::world::{Job, Moment};

/// Time for which a look at the API waits for the scheduler's listing, which it should be younger than.
const LISTING_WAIT: Duration = Duration::from_secs(2);
/// Between two searches for tokens that nobody remembers, as after a lost answer to the request for one.
const SWEEP: Duration = Duration::from_secs(600);

/// When the scheduler was asked, and its answer.
pub(super) type Listed = (Moment, Result<Vec<Job>, SchedulerError>);

/// What one look saw, in the order it looked: a record is younger than the listing beside it, so that what a job said
/// before it went is known when it is missed.
pub(super) struct Sight {
    found: Option<Result<Vec<(ContainerUuid, AttemptToken)>, Error>>,
    /// How many the server takes in one call, if it was asked and said so.
    bulk: Option<Bulk>,
    /// Whether the dispatch token's user is an admin, if the server was asked and said so.
    admin: Option<bool>,
    /// The scheduler's answer, if it was time to ask and it came soon.
    listing: Option<Listed>,
    /// The answer is still to come.
    late: Option<JoinHandle<Listed>>,
}

impl<A: Api, S: Scheduler> Engine<A, S> {
    /// Begins a look: at our tokens if it is time for that, and at the scheduler.
    pub(super) fn observe(&mut self) -> JoinHandle<Sight> {
        self.began = Instant::now();
        let list = self.may_list();
        let due = self.swept.is_none_or(|at| at.elapsed() >= SWEEP);
        let (hands, started) = (self.hands.clone(), self.started);
        tokio::spawn(async move {
            let (mut found, mut bulk, mut admin) = (None, None, None);
            if due {
                let recovered = hands.attempts.recover().await;
                if recovered.is_ok() {
                    bulk = hands.api.bulk().await.ok();
                    admin = hands.api.sees_all().await.ok();
                }
                found = Some(recovered);
            }
            let (mut listing, mut late) = (None, None);
            if list {
                let began = Moment(started.elapsed());
                let scheduler = hands.scheduler.clone();
                let mut asked = tokio::spawn(async move { (began, scheduler.list().await) });
                match tokio::time::timeout(LISTING_WAIT, &mut asked).await {
                    Ok(listed) => listing = listed.ok(),
                    // What the API shows does not wait for it.
                    Err(_) => late = Some(asked),
                }
            }
            Sight {
                found,
                bulk,
                admin,
                listing,
                late,
            }
        })
    }

    /// Whether it is time to ask the scheduler for its jobs; if so, it is about to be asked.
    fn may_list(&mut self) -> bool {
        let gap = self.hands.scheduler.listing_gap();
        let may = self.late.is_none() && self.tempo.may_list(Instant::now(), self.hurries(), gap);
        if may {
            self.rung.store(false, Ordering::Relaxed);
        }
        may
    }

    /// Takes in the first half of a look and begins the other, at the API. None before the tokens of an earlier life
    /// are known: what they hold must not be taken for another's.
    pub(super) fn heard(
        &mut self,
        seen: Sight,
        news: &News,
        records: &Records,
    ) -> Option<JoinHandle<Result<Look, Error>>> {
        match seen.found {
            // Of a life that worked so far the jobs and their ends matter more.
            Some(Ok(_)) if seen.admin == Some(false) && self.swept.is_none() => {
                self.no_admin = true;
                return None;
            }
            Some(Ok(found)) => {
                let first = self.swept.replace(Instant::now()).is_none();
                if first {
                    tracing::info!(tokens = found.len(), "found the attempts of an earlier run");
                }
                self.mind.recovered(self.now(), found);
            }
            Some(Err(error)) => {
                let error = self.trouble(&error);
                match self.swept {
                    None => {
                        tracing::warn!(%error, "cannot look for attempts of an earlier run; nothing is started before that")
                    }
                    Some(_) => {
                        tracing::warn!(%error, "cannot look for tokens that nobody remembers; it is tried again")
                    }
                }
            }
            None => {}
        }
        if let Some(bulk) = seen.bulk {
            self.mind.takes_at_once(bulk.starts);
            records.at_once(bulk.logs);
        }
        self.late = seen.late.or(self.late.take());
        if let Some(listed) = seen.listing {
            self.listed(listed, records);
        }
        self.swept?;
        let named: Named = news.take();
        let interest: Interest = self.mind.interest(self.now(), named);
        let api = self.hands.api.clone();
        Some(tokio::spawn(async move { look(&api, &interest).await }))
    }

    /// Takes in what the scheduler answered.
    pub(super) fn listed(&mut self, (began, answer): Listed, records: &Records) {
        match answer {
            Ok(jobs) => {
                self.health.scheduler_answered();
                self.tempo.listed(self.mind.world().listing.is_none());
                self.mind.listed(began, jobs);
                // It may have learnt only now what it can do.
                self.mind.hands_over(self.hands.scheduler.batching());
                let waiting = self.hands.scheduler.waiting();
                let events = self.mind.waits(self.now(), waiting);
                self.tell(events, records);
            }
            Err(error) => {
                self.health.scheduler_failed(&error);
                self.tempo.listing_failed();
                tracing::warn!(%error, "the scheduler's listing failed; nothing is concluded from it");
            }
        }
    }

    /// Takes in what the API showed. What fails changes nothing.
    pub(super) fn saw(
        &mut self,
        seen: Result<Result<Look, Error>, tokio::task::JoinError>,
        records: &Records,
    ) {
        self.tempo.looked(self.began.elapsed());
        let lost = std::mem::take(&mut self.lost_locks);
        if lost > 0 {
            tracing::info!(
                containers = lost,
                "containers changed before they could be locked: another dispatcher was quicker, or their users were"
            );
        }
        match seen {
            Ok(Ok(look)) => {
                self.health.api_answered();
                self.refused = RefusalTimer::new(self.refusal_window);
                let events = self.mind.looked(self.now(), look);
                self.tell(events, records);
            }
            Ok(Err(error)) => {
                self.mind.look_failed();
                let error = self.trouble(&error);
                tracing::warn!(%error, "the look at the API failed; nothing is concluded from it");
            }
            Err(_) => {
                self.mind.look_failed();
                return;
            }
        }
        let (waiting, started) = self.mind.candidates(self.now());
        let fits = self.hands.scheduler.admit(&waiting, &started);
        let events = self.mind.admitted(&waiting, fits);
        self.tell(events, records);
        self.health.view(View {
            world: self.mind.world(),
            room: self.hands.scheduler.room(),
            breaker_open: !self.mind.may_start(self.now()),
            shunned: self.mind.shunned(self.now()),
        });
    }

    /// A look at the API failed: what is said of it.
    fn trouble<'a>(&mut self, error: &'a Error) -> Trouble<'a> {
        let is_over = self.refused.has_failed(error, Instant::now().into_std());
        // A token that never worked needs no time to recover.
        let lasts = is_over || self.swept.is_none();
        let trouble = Trouble { error, lasts };
        self.health.api_failed(&trouble);
        self.tempo.look_failed(Instant::now(), error.retry_after());
        trouble
    }
}
