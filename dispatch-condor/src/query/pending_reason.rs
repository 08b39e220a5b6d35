//! The pending reason of each waiting job, in plain words, and whether an administrator must act.
//! Pure.
//!
//! Codes: HTCondor manual, HoldReasonCode. An unknown reason is quoted as HTCondor gives it.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::model::resources::Admission;
use dispatch_core::scheduler::{PendingOutlook, PendingReason};
use jiff::Timestamp;

use crate::query::condor_q::{JobAd, JobState};

/// HoldReasonCode of a job that a user or an administrator put on hold.
pub const HOLD_BY_USER: i64 = 1;
/// HoldReasonCode of a job that used more memory than it was given.
pub const HOLD_OUT_OF_MEMORY: i64 = 34;

/// A suffix for HTCondor's words with the requested memory, if that is a plain number. The slot may
/// have given more.
pub fn requested_memory(ad: &JobAd) -> String {
    match ad.needs().ram >> 20 {
        0 => String::new(),
        asked => format!("; it asked for {asked} MiB"),
    }
}

/// Whether a HoldReasonCode means that the run time limit is reached.
pub fn is_out_of_time(code: i64) -> bool {
    matches!(code, 46 | 47)
}

/// The pending reasons of jobs. `fit` says whether any slot could run a job. `unmatched` has the
/// auto clusters that match no slot, with the reason.
pub fn pending_reasons(
    ads: &[JobAd],
    fit: impl Fn(&JobAd) -> Admission,
    unmatched: &BTreeMap<i64, String>,
) -> BTreeMap<ContainerUuid, PendingReason> {
    // HTCondor sets the reason on one job of each auto cluster.
    let reasons: BTreeMap<i64, &str> = ads
        .iter()
        .filter_map(|ad| Some((ad.auto_cluster_id?, ad.last_rej_match_reason.as_deref()?)))
        .collect();
    let alike = |ad: &JobAd| reasons.get(&ad.auto_cluster_id?).copied();
    let waits = ads.iter().filter_map(|ad| {
        let container = ContainerUuid::parse(ad.container()).ok()?;
        let never = ad.auto_cluster_id.and_then(|id| unmatched.get(&id));
        let never = never.map(String::as_str);
        Some((container, pending_reason(ad, alike(ad), never, || fit(ad))?))
    });
    waits.collect()
}

/// Running jobs whose execute node is lost: by id, the container and the pending reason.
pub fn disconnected_jobs(ads: &[JobAd]) -> BTreeMap<String, (String, String)> {
    let lost = ads.iter().filter_map(|ad| {
        let reason = describe_disconnect(ad)?;
        Some((ad.id(), (ad.container().to_owned(), reason)))
    });
    lost.collect()
}

/// The pending reason of a job; none if it does not wait.
fn pending_reason(
    ad: &JobAd,
    rejected: Option<&str>,
    never: Option<&str>,
    fit: impl FnOnce() -> Admission,
) -> Option<PendingReason> {
    let (outlook, words) = match ad.state() {
        JobState::Suspended => (
            PendingOutlook::Paused,
            "to be resumed: its execute node suspended it".to_owned(),
        ),
        // The description's periodic_remove will remove it, but not while a person holds it.
        JobState::Idle if ad.may_have_run() => return None,
        JobState::Held if ad.may_have_run() && !is_held_by_user(ad) => return None,
        JobState::Held => (PendingOutlook::NeedsAdmin, describe_hold(ad)),
        JobState::Idle => describe_idle(ad, rejected, never, fit()),
        JobState::Running => (PendingOutlook::Paused, describe_disconnect(ad)?),
        JobState::Removed => {
            let lost = describe_disconnect(ad)?;
            let words =
                format!("to be removed, and {lost} (`condor_rm -forcex` removes it at once)");
            (PendingOutlook::Paused, words)
        }
        _ => return None,
    };
    Some(PendingReason {
        outlook,
        text: format!("HTCondor job {} waits {words}", ad.id()),
    })
}

/// Words for a job whose execute node is disconnected; it may still run there.
fn describe_disconnect(ad: &JobAd) -> Option<String> {
    let (since, lease) = ad.disconnected()?;
    let node = ad.node().unwrap_or_else(|| "its execute node".to_owned());
    let since = Timestamp::from_second(since).ok()?;
    let given_up = match lease {
        Some(lease @ 1..) => format!("; HTCondor gives the job up {} min later", lease / 60),
        _ => String::new(),
    };
    let since = since.strftime("%Y-%m-%d %H:%M:%S UTC");
    Some(format!(
        "for {node} to reconnect: HTCondor lost the connection at {since}{given_up}"
    ))
}

fn describe_idle(
    ad: &JobAd,
    raw: Option<&str>,
    never: Option<&str>,
    fit: Admission,
) -> (PendingOutlook, String) {
    let never = match &fit {
        Admission::Never(why) => Some(why.as_str()),
        _ => never,
    };
    if let Some(why) = never {
        let words = format!("for a machine that could run it: {why}");
        return (PendingOutlook::NeedsAdmin, words);
    }
    let words = match (ad.has_started(), ad.node()) {
        (true, Some(node)) => format!("for another machine: it could not start on {node}"),
        _ => describe_reason(raw.unwrap_or_default()).to_owned(),
    };
    let raw = raw.map(|raw| format!(" ({})", raw.trim()));
    let raw = raw.unwrap_or_default();
    (PendingOutlook::Transient, words + &raw)
}

/// Words for the negotiator's reason to give a job no slot.
fn describe_reason(reason: &str) -> &'static str {
    let has = |word: &str| reason.to_ascii_lowercase().contains(word);
    match () {
        () if reason.is_empty() => "for the negotiator to consider it",
        () if has("concurrency limit") => "for other jobs to end: a concurrency limit is reached",
        () if has("submitter limit") => "for its turn: its user has reached its share of the pool",
        () if has("quota") => "for other jobs of its group to end",
        () if has("preempt") || has("priority") || has("rank") => {
            "for its turn: jobs of higher priority come first"
        }
        () if has("no match") => "for room: no slot that it could use is free",
        () => "for a reason that HTCondor gives",
    }
}

fn is_held_by_user(ad: &JobAd) -> bool {
    ad.hold().is_some_and(|(_, code)| code == HOLD_BY_USER)
}

fn describe_hold(ad: &JobAd) -> String {
    let (reason, code) = ad.hold().unwrap_or_default();
    let words = match code {
        HOLD_BY_USER => "to be released: a user or administrator held it (condor_release)",
        3 | 5 | 26 | 27 => "to be released: a rule of this pool held it",
        15 | 16 => "to be released: it was held from the beginning",
        6 | 14 | 23 => "for an administrator: its machine cannot start crunch-run",
        7..=13 | 18 | 32 | 33 => "for an administrator: its files could not be transferred",
        21 => "to be released: its machine held it",
        22 => "for an administrator: its event log cannot be written",
        HOLD_OUT_OF_MEMORY => "to be released: it used more memory than it was given",
        code if is_out_of_time(code) => "to be released: its time was over",
        _ => "to be released: HTCondor holds it",
    };
    let requested = match code {
        HOLD_OUT_OF_MEMORY => requested_memory(ad),
        _ => String::new(),
    };
    match (code, ad.hold_reason_sub_code) {
        (0, _) => format!("{words} ({reason})"),
        (_, Some(sub @ 1..)) => format!("{words} ({reason}; code {code}.{sub}{requested})"),
        _ => format!("{words} ({reason}; code {code}{requested})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(more: &str, fit: Admission) -> Option<(PendingOutlook, String)> {
        const UUID: &str = "zzzzz-dz642-queuedcontainer";
        let text =
            format!(r#"[{{"ClusterId": 12, "ProcId": 3, "ContainerUUID": "{UUID}", {more}}}]"#);
        let ads = crate::query::condor_q::parse(&text).unwrap();
        let unmatched = BTreeMap::from([(7, "no slot meets: TARGET.HasX".to_owned())]);
        let (_, waiting) = pending_reasons(&ads, |_| fit.clone(), &unmatched).pop_first()?;
        let words = waiting.text.strip_prefix("HTCondor job 12.3 waits ");
        Some((waiting.outlook, words.unwrap().to_owned()))
    }

    #[test]
    fn every_job_that_waits_says_for_what() {
        use PendingOutlook::{NeedsAdmin, Paused, Transient};
        #[rustfmt::skip]
        let rows = [
            (r#""JobStatus": 1"#, Transient, "for the negotiator to consider it"),
            (r#""JobStatus": 1, "AutoClusterId": 7, "LastRejMatchReason": "no match found ""#, NeedsAdmin, "for a machine that could run it: no slot meets: TARGET.HasX"),
            (r#""JobStatus": 2, "RemoteHost": "slot1@n1", "JobDisconnectedDate": 1790000000, "JobLeaseDuration": 2400"#, Paused, "for n1 to reconnect: HTCondor lost the connection at 2026-09-21 14:13:20 UTC; HTCondor gives the job up 40 min later"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "no match found ""#, Transient, "for room: no slot that it could use is free (no match found)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "concurrency limit x reached""#, Transient, "for other jobs to end: a concurrency limit is reached (concurrency limit x reached)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "submitter limit exceeded""#, Transient, "for its turn: its user has reached its share of the pool (submitter limit exceeded)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "PREEMPTION_REQUIREMENTS == False""#, Transient, "for its turn: jobs of higher priority come first (PREEMPTION_REQUIREMENTS == False)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "moon""#, Transient, "for a reason that HTCondor gives (moon)"),
            (r#""JobStatus": 1, "NumJobStarts": 1, "NumJobCompletions": 1, "LastRemoteHost": "slot1@n1""#, Transient, "for another machine: it could not start on n1"),
            (r#""JobStatus": 3, "RemoteHost": "slot1@n1", "JobDisconnectedDate": 1790000000"#, Paused, "to be removed, and for n1 to reconnect: HTCondor lost the connection at 2026-09-21 14:13:20 UTC (`condor_rm -forcex` removes it at once)"),
            (r#""JobStatus": 7"#, Paused, "to be resumed: its execute node suspended it"),
            (r#""JobStatus": 5, "HoldReasonCode": 1, "HoldReasonSubCode": 0, "HoldReason": "via condor_hold""#, NeedsAdmin, "to be released: a user or administrator held it (condor_release) (via condor_hold; code 1)"),
            (r#""JobStatus": 5, "HoldReasonCode": 13, "HoldReasonSubCode": 2, "HoldReason": "no file""#, NeedsAdmin, "for an administrator: its files could not be transferred (no file; code 13.2)"),
            (r#""JobStatus": 5, "HoldReasonCode": 34, "HoldReason": "over", "RequestMemory": 256"#, NeedsAdmin, "to be released: it used more memory than it was given (over; code 34; it asked for 256 MiB)"),
            (r#""JobStatus": 5"#, NeedsAdmin, "to be released: HTCondor holds it (no reason given)"),
        ];
        for (more, outlook, words) in rows {
            assert_eq!(
                told(more, Admission::Now),
                Some((outlook, words.to_owned())),
                "{more}"
            );
        }
    }

    #[test]
    fn what_no_slot_could_run_needs_somebody() {
        let never = || Admission::Never("it asks for 5 CPUs".into());
        let expected = "for a machine that could run it: it asks for 5 CPUs";
        let told_idle = told(r#""JobStatus": 1"#, never());
        assert_eq!(
            told_idle,
            Some((PendingOutlook::NeedsAdmin, expected.into()))
        );
        assert_eq!(told(r#""JobStatus": 2"#, never()), None);
    }

    #[test]
    fn what_may_have_run_waits_only_for_the_person_who_holds_it() {
        let held = r#""JobStatus": 5, "NumJobStarts": 1, "HoldReasonCode": 1"#;
        let words = "to be released: a user or administrator held it (condor_release) (no reason given; code 1)";
        let expected = (PendingOutlook::NeedsAdmin, words.to_owned());
        assert_eq!(told(held, Admission::Now), Some(expected));
        for status in [1, 5] {
            let started = format!(r#""JobStatus": {status}, "NumJobStarts": 1"#);
            assert_eq!(told(&started, Admission::Now), None);
        }
    }
}
