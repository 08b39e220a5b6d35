//! What a job waits for, in plain words, and whether it will pass. Pure. Codes: HTCondor manual, HoldReasonCode; what is
//! not known here is told as HTCondor says it.

use std::collections::BTreeMap;

use arvados_client::ContainerUuid;
use dispatch_core::needs::Fit;
use dispatch_core::scheduler::{Outlook, Waiting};
use jiff::Timestamp;

use crate::listing::{Ad, State};

/// It used more memory than it was given.
pub const OUT_OF_MEMORY: i64 = 34;

/// How much memory it asked for, where that is a plain number, to be said after HTCondor's words; its slot may have given
/// more.
pub fn asked_memory(ad: &Ad) -> String {
    match ad.needs().ram >> 20 {
        0 => String::new(),
        asked => format!("; it asked for {asked} MiB"),
    }
}

/// The time it may run is over.
pub fn is_out_of_time(code: i64) -> bool {
    matches!(code, 46 | 47)
}

/// What our jobs wait for. `fit` says whether any slot could run one, `unmatched` which of those that are alike for the
/// negotiator no slot could take, and why.
pub fn all(
    ads: &[Ad],
    fit: impl Fn(&Ad) -> Fit,
    unmatched: &BTreeMap<i64, String>,
) -> BTreeMap<ContainerUuid, Waiting> {
    // HTCondor says why a job was given no slot of one of many that are alike.
    let reasons: BTreeMap<i64, &str> = ads
        .iter()
        .filter_map(|ad| Some((ad.auto_cluster_id?, ad.last_rej_match_reason.as_deref()?)))
        .collect();
    let alike = |ad: &Ad| reasons.get(&ad.auto_cluster_id?).copied();
    let waits = ads.iter().filter_map(|ad| {
        let container = ContainerUuid::parse(ad.container()).ok()?;
        let never = ad.auto_cluster_id.and_then(|id| unmatched.get(&id));
        let never = never.map(String::as_str);
        Some((container, waiting(ad, alike(ad), never, || fit(ad))?))
    });
    waits.collect()
}

/// Running jobs whose machine HTCondor has lost: by their numbers, their containers and what each waits for.
pub fn lost(ads: &[Ad]) -> BTreeMap<String, (String, String)> {
    let lost = ads
        .iter()
        .filter_map(|ad| Some((ad.id(), (ad.container().to_owned(), missed(ad)?))));
    lost.collect()
}

/// What one of our jobs waits for; none, if it does not wait.
fn waiting(
    ad: &Ad,
    rejected: Option<&str>,
    never: Option<&str>,
    fit: impl FnOnce() -> Fit,
) -> Option<Waiting> {
    let (outlook, words) = match ad.state() {
        State::Suspended => (
            Outlook::Passes,
            "to be resumed: its machine has stopped it for a while".to_owned(),
        ),
        // It will be removed.
        State::Idle | State::Held if ad.may_have_run() => return None,
        State::Held => (Outlook::NeedsSomebody, held(ad)),
        State::Idle => idle(ad, rejected, never, fit()),
        State::Running => (Outlook::Passes, missed(ad)?),
        _ => return None,
    };
    Some(Waiting {
        outlook,
        words: format!("HTCondor job {} waits {words}", ad.id()),
    })
}

/// To hear from a machine that HTCondor has lost the connection to. The job may be running there.
fn missed(ad: &Ad) -> Option<String> {
    let (since, lease) = ad.lost()?;
    let node = ad.node().unwrap_or_else(|| "its machine".to_owned());
    let since = Timestamp::from_second(since).ok()?;
    let given_up = match lease {
        Some(lease @ 1..) => format!(", and gives it up {} min later", lease / 60),
        _ => String::new(),
    };
    let since = since.strftime("%Y-%m-%d %H:%M:%S UTC");
    Some(format!(
        "to hear from {node}: HTCondor noted at {since} that the connection to it is lost{given_up}"
    ))
}

fn idle(ad: &Ad, raw: Option<&str>, never: Option<&str>, fit: Fit) -> (Outlook, String) {
    let never = match &fit {
        Fit::Never(why) => Some(why.as_str()),
        _ => never,
    };
    if let Some(why) = never {
        let words = format!("for a machine that could run it: {why}");
        return (Outlook::NeedsSomebody, words);
    }
    let words = match (ad.has_started(), ad.node()) {
        (true, Some(node)) => format!("for another machine: it could not start on {node}"),
        _ => because(raw.unwrap_or_default()).to_owned(),
    };
    let raw = raw.map(|raw| format!(" ({})", raw.trim()));
    let raw = raw.unwrap_or_default();
    (Outlook::Passes, words + &raw)
}

/// Why the negotiator gave it no slot.
fn because(reason: &str) -> &'static str {
    let has = |word: &str| reason.to_ascii_lowercase().contains(word);
    match () {
        () if reason.is_empty() => "for HTCondor to look at it",
        () if has("concurrency limit") => "for other jobs to end: of such jobs no more may run",
        () if has("submitter limit") => "for its turn: its user has his share of the pool",
        () if has("quota") => "for other jobs of its group to end",
        () if has("preempt") || has("priority") || has("rank") => "for its turn: others come first",
        () if has("no match") => "for room: no slot that it could use is free",
        () => "for something that HTCondor names",
    }
}

fn held(ad: &Ad) -> String {
    let (reason, code) = ad.hold().unwrap_or_default();
    let words = match code {
        1 => "to be released: somebody held it (condor_release)",
        3 | 5 | 26 | 27 => "to be released: a rule of this pool held it",
        15 | 16 => "to be released: it was held from the beginning",
        6 | 14 | 23 => "for an administrator: its machine cannot start crunch-run",
        7..=13 | 18 | 32 | 33 => "for an administrator: its files could not be transferred",
        21 => "to be released: its machine held it",
        22 => "for an administrator: its event log cannot be written",
        OUT_OF_MEMORY => "to be released: it used more memory than it was given",
        code if is_out_of_time(code) => "to be released: its time was over",
        _ => "to be released: HTCondor holds it",
    };
    let asked = match code {
        OUT_OF_MEMORY => asked_memory(ad),
        _ => String::new(),
    };
    match (code, ad.hold_reason_sub_code) {
        (0, _) => format!("{words} ({reason})"),
        (_, Some(sub @ 1..)) => format!("{words} ({reason}; code {code}.{sub}{asked})"),
        _ => format!("{words} ({reason}; code {code}{asked})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(more: &str, fit: Fit) -> Option<(Outlook, String)> {
        const UUID: &str = "zzzzz-dz642-queuedcontainer";
        let text =
            format!(r#"[{{"ClusterId": 12, "ProcId": 3, "ContainerUUID": "{UUID}", {more}}}]"#);
        let ads = crate::listing::parse(&text).unwrap();
        let unmatched = BTreeMap::from([(7, "no slot meets: TARGET.HasX".to_owned())]);
        let (_, waiting) = all(&ads, |_| fit.clone(), &unmatched).pop_first()?;
        let words = waiting.words.strip_prefix("HTCondor job 12.3 waits ");
        Some((waiting.outlook, words.unwrap().to_owned()))
    }

    #[test]
    fn every_job_that_waits_says_for_what() {
        use Outlook::{NeedsSomebody, Passes};
        #[rustfmt::skip]
        let rows = [
            (r#""JobStatus": 1"#, Passes, "for HTCondor to look at it"),
            (r#""JobStatus": 1, "AutoClusterId": 7, "LastRejMatchReason": "no match found ""#, NeedsSomebody, "for a machine that could run it: no slot meets: TARGET.HasX"),
            (r#""JobStatus": 2, "RemoteHost": "slot1@n1", "JobDisconnectedDate": 1790000000, "JobLeaseDuration": 2400"#, Passes, "to hear from n1: HTCondor noted at 2026-09-21 14:13:20 UTC that the connection to it is lost, and gives it up 40 min later"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "no match found ""#, Passes, "for room: no slot that it could use is free (no match found)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "concurrency limit x reached""#, Passes, "for other jobs to end: of such jobs no more may run (concurrency limit x reached)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "submitter limit exceeded""#, Passes, "for its turn: its user has his share of the pool (submitter limit exceeded)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "PREEMPTION_REQUIREMENTS == False""#, Passes, "for its turn: others come first (PREEMPTION_REQUIREMENTS == False)"),
            (r#""JobStatus": 1, "AutoClusterId": 1, "LastRejMatchReason": "moon""#, Passes, "for something that HTCondor names (moon)"),
            (r#""JobStatus": 1, "NumJobStarts": 1, "NumJobCompletions": 1, "LastRemoteHost": "slot1@n1""#, Passes, "for another machine: it could not start on n1"),
            (r#""JobStatus": 7"#, Passes, "to be resumed: its machine has stopped it for a while"),
            (r#""JobStatus": 5, "HoldReasonCode": 1, "HoldReasonSubCode": 0, "HoldReason": "via condor_hold""#, NeedsSomebody, "to be released: somebody held it (condor_release) (via condor_hold; code 1)"),
            (r#""JobStatus": 5, "HoldReasonCode": 13, "HoldReasonSubCode": 2, "HoldReason": "no file""#, NeedsSomebody, "for an administrator: its files could not be transferred (no file; code 13.2)"),
            (r#""JobStatus": 5, "HoldReasonCode": 34, "HoldReason": "over", "RequestMemory": 256"#, NeedsSomebody, "to be released: it used more memory than it was given (over; code 34; it asked for 256 MiB)"),
            (r#""JobStatus": 5"#, NeedsSomebody, "to be released: HTCondor holds it (no reason given)"),
        ];
        for (more, outlook, words) in rows {
            assert_eq!(
                told(more, Fit::Now),
                Some((outlook, words.to_owned())),
                "{more}"
            );
        }
    }

    #[test]
    fn what_no_slot_could_run_needs_somebody() {
        let never = || Fit::Never("it asks for 5 CPUs".into());
        let expected = "for a machine that could run it: it asks for 5 CPUs";
        let told_idle = told(r#""JobStatus": 1"#, never());
        assert_eq!(told_idle, Some((Outlook::NeedsSomebody, expected.into())));
        assert_eq!(told(r#""JobStatus": 2"#, never()), None);
    }

    #[test]
    fn what_may_have_run_waits_for_nothing() {
        for status in [1, 5] {
            let started = format!(r#""JobStatus": {status}, "NumJobStarts": 1"#);
            assert_eq!(told(&started, Fit::Now), None);
        }
    }
}
