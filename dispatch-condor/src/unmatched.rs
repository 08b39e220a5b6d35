//! Jobs that no slot of the pool could take, though there is room for them: a condition of theirs asks for what no machine
//! is. HTCondor only says "no match found", as it does where all is taken; asked about one job it tells more. That is
//! asked seldom, and of one of many that are alike for the negotiator (`AutoClusterId`).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dispatch_core::needs::Needs;

use crate::analysis::{self, Verdict};
use crate::listing::{Ad, State};

/// It is asked again after so long: machines come and go.
const HOLDS: Duration = Duration::from_secs(600);
/// Between two questions, and how long a command may take: jobs are more important.
const PAUSE: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(20);
/// Commands that a question takes.
pub const COMMANDS: u32 = 2;

/// What was asked, and what came of it.
#[derive(Debug, Default, Clone)]
pub struct Unmatched(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// When the last question was asked, and whether it is still open.
    asked: Option<Instant>,
    open: bool,
    /// By `AutoClusterId`, a number that HTCondor gives to others when it begins to count anew.
    answers: BTreeMap<i64, Answer>,
}

#[derive(Debug)]
struct Answer {
    /// Of which job; it holds while that one waits.
    job: String,
    /// When it was last asked for.
    asked: Instant,
    /// For how long it is not asked for again: ever longer where nothing is told.
    holds: Duration,
    /// How often in a row nothing was told.
    unknown: u32,
    /// What no slot meets.
    never: Option<String>,
}

/// One job of a kind.
#[derive(Debug, Clone)]
struct Question {
    kind: i64,
    job: String,
    needs: Needs,
}

impl Unmatched {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which of those that are alike in the newest listing no slot could take, and why.
    pub fn all(&self, ads: &[Ad]) -> BTreeMap<i64, String> {
        let kinds = without_match(ads);
        let mut known = self.known();
        known.forget_others(ads);
        let never = known.answers.iter();
        never
            .filter(|(kind, _)| kinds.contains_key(kind))
            .filter_map(|(kind, answer)| Some((*kind, answer.never.clone()?)))
            .collect()
    }

    /// Asks about one job of the newest listing, aside, if it is time for that; whether it does.
    pub fn ask(&self, ads: &[Ad], patience: Duration) -> bool {
        let Some(question) = self.known().next(ads, Instant::now()) else {
            return false;
        };
        let own = self.clone();
        tokio::spawn(async move {
            let patience = patience.min(PATIENCE);
            let verdict = analysis::verdict(&question.job, &question.needs, patience).await;
            own.known().learn(question, verdict, Instant::now());
        });
        true
    }
}

impl Known {
    /// An answer is of one job. When that does not wait any more, or counts to others, another of its kind is asked about.
    fn forget_others(&mut self, ads: &[Ad]) {
        let waiting: BTreeMap<String, Option<i64>> = ads
            .iter()
            .filter(|ad| ad.state() == State::Idle)
            .map(|ad| (ad.id(), ad.auto_cluster_id))
            .collect();
        self.answers
            .retain(|kind, answer| waiting.get(&answer.job) == Some(&Some(*kind)));
    }

    /// Whom to ask about now: the kind that was never asked about, or the one whose answer is oldest.
    fn next(&mut self, ads: &[Ad], now: Instant) -> Option<Question> {
        let recently = |at: Instant| now.duration_since(at) < PAUSE;
        if self.open || self.asked.is_some_and(recently) {
            return None;
        }
        self.forget_others(ads);
        let kinds = without_match(ads);
        let asked = |kind: &i64| self.answers.get(kind).map(|answer| answer.asked);
        let is_old = |answer: &Answer| now.duration_since(answer.asked) >= answer.holds;
        let due = |kind: &i64| self.answers.get(kind).is_none_or(is_old);
        let kind = kinds.keys().copied().filter(due).min_by_key(asked)?;
        // The job that was asked about before, if there is one.
        let earlier = self.answers.get(&kind).map(|answer| answer.job.as_str());
        let same = ads.iter().find(|ad| Some(ad.id().as_str()) == earlier);
        let ad = same.unwrap_or(kinds[&kind]);
        (self.asked, self.open) = (Some(now), true);
        Some(Question {
            kind,
            job: ad.id(),
            needs: ad.needs(),
        })
    }

    /// What could not be told changes nothing that is known.
    fn learn(&mut self, question: Question, verdict: Verdict, now: Instant) {
        self.open = false;
        let Question { kind, job, .. } = question;
        let known = self.answers.remove(&kind).filter(|known| known.job == job);
        let earlier = known.as_ref().map(|known| known.unknown);
        let unknown = match verdict {
            Verdict::Unknown => earlier.unwrap_or_default().saturating_add(1),
            _ => 0,
        };
        let (never, holds) = match verdict {
            Verdict::Never(why) => (Some(why), HOLDS),
            Verdict::Matches => (None, HOLDS),
            Verdict::Unknown => {
                let pause = PAUSE * 2u32.saturating_pow(unknown - 1).min(64);
                (known.and_then(|known| known.never), pause.min(HOLDS))
            }
        };
        let answer = Answer {
            job,
            asked: now,
            holds,
            unknown,
            never,
        };
        self.answers.insert(kind, answer);
    }
}

/// One job of each kind that waits, and of which HTCondor says that it has no match.
fn without_match(ads: &[Ad]) -> BTreeMap<i64, &Ad> {
    let waits = ads.iter().filter(|ad| ad.state() == State::Idle);
    waits
        .filter(|ad| is_without_match(ad) && ad.asks_plainly())
        .filter_map(|ad| Some((ad.auto_cluster_id?, ad)))
        .collect()
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

    const NONE: &str = "no match found";

    fn at(begun: Instant, seconds: u64) -> Instant {
        begun + Duration::from_secs(seconds)
    }

    #[test]
    fn each_kind_is_asked_about_once_in_a_while() {
        let mut known = Known::default();
        let begun = Instant::now();
        let jobs = ads(&[
            (1, 7, NONE),
            (2, 7, NONE),
            (3, 8, NONE),
            (4, 9, "submitter limit"),
        ]);
        let mut ask = |seconds, jobs: &[Ad]| {
            let next = known.next(jobs, at(begun, seconds))?;
            assert!(known.next(jobs, at(begun, seconds + 100)).is_none(), "open");
            let kind = next.kind;
            known.learn(next, Verdict::Matches, at(begun, seconds));
            Some(kind)
        };
        let asked = [0, 10, 31, 70, 599, 601, 640].map(|seconds| ask(seconds, &jobs));
        assert_eq!(
            asked,
            [Some(7), None, Some(8), None, None, Some(7), Some(8)]
        );
        assert_eq!(ask(2000, &ads(&[(4, 9, "submitter limit")])), None);
        assert!(known.answers.is_empty());
    }

    #[test]
    fn what_could_not_be_told_is_asked_again_soon() {
        let (mut known, begun, jobs) = (Known::default(), Instant::now(), ads(&[(1, 7, NONE)]));
        for (seconds, asked, verdict) in [
            (0, true, Verdict::Unknown),
            (29, false, Verdict::Unknown),
            (30, true, Verdict::Never("no such GPU".into())),
            (100, false, Verdict::Unknown),
            (630, true, Verdict::Unknown),
            (660, true, Verdict::Unknown),
            (700, false, Verdict::Unknown),
            (720, true, Verdict::Matches),
        ] {
            let next = known.next(&jobs, at(begun, seconds));
            assert_eq!(next.is_some(), asked, "after {seconds} s");
            if let Some(question) = next {
                known.learn(question, verdict, at(begun, seconds));
            }
        }
    }

    #[test]
    fn an_answer_holds_for_its_job_while_that_has_no_match() {
        let begun = Instant::now();
        let why = "no slot meets it";
        let of = |jobs: &[(i64, i64, &str)], verdict: Verdict| {
            let unmatched = Unmatched::default();
            let first = ads(&[(1, 7, NONE), (2, 7, NONE)]);
            for (seconds, verdict) in [(0, Verdict::Never(why.into())), (700, verdict)] {
                let question = unmatched.known().next(&first, at(begun, seconds)).unwrap();
                let job = question.job.clone();
                unmatched
                    .known()
                    .learn(question, verdict, at(begun, seconds));
                assert_eq!(job, "2.0", "the same job is asked about again");
            }
            unmatched.all(&ads(jobs)).remove(&7)
        };
        let told = || Some(why.to_owned());
        let both = [(1, 7, NONE), (2, 7, NONE)];
        assert_eq!(of(&both, Verdict::Unknown), told());
        assert_eq!(
            of(&both, Verdict::Never("other".into())).as_deref(),
            Some("other")
        );
        assert_eq!(of(&both, Verdict::Matches), None);
        assert_eq!(
            of(&[(1, 7, NONE)], Verdict::Unknown),
            None,
            "its job is gone"
        );
        assert_eq!(
            of(&[(2, 8, NONE), (3, 7, NONE)], Verdict::Unknown),
            None,
            "counted anew"
        );
        let later = [(1, 7, "submitter limit"), (2, 7, "submitter limit")];
        assert_eq!(of(&later, Verdict::Unknown), None, "another reason");
    }
}
