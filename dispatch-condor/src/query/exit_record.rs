//! Describes how a job ended in one sentence, from its ad in condor_history. Pure.
//!
//! Hold codes: HTCondor manual, HoldReasonCode.

use crunch_contract::ExitCode;
use dispatch_core::scheduler::{Eviction, ExitCause};

use crate::query::condor_q::{JobAd, JobState};
use crate::query::pending_reason::{
    HOLD_BY_USER, HOLD_OUT_OF_MEMORY, is_out_of_time, requested_memory,
};

/// VacateReasonCode after the shadow lost its starter.
const VACATED_SHADOW_EXCEPTION: i64 = 1002;
/// VacateReasonCode after a lost machine did not come back in time.
const VACATED_RECONNECT_FAILED: i64 = 1008;

/// Whether results are on the node, to be delivered later.
pub fn is_undelivered(ad: &JobAd) -> bool {
    ad.state() == JobState::Completed && ad.exit_code == Some(ExitCode::Undelivered.code().into())
}

/// Whether the job was removed before any node started it.
pub fn never_started(ad: &JobAd) -> bool {
    ad.state() == JobState::Removed && !ad.has_started()
}

/// Who or what ended the job.
pub fn cause(ad: &JobAd) -> ExitCause {
    let code = ad.hold().map(|(_, code)| code);
    let by_rule = is_removed_by_its_rule(ad);
    match (ad.state(), code) {
        (JobState::Completed, _) if ad.exit_by_signal != Some(true) => ad
            .exit_code
            .map_or(ExitCause::Unknown, ExitCause::of_status),
        (JobState::Removed, Some(HOLD_OUT_OF_MEMORY)) => ExitCause::Limit,
        (JobState::Removed, Some(code)) if is_out_of_time(code) => ExitCause::Limit,
        (JobState::Removed, Some(HOLD_BY_USER)) => ExitCause::Evicted(Eviction::Held),
        (JobState::Removed, None) if !by_rule => ExitCause::Evicted(Eviction::Cancelled),
        (JobState::Removed, None) if ad.may_have_run() => ExitCause::Evicted(eviction(ad)),
        _ => ExitCause::Unknown,
    }
}

/// How a job was taken off its machine, which is in the queue no more.
fn eviction(ad: &JobAd) -> Eviction {
    match (ad.last_hold_reason_code, ad.vacate_reason_code) {
        (Some(HOLD_BY_USER), _) => Eviction::Held,
        (_, Some(VACATED_SHADOW_EXCEPTION | VACATED_RECONNECT_FAILED)) => Eviction::NodeLost,
        _ => Eviction::Preempted,
    }
}

/// Whether the periodic_remove of the description removed the job (restart_and_hold_policy.rs).
fn is_removed_by_its_rule(ad: &JobAd) -> bool {
    let reason = ad.remove_reason.as_deref().unwrap_or_default();
    // HTCondor quotes the attribute.
    reason.contains("PeriodicRemove")
}

/// The sentence about the exit of a job.
pub fn describe_exit(ad: &JobAd) -> String {
    let job = format!("HTCondor job {}", ad.id());
    match ad.state() {
        JobState::Removed => format!("{job} {}", describe_removal(ad)),
        JobState::Completed => match (ad.exit_by_signal, ad.exit_code) {
            (Some(true), _) => {
                let signal = ad.exit_signal.unwrap_or_default();
                format!("{job}: crunch-run was killed by signal {signal}")
            }
            (_, Some(code)) => {
                let meaning = crunch_contract::describe(code);
                format!("{job} ended with exit code {code}: {meaning}")
            }
            (_, None) => format!("{job} ended, and HTCondor does not tell how"),
        },
        JobState::Held => {
            let (held, _) = ad.hold().unwrap_or_default();
            format!("{job} is held: {held}")
        }
        state => format!("{job} is in state {state:?}"),
    }
}

fn describe_removal(ad: &JobAd) -> String {
    let reason = ad.remove_reason.as_deref().unwrap_or("no reason given");
    let on = ad.node().map(|node| format!(" {node}")).unwrap_or_default();
    match ad.hold() {
        Some((held, HOLD_OUT_OF_MEMORY)) => {
            let requested = requested_memory(ad);
            return format!(
                "was ended by HTCondor for using more memory than it was given ({held}{requested})"
            );
        }
        Some((held, code)) if is_out_of_time(code) => {
            return format!("reached its time limit in HTCondor ({held})");
        }
        Some((held, _)) => return format!("was held and then removed: {held}"),
        None => {}
    }
    match is_removed_by_its_rule(ad) {
        false => format!("was removed: {reason}"),
        true if ad.may_have_run() => describe_eviction(ad, &on),
        true if ad.has_started() => {
            format!("could not start the container on{on}, and no other machine took it")
        }
        true => {
            let tries = ad.num_shadow_starts;
            format!("could not be started: HTCondor tried {tries} times")
        }
    }
}

/// `on`: the name of the machine, after a space.
fn describe_eviction(ad: &JobAd, on: &str) -> String {
    let eviction = eviction(ad);
    let words = match eviction {
        Eviction::Held => format!("was held while it ran on{on}, and released"),
        Eviction::NodeLost => format!("was lost with its machine{on}"),
        _ if ad.vacate_reason_code.is_none() => {
            format!("was taken off its machine{on}, or that was lost")
        }
        _ => format!("was taken off its machine{on}"),
    };
    let reason = match eviction {
        Eviction::Held => ad.last_hold_reason.as_deref().unwrap_or_default(),
        _ => ad.vacate_reason.as_str(),
    };
    match reason {
        "" => words,
        reason => format!("{words}: {reason}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ad(more: &str) -> JobAd {
        let text =
            format!(r#"[{{"ClusterId": 8, "ProcId": 0, "LastRemoteHost": "slot1_1@n1", {more}}}]"#);
        crate::query::condor_q::parse(&text).unwrap().remove(0)
    }

    #[test]
    fn verdicts_are_sentences() {
        const RULE: &str = "The job attribute PeriodicRemove expression '...' evaluated to TRUE";
        let by_rule = |more: &str| format!(r#""JobStatus": 3, "RemoveReason": "{RULE}", {more}"#);
        #[rustfmt::skip]
        let rows = [
            (r#""JobStatus": 5, "HoldReason": "no output file""#.to_owned(), " is held: no output file"),
            (r#""JobStatus": 3, "RemoveReason": "via condor_rm (by user me)""#.into(), " was removed: via condor_rm (by user me)"),
            (r#""JobStatus": 4, "ExitCode": 75"#.into(), " ended with exit code 75: crunch-run could not start the container there"),
            (r#""JobStatus": 4, "ExitBySignal": true, "ExitSignal": 9"#.into(), ": crunch-run was killed by signal 9"),
            (by_rule(r#""HoldReasonCode": 34, "HoldReason": "over cgroup memory limit""#), " was ended by HTCondor for using more memory than it was given (over cgroup memory limit)"),
            (by_rule(r#""HoldReasonCode": 34, "HoldReason": "oom", "RequestMemory": 300"#), " was ended by HTCondor for using more memory than it was given (oom; it asked for 300 MiB)"),
            (by_rule(r#""HoldReasonCode": 47, "HoldReason": "time""#), " reached its time limit in HTCondor (time)"),
            (by_rule(r#""LastJobStatus": 5, "LastHoldReasonCode": 34, "LastHoldReason": "oom""#), " was ended by HTCondor for using more memory than it was given (oom)"),
            (by_rule(r#""LastJobStatus": 1, "LastHoldReason": "long ago", "NumJobStarts": 1"#), " was taken off its machine n1, or that was lost"),
            (by_rule(r#""HoldReasonCode": 1, "HoldReason": "via condor_hold""#), " was held and then removed: via condor_hold"),
            (by_rule(r#""NumJobStarts": 1, "VacateReason": "vacated", "VacateReasonCode": 1004"#), " was taken off its machine n1: vacated"),
            (by_rule(r#""NumJobStarts": 1, "VacateReason": "", "VacateReasonCode": 1005"#), " was taken off its machine n1"),
            (by_rule(r#""NumJobStarts": 1, "VacateReason": "no answer", "VacateReasonCode": 1008"#), " was lost with its machine n1: no answer"),
            (by_rule(r#""NumJobStarts": 1, "LastHoldReasonCode": 1, "LastHoldReason": "via condor_hold (by user ada)""#), " was held while it ran on n1, and released: via condor_hold (by user ada)"),
            (by_rule(r#""NumJobStarts": 1"#), " was taken off its machine n1, or that was lost"),
            (by_rule(r#""NumJobStarts": 1, "NumJobCompletions": 1"#), " could not start the container on n1, and no other machine took it"),
            (by_rule(r#""NumShadowStarts": 11"#), " could not be started: HTCondor tried 11 times"),
            (r#""JobStatus": 9"#.into(), " is in state Other(9)"),
        ];
        for (more, expected) in rows {
            assert_eq!(
                describe_exit(&ad(&more)),
                format!("HTCondor job 8.0{expected}")
            );
        }
    }

    #[test]
    fn what_the_pool_did_is_told_from_what_the_container_did() {
        use Eviction::{Cancelled, Held, NodeLost, Preempted, Requeued, Signalled};
        const RULE: &str = r#""JobStatus": 3, "NumJobStarts": 1, "RemoveReason": "PeriodicRemove""#;
        let by_rule = |more: &str| format!("{RULE}{more}");
        #[rustfmt::skip]
        let rows = [
            (by_rule(""), ExitCause::Evicted(Preempted)),
            (by_rule(r#", "VacateReasonCode": 1005"#), ExitCause::Evicted(Preempted)),
            (by_rule(r#", "VacateReasonCode": 1002"#), ExitCause::Evicted(NodeLost)),
            (by_rule(r#", "VacateReasonCode": 1008"#), ExitCause::Evicted(NodeLost)),
            (by_rule(r#", "LastHoldReasonCode": 1"#), ExitCause::Evicted(Held)),
            (by_rule(r#", "HoldReasonCode": 1, "HoldReason": "x""#), ExitCause::Evicted(Held)),
            (by_rule(r#", "HoldReasonCode": 34, "HoldReason": "x""#), ExitCause::Limit),
            (by_rule(r#", "HoldReasonCode": 47, "HoldReason": "x""#), ExitCause::Limit),
            (by_rule(r#", "HoldReasonCode": 13, "HoldReason": "x""#), ExitCause::Unknown),
            (by_rule(r#", "NumJobCompletions": 1"#), ExitCause::Unknown),
            (r#""JobStatus": 3, "NumJobStarts": 1, "RemoveReason": "via condor_rm""#.into(), ExitCause::Evicted(Cancelled)),
            (r#""JobStatus": 4, "ExitCode": 79"#.into(), ExitCause::Evicted(Signalled)),
            (r#""JobStatus": 4, "ExitCode": 76"#.into(), ExitCause::Evicted(Requeued)),
            (r#""JobStatus": 4, "ExitCode": 1"#.into(), ExitCause::Unknown),
            (r#""JobStatus": 4, "ExitBySignal": true, "ExitSignal": 9, "ExitCode": 79"#.into(), ExitCause::Unknown),
            (r#""JobStatus": 5, "HoldReasonCode": 1"#.into(), ExitCause::Unknown),
        ];
        for (more, expected) in rows {
            assert_eq!(cause(&ad(&more)), expected, "{more}");
        }
    }

    #[test]
    fn a_job_that_was_removed_while_it_waited_never_began() {
        assert!(never_started(&ad(r#""JobStatus": 3"#)));
        assert!(!never_started(&ad(r#""JobStatus": 3, "NumJobStarts": 1"#)));
        assert!(!never_started(&ad(r#""JobStatus": 4, "ExitCode": 75"#)));
    }

    #[test]
    fn undelivered_results_are_told_apart() {
        assert!(is_undelivered(&ad(r#""JobStatus": 4, "ExitCode": 77"#)));
        assert!(!is_undelivered(&ad(r#""JobStatus": 1, "ExitCode": 77"#)));
        assert!(!is_undelivered(&ad(r#""JobStatus": 4, "ExitCode": 76"#)));
    }
}
