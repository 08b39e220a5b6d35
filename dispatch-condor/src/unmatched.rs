//! Jobs that no slot of the pool could take, though there is room for them: a condition of theirs asks for what no machine
//! is. HTCondor only says "no match found", as it does where all is taken; asked about one job it tells more. That is
//! asked seldom, and of one of many that are alike for the negotiator (`AutoClusterId`).

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::analysis;
use crate::listing::{Ad, State};

/// An answer holds for so long: machines come and go.
const HOLDS: Duration = Duration::from_secs(600);
/// Between two questions.
const PAUSE: Duration = Duration::from_secs(30);

/// What was asked, and what came of it.
#[derive(Debug, Default)]
pub struct Unmatched(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    asked: Option<Instant>,
    /// By `AutoClusterId`: when it was asked, and what no slot meets.
    answers: BTreeMap<i64, (Instant, Option<String>)>,
}

impl Unmatched {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of those that are alike no slot could take, and why.
    pub fn all(&self) -> BTreeMap<i64, String> {
        let known = self.known();
        let never = known.answers.iter();
        never
            .filter_map(|(kind, (_, why))| Some((*kind, why.clone()?)))
            .collect()
    }

    /// Asks about one job of the newest listing, if it is time for that; whether it did.
    pub async fn look(&self, ads: &[Ad], patience: Duration) -> bool {
        let Some((kind, ad)) = self.known().next(ads, Instant::now()) else {
            return false;
        };
        let why = analysis::never(&ad.id(), &ad.needs(), patience).await;
        self.known().answers.insert(kind, (Instant::now(), why));
        true
    }
}

impl Known {
    /// Whom to ask about now: the kind that was never asked about, or the one whose answer is oldest.
    fn next<'a>(&mut self, ads: &'a [Ad], now: Instant) -> Option<(i64, &'a Ad)> {
        let kinds: BTreeMap<i64, &Ad> = ads
            .iter()
            .filter(|ad| ad.state() == State::Idle)
            .filter(|ad| is_without_match(ad) && ad.asks_plainly())
            .filter_map(|ad| Some((ad.auto_cluster_id?, ad)))
            .collect();
        // What HTCondor numbers anew, and what has its match, is forgotten.
        let alike: Vec<i64> = ads.iter().filter_map(|ad| ad.auto_cluster_id).collect();
        self.answers.retain(|kind, _| alike.contains(kind));
        if self.asked.is_some_and(|at| now.duration_since(at) < PAUSE) {
            return None;
        }
        let asked = |kind: &i64| self.answers.get(kind).map(|(at, _)| *at);
        let due = |kind: &i64| asked(kind).is_none_or(|at| now.duration_since(at) >= HOLDS);
        let kind = kinds.keys().copied().filter(due).min_by_key(asked)?;
        self.asked = Some(now);
        Some((kind, kinds[&kind]))
    }
}

fn is_without_match(ad: &Ad) -> bool {
    let reason = ad.last_rej_match_reason.as_deref().unwrap_or_default();
    reason.to_ascii_lowercase().contains("no match")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ads(rows: &[(i64, i64, &str)]) -> Vec<Ad> {
        let row = |(cluster, kind, reason): &(i64, i64, &str)| {
            format!(
                r#"{{"ClusterId": {cluster}, "JobStatus": 1, "AutoClusterId": {kind}, "LastRejMatchReason": "{reason}", "RequestCpus": 1, "RequestMemory": 1, "RequestDisk": 1}}"#
            )
        };
        let rows: Vec<String> = rows.iter().map(row).collect();
        crate::listing::parse(&format!("[{}]", rows.join(","))).unwrap()
    }

    #[test]
    fn each_kind_is_asked_about_once_in_a_while() {
        let mut known = Known::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let none = "no match found";
        let jobs = ads(&[
            (1, 7, none),
            (2, 7, none),
            (3, 8, none),
            (4, 9, "submitter limit"),
        ]);
        let mut ask = |seconds, jobs: &[Ad]| {
            let next = known.next(jobs, at(seconds))?;
            known.answers.insert(next.0, (at(seconds), None));
            Some(next.0)
        };
        let asked = [0, 10, 31, 70, 599, 601, 640].map(|seconds| ask(seconds, &jobs));
        assert_eq!(
            asked,
            [Some(7), None, Some(8), None, None, Some(7), Some(8)]
        );
        assert_eq!(ask(2000, &ads(&[(4, 9, "submitter limit")])), None);
        assert!(known.answers.is_empty());
    }
}
