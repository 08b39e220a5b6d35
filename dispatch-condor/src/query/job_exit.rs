//! Describes how a job ended in one sentence, from its ad in condor_history. Pure.
//!
//! Hold codes: HTCondor manual, HoldReasonCode.

use crunch_contract::ExitCode;

use crate::query::condor_q::{JobAd, JobState};
use crate::query::pending_reason::{HOLD_OUT_OF_MEMORY, is_out_of_time, requested_memory};

/// Whether results are on the node, to be delivered later.
pub fn is_undelivered(ad: &JobAd) -> bool {
    ad.state() == JobState::Completed && ad.exit_code == Some(ExitCode::Undelivered.code().into())
}

/// Whether the job was removed before any node started it.
pub fn never_started(ad: &JobAd) -> bool {
    ad.state() == JobState::Removed && !ad.has_started()
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
    // HTCondor quotes the periodic_remove of the description (restart_and_hold_policy.rs).
    let by_rule = reason.contains("PeriodicRemove");
    match by_rule {
        false => format!("was removed: {reason}"),
        true if ad.may_have_run() => match ad.vacate_reason.as_str() {
            "" => format!("was taken off its machine{on}, or that was lost"),
            why => format!("was taken off its machine{on}: {why}"),
        },
        true if ad.has_started() => {
            format!("could not start the container on{on}, and no other machine took it")
        }
        true => {
            let tries = ad.num_shadow_starts;
            format!("could not be started: HTCondor tried {tries} times")
        }
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
            (by_rule(r#""NumJobStarts": 1, "VacateReason": "vacated""#), " was taken off its machine n1: vacated"),
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
