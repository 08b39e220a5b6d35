//! Finds jobs that no slot matches although enough is free, by a probe of one job per auto cluster.
//!
//! In the queue HTCondor only says "no match found", as it does when all slots are busy; `condor_q
//! -better-analyze` of one job says more. A probe runs in the background, seldom, and for one job
//! of each `AutoClusterId`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dispatch_core::model::resources::ResourceRequest;
use parking_lot::Mutex;

use crate::query::better_analyze::{self, MatchVerdict};
use crate::query::condor_q::{JobAd, JobState};

/// Lifetime of a verdict: machines join and leave.
const VERDICT_TTL: Duration = Duration::from_secs(600);
/// Minimum interval between two probes: other commands are more important.
const PROBE_INTERVAL: Duration = Duration::from_secs(30);
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Number of commands that a probe runs.
pub const COMMANDS_PER_PROBE: u32 = 2;

/// The verdicts of past probes.
#[derive(Debug, Default, Clone)]
pub struct MatchAnalysis(Arc<Mutex<AnalysisState>>);

#[derive(Debug, Default)]
struct AnalysisState {
    /// Time of the last probe.
    last_probe: Option<Instant>,
    in_progress: bool,
    /// By `AutoClusterId`. HTCondor may give the same number to other jobs after a restart.
    verdicts: BTreeMap<i64, CachedVerdict>,
}

#[derive(Debug)]
struct CachedVerdict {
    /// The job that was probed; the verdict is valid while that job waits.
    job: String,
    probed_at: Instant,
    /// Time until the next probe; it grows with each failed probe.
    ttl: Duration,
    /// Number of failed probes in a row.
    failures: u32,
    /// The reason why no slot matches; none if some slot matches.
    never: Option<String>,
}

/// The job to probe for its auto cluster.
#[derive(Debug, Clone)]
struct Probe {
    auto_cluster: i64,
    job: String,
    needs: ResourceRequest,
}

impl MatchAnalysis {
    /// The auto clusters of the newest listing that match no slot, with the reason.
    pub fn never_matching(&self, ads: &[JobAd]) -> BTreeMap<i64, String> {
        let kinds = jobs_without_match(ads);
        let mut state = self.0.lock();
        state.forget_stale(ads);
        let never = state.verdicts.iter();
        never
            .filter(|(kind, _)| kinds.contains_key(kind))
            .filter_map(|(kind, answer)| Some((*kind, answer.never.clone()?)))
            .collect()
    }

    /// Starts a probe of one job of the newest listing, in the background, if one is due. Returns
    /// whether it does.
    pub fn start_probe(&self, ads: &[JobAd], timeout: Duration) -> bool {
        let Some(probe) = self.0.lock().next_probe(ads, Instant::now()) else {
            return false;
        };
        let own = self.clone();
        tokio::spawn(async move {
            let timeout = timeout.min(PROBE_TIMEOUT);
            let verdict = better_analyze::match_verdict(&probe.job, &probe.needs, timeout).await;
            own.0.lock().record(probe, verdict, Instant::now());
        });
        true
    }
}

impl AnalysisState {
    /// Drops verdicts whose job does not wait any more or belongs to another auto cluster now.
    fn forget_stale(&mut self, ads: &[JobAd]) {
        let waiting: BTreeMap<String, Option<i64>> = ads
            .iter()
            .filter(|ad| ad.state() == JobState::Idle)
            .map(|ad| (ad.id(), ad.auto_cluster_id))
            .collect();
        self.verdicts
            .retain(|kind, answer| waiting.get(&answer.job) == Some(&Some(*kind)));
    }

    /// The next job to probe: of an auto cluster without a verdict, or of the one with the oldest
    /// verdict.
    fn next_probe(&mut self, ads: &[JobAd], now: Instant) -> Option<Probe> {
        let recently = |at: Instant| now.duration_since(at) < PROBE_INTERVAL;
        if self.in_progress || self.last_probe.is_some_and(recently) {
            return None;
        }
        self.forget_stale(ads);
        let kinds = jobs_without_match(ads);
        let probed_at = |kind: &i64| self.verdicts.get(kind).map(|answer| answer.probed_at);
        let is_old = |answer: &CachedVerdict| now.duration_since(answer.probed_at) >= answer.ttl;
        let due = |kind: &i64| self.verdicts.get(kind).is_none_or(is_old);
        let kind = kinds.keys().copied().filter(due).min_by_key(probed_at)?;
        // The job that was probed before, if it still waits.
        let earlier = self.verdicts.get(&kind).map(|answer| answer.job.as_str());
        let same = ads.iter().find(|ad| Some(ad.id().as_str()) == earlier);
        let ad = same.unwrap_or(kinds[&kind]);
        (self.last_probe, self.in_progress) = (Some(now), true);
        Some(Probe {
            auto_cluster: kind,
            job: ad.id(),
            needs: ad.needs(),
        })
    }

    /// Records the verdict of a probe. A failed probe keeps the earlier reason.
    fn record(&mut self, probe: Probe, verdict: MatchVerdict, now: Instant) {
        self.in_progress = false;
        let Probe {
            auto_cluster, job, ..
        } = probe;
        let known = self
            .verdicts
            .remove(&auto_cluster)
            .filter(|known| known.job == job);
        let (failures, never, ttl) = match verdict {
            MatchVerdict::Never(why) => (0, Some(why), VERDICT_TTL),
            MatchVerdict::Matches => (0, None, VERDICT_TTL),
            MatchVerdict::Unknown => {
                let earlier = known.map(|known| (known.failures, known.never));
                let (failures, never) = earlier.unwrap_or_default();
                let pause = PROBE_INTERVAL * 2u32.saturating_pow(failures).min(64);
                (failures.saturating_add(1), never, pause.min(VERDICT_TTL))
            }
        };
        let answer = CachedVerdict {
            job,
            probed_at: now,
            ttl,
            failures,
            never,
        };
        self.verdicts.insert(auto_cluster, answer);
    }
}

/// One waiting job of each auto cluster for which HTCondor found no match.
fn jobs_without_match(ads: &[JobAd]) -> BTreeMap<i64, &JobAd> {
    let waits = ads.iter().filter(|ad| ad.state() == JobState::Idle);
    waits
        .filter(|ad| is_without_match(ad) && ad.has_literal_requests())
        .filter_map(|ad| Some((ad.auto_cluster_id?, ad)))
        .collect()
}

fn is_without_match(ad: &JobAd) -> bool {
    let reason = ad.last_rej_match_reason.as_deref().unwrap_or_default();
    reason.to_ascii_lowercase().contains("no match")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ads(rows: &[(i64, i64, &str)]) -> Vec<JobAd> {
        let row = |(cluster, kind, reason): &(i64, i64, &str)| {
            format!(
                r#"{{"ClusterId": {cluster}, "JobStatus": 1, "AutoClusterId": {kind}, "LastRejMatchReason": "{reason}", "RequestCpus": 1, "RequestMemory": 1, "RequestDisk": 1}}"#
            )
        };
        let rows: Vec<String> = rows.iter().map(row).collect();
        crate::query::condor_q::parse(&format!("[{}]", rows.join(","))).unwrap()
    }

    const NONE: &str = "no match found";

    fn at(begun: Instant, seconds: u64) -> Instant {
        begun + Duration::from_secs(seconds)
    }

    #[test]
    fn each_kind_is_asked_about_once_in_a_while() {
        let mut state = AnalysisState::default();
        let begun = Instant::now();
        let jobs = ads(&[
            (1, 7, NONE),
            (2, 7, NONE),
            (3, 8, NONE),
            (4, 9, "submitter limit"),
        ]);
        let mut ask = |seconds, jobs: &[JobAd]| {
            let next = state.next_probe(jobs, at(begun, seconds))?;
            assert!(
                state.next_probe(jobs, at(begun, seconds + 100)).is_none(),
                "open"
            );
            let kind = next.auto_cluster;
            state.record(next, MatchVerdict::Matches, at(begun, seconds));
            Some(kind)
        };
        let probed = [0, 10, 31, 70, 599, 601, 640].map(|seconds| ask(seconds, &jobs));
        assert_eq!(
            probed,
            [Some(7), None, Some(8), None, None, Some(7), Some(8)]
        );
        assert_eq!(ask(2000, &ads(&[(4, 9, "submitter limit")])), None);
        assert!(state.verdicts.is_empty());
    }

    #[test]
    fn what_could_not_be_told_is_asked_again_soon() {
        let (mut state, begun, jobs) = (
            AnalysisState::default(),
            Instant::now(),
            ads(&[(1, 7, NONE)]),
        );
        for (seconds, asked, verdict) in [
            (0, true, MatchVerdict::Unknown),
            (29, false, MatchVerdict::Unknown),
            (30, true, MatchVerdict::Never("no such GPU".into())),
            (100, false, MatchVerdict::Unknown),
            (630, true, MatchVerdict::Unknown),
            (660, true, MatchVerdict::Unknown),
            (700, false, MatchVerdict::Unknown),
            (720, true, MatchVerdict::Matches),
        ] {
            let next = state.next_probe(&jobs, at(begun, seconds));
            assert_eq!(next.is_some(), asked, "after {seconds} s");
            if let Some(probe) = next {
                state.record(probe, verdict, at(begun, seconds));
            }
        }
    }

    #[test]
    fn an_answer_holds_for_its_job_while_that_has_no_match() {
        let begun = Instant::now();
        let why = "no slot meets it";
        let of = |jobs: &[(i64, i64, &str)], verdict: MatchVerdict| {
            let analysis = MatchAnalysis::default();
            let first = ads(&[(1, 7, NONE), (2, 7, NONE)]);
            for (seconds, verdict) in [(0, MatchVerdict::Never(why.into())), (700, verdict)] {
                let probe = analysis
                    .0
                    .lock()
                    .next_probe(&first, at(begun, seconds))
                    .unwrap();
                let job = probe.job.clone();
                analysis.0.lock().record(probe, verdict, at(begun, seconds));
                assert_eq!(job, "2.0", "the same job is asked about again");
            }
            analysis.never_matching(&ads(jobs)).remove(&7)
        };
        let expected = || Some(why.to_owned());
        let both = [(1, 7, NONE), (2, 7, NONE)];
        assert_eq!(of(&both, MatchVerdict::Unknown), expected());
        assert_eq!(
            of(&both, MatchVerdict::Never("other".into())).as_deref(),
            Some("other")
        );
        assert_eq!(of(&both, MatchVerdict::Matches), None);
        assert_eq!(
            of(&[(1, 7, NONE)], MatchVerdict::Unknown),
            None,
            "its job is gone"
        );
        assert_eq!(
            of(&[(2, 8, NONE), (3, 7, NONE)], MatchVerdict::Unknown),
            None,
            "counted anew"
        );
        let later = [(1, 7, "submitter limit"), (2, 7, "submitter limit")];
        assert_eq!(of(&later, MatchVerdict::Unknown), None, "another reason");
    }
}
