//! Describes why a job is pending, and whether it will start. Pure.
//!
//! Input: a row of `squeue`. Output: a sentence for the user and an outlook. Reasons: squeue(1),
//! JOB REASON CODES, and the page of that name in Slurm's documentation (24.11). A reason that is
//! not listed here counts as transient and is quoted.

use dispatch_core::scheduler::{PendingOutlook, PendingReason};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::query::squeue::{JobPhase, Row};

/// Maximum distance of a start time that is shown: Slurm assumes a year for an earlier job without
/// a time limit.
const MAX_FORECAST: SignedDuration = SignedDuration::from_hours(180 * 24);

const REQUEUED_AND_HELD: (PendingOutlook, &str) = (
    PendingOutlook::NeedsAdmin,
    "to be released: it was requeued and held",
);

/// Describes what a job waits for; none if it does not wait.
pub fn describe_pending(row: &Row, now: Timestamp) -> Option<PendingReason> {
    use PendingOutlook::{NeedsAdmin, Paused, Transient};
    let (outlook, words) = match (row.state.as_str(), row.phase) {
        ("CONFIGURING", _) => (Transient, "for its node to be made ready"),
        ("SUSPENDED" | "STOPPED", _) => (Paused, "to be resumed: it was suspended in Slurm"),
        ("REQUEUE_HOLD" | "SPECIAL_EXIT", _) => REQUEUED_AND_HELD,
        ("RESV_DEL_HOLD", _) => (NeedsAdmin, "to be released: its reservation was deleted"),
        (_, JobPhase::Pending) => describe_reason(&row.reason),
        _ => return None,
    };
    let raw = match row.reason.as_str() {
        "" | "None" => String::new(),
        reason => format!(" ({reason})"),
    };
    let start = match (outlook, row.phase, row.start) {
        (Transient, JobPhase::Pending, Some(start)) if start.duration_since(now) < MAX_FORECAST => {
            format_start(start)
        }
        _ => String::new(),
    };
    Some(PendingReason {
        outlook,
        text: format!("Slurm job {} waits {words}{raw}{start}", row.id),
    })
}

fn format_start(start: Timestamp) -> String {
    let start = start.to_zoned(TimeZone::UTC);
    format!(
        "; expected to start {}",
        start.strftime("%Y-%m-%d %H:%M UTC")
    )
}

fn describe_reason(reason: &str) -> (PendingOutlook, &'static str) {
    let sentence = describe_sentence(reason);
    // A reason may end with details: `ReqNodeNotAvail, UnavailableNodes:n1`.
    let word = reason.split([',', ' ']).next().unwrap_or_default();
    let described = sentence
        .or_else(|| describe_word(word))
        .or_else(|| describe_limit(word));
    described.unwrap_or((PendingOutlook::Transient, "for another reason"))
}

type Description = Option<(PendingOutlook, &'static str)>;

/// Describes reasons of several words.
fn describe_sentence(reason: &str) -> Description {
    use PendingOutlook::{NeedsAdmin, Transient};
    Some(match reason {
        _ if reason.contains("UnavailableNodes:") => (
            NeedsAdmin,
            "for nodes that are down, drained or do not answer",
        ),
        _ if reason.starts_with("Nodes required for job are DOWN") => (
            Transient,
            "for nodes that are down, drained or reserved for others",
        ),
        // Equal to `AccountNotAllowed` and `QOSNotAllowed`, with the words of the partition.
        _ if reason.starts_with("Job's account not permitted to use this partition") => (
            NeedsAdmin,
            "for an administrator: its account is not allowed in its partition",
        ),
        _ if reason.starts_with("Job's QOS not permitted to use this partition") => (
            NeedsAdmin,
            "for an administrator: its quality of service is not allowed in its partition",
        ),
        "launch failed requeued held" => (
            NeedsAdmin,
            "to be released: its node could not start it, so Slurm requeued and held it",
        ),
        "job requeued in held state" => REQUEUED_AND_HELD,
        _ => return None,
    })
}

/// Describes reasons of one word, except the limits of associations and QOS.
fn describe_word(word: &str) -> Description {
    use PendingOutlook::{NeedsAdmin, Never, Transient};
    #[rustfmt::skip]
    let described = match word {
        "" | "None" | "WaitingForScheduling" => (Transient, "for Slurm to schedule it"),
        "Priority" => (Transient, "for jobs of higher priority"),
        "Resources" => (Transient, "for resources that other jobs use"),
        "SchedDefer" => (Transient, "for the next scheduling cycle of Slurm"),
        "Constraints" => (Transient, "for nodes with the features that it requests"),
        "ReqNodeNotAvail" => (Transient, "for nodes that are in use or reserved"),
        "BeginTime" => (Transient, "for its begin time"),
        "Dependency" => (Transient, "for another job"),
        "Licenses" => (Transient, "for a licence"),
        "Reservation" => (Transient, "for its reservation to begin"),
        "Cleaning" => (Transient, "for its earlier run to be cleaned up"),
        "Prolog" => (Transient, "for the prolog of Slurm"),
        "JobArrayTaskLimit" => (Transient, "for other jobs of its array"),
        "FedJobLock" => (Transient, "for a lock of its federation"),
        "BurstBufferResources" | "BurstBufferStageIn" => (Transient, "for the burst buffer"),
        "PowerNotAvail" | "PowerReserved" => (Transient, "for electrical power"),
        "BlockFreeAction" => (Transient, "for a block of nodes to be freed"),
        "JobHeldAdmin" => (NeedsAdmin, "to be released: an administrator of Slurm held it"),
        "JobHeldUser" => (NeedsAdmin, "to be released: it was held by its user or a coordinator (scontrol release)"),
        "JobHoldMaxRequeue" => (NeedsAdmin, "to be released: it was requeued too often"),
        "JobLaunchFailure" => (NeedsAdmin, "for an administrator: its node could not start it"),
        "SystemFailure" => (NeedsAdmin, "for an administrator: Slurm, a file system or the network failed"),
        "NodeDown" => (NeedsAdmin, "for a node that is down"),
        "FrontEndDown" => (NeedsAdmin, "for a front end node: all are down"),
        "PartitionDown" => (NeedsAdmin, "for its partition, which is down"),
        "PartitionInactive" => (NeedsAdmin, "for its partition, which is inactive"),
        "PartitionNodeLimit" => (NeedsAdmin, "for nodes of its partition that are down, or requests more nodes than the partition allows"),
        "PartitionConfig" => (NeedsAdmin, "because it requests what its partition does not offer now"),
        "BurstBufferOperation" => (NeedsAdmin, "for an administrator: the burst buffer failed"),
        "BlockMaxError" => (NeedsAdmin, "for an administrator: its block of nodes had too many errors"),
        "AccountNotAllowed" => (NeedsAdmin, "for an administrator: its account is not allowed in its partition"),
        "InvalidAccount" => (NeedsAdmin, "for an administrator: Slurm does not know its account"),
        "InvalidQOS" => (NeedsAdmin, "for an administrator: Slurm does not know its quality of service"),
        "QOSNotAllowed" => (NeedsAdmin, "for an administrator: its quality of service is not allowed"),
        "QOSUsageThreshold" => (NeedsAdmin, "because its account has used too much for its quality of service"),
        "ReservationDeleted" => (NeedsAdmin, "for a reservation that was deleted"),
        "InactiveLimit" => (NeedsAdmin, "for an administrator: it reached Slurm's limit for inactive jobs"),
        "BadConstraints" => (Never, "but can never start: no node of this cluster has what it requests"),
        "DependencyNeverSatisfied" => (Never, "but can never start: the job it depends on failed"),
        "PartitionTimeLimit" => (Never, "but can never start: it requests more time than its partition allows"),
        "MaxMemPerLimit" => (Never, "but can never start: it requests more memory than Slurm allows per CPU or node"),
        "DeadLine" => (Never, "but can never start: it cannot meet its deadline any more"),
        _ => return None,
    };
    Some(described)
}

/// Describes the limits of associations, accounts and QOS: a family of words like
/// `QOSMaxCpuPerJobLimit`.
fn describe_limit(word: &str) -> Description {
    use PendingOutlook::{NeedsAdmin, Transient};
    let of_all = ["AssocGrp", "QOSGrp"].iter().any(|f| word.starts_with(f));
    let of_one = ["AssocMax", "QOSMax", "Max"]
        .iter()
        .any(|family| word.starts_with(family));
    Some(match word {
        "AssociationJobLimit" | "QOSJobLimit" | "AccountingPolicy" => (
            Transient,
            "for other jobs of its account or quality of service to end",
        ),
        "AssociationResourceLimit" | "QOSResourceLimit" => (
            Transient,
            "for other jobs of its account or quality of service to free resources",
        ),
        "AssociationTimeLimit" | "QOSTimeLimit" => (
            NeedsAdmin,
            "because its account or quality of service has used up its time",
        ),
        _ if of_all && word.contains("Minutes") && !word.contains("RunMinutes") => (
            NeedsAdmin,
            "because its account or quality of service has used up its share",
        ),
        _ if of_all => (
            Transient,
            "for other jobs of its account or quality of service to end, or for ever if it alone is over their limit",
        ),
        _ if word.starts_with("QOSMin") => (
            NeedsAdmin,
            "because it requests less than its quality of service demands",
        ),
        _ if of_one && (word.contains("PerJob") || word.contains("PerNode")) => (
            NeedsAdmin,
            "because it requests more than its account or quality of service allows for one job",
        ),
        _ if of_one => (Transient, "for other jobs of its user or account to end"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arvados_client::ContainerUuid;

    use super::*;
    use crate::query::squeue::{QueuePosition, job_phase};

    fn described(
        state: &str,
        reason: &str,
        start: Option<i64>,
    ) -> Option<(PendingOutlook, String)> {
        let row = Row {
            id: "12".into(),
            phase: job_phase(state),
            state: state.into(),
            container: ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
            attempt: None,
            node: None,
            position: QueuePosition {
                priority: 1,
                nice: 0,
            },
            start: start.and_then(|second| Timestamp::from_second(second).ok()),
            reason: reason.into(),
        };
        let now = Timestamp::from_second(1_795_287_000).unwrap();
        describe_pending(&row, now).map(|waiting| (waiting.outlook, waiting.text))
    }

    #[test]
    fn words_name_the_reason_and_the_expected_start() {
        #[rustfmt::skip]
        let rows = [
            ("PENDING", "Priority", Some(1_795_287_176), "waits for jobs of higher priority (Priority); expected to start 2026-11-21 18:52 UTC"),
            ("PENDING", "Priority", Some(1_795_287_000 + 365 * 86400), "waits for jobs of higher priority (Priority)"),
            ("PENDING", "None", None, "waits for Slurm to schedule it"),
            ("PENDING", "JobHeldUser", Some(1_795_287_176), "waits to be released: it was held by its user or a coordinator (scontrol release) (JobHeldUser)"),
            ("PENDING", "FullMoon", None, "waits for another reason (FullMoon)"),
            ("CONFIGURING", "None", Some(1_795_287_176), "waits for its node to be made ready"),
            ("SUSPENDED", "None", None, "waits to be resumed: it was suspended in Slurm"),
        ];
        for (state, reason, start, expected) in rows {
            let words = described(state, reason, start).unwrap().1;
            assert_eq!(words, format!("Slurm job 12 {expected}"));
        }
        for state in ["RUNNING", "COMPLETING", "COMPLETED", "HIBERNATING"] {
            assert_eq!(described(state, "None", None), None, "{state}");
        }
    }

    #[test]
    fn reasons_are_in_one_of_three_groups() {
        let passes = "None Priority Resources BeginTime Dependency Licenses Reservation Cleaning Prolog SchedDefer \
            Constraints JobArrayTaskLimit FedJobLock BurstBufferResources BurstBufferStageIn WaitingForScheduling \
            AccountingPolicy AssociationJobLimit QOSJobLimit QOSResourceLimit AssociationResourceLimit \
            AssocGrpCpuLimit AssocGrpCPURunMinutesLimit AssocGrpMemLimit AssocMaxJobsLimit AssocMaxSubmitJobLimit \
            QOSGrpGRES QOSGrpGRESRunMinutes QOSMaxCpuPerUserLimit QOSMaxJobsPerUserLimit QOSMaxGRESPerUser \
            MaxJobsPerAccount MaxMemoryPerAccount ReqNodeNotAvail PowerNotAvail";
        let needs_somebody = "JobHeldAdmin JobHeldUser JobHoldMaxRequeue JobLaunchFailure SystemFailure NodeDown \
            FrontEndDown PartitionDown PartitionInactive PartitionNodeLimit PartitionConfig AccountNotAllowed \
            InvalidAccount InvalidQOS QOSNotAllowed QOSUsageThreshold ReservationDeleted InactiveLimit \
            BurstBufferOperation AssociationTimeLimit QOSTimeLimit AssocGrpCPUMinutesLimit QOSGrpGRESMinutes \
            AssocMaxCpuPerJobLimit AssocMaxWallDurationPerJobLimit QOSMaxMemoryPerNode QOSMaxCpuMinutesPerJobLimit \
            QOSMinCpuNotSatisfied QOSMinGRES";
        let never =
            "BadConstraints DependencyNeverSatisfied PartitionTimeLimit MaxMemPerLimit DeadLine";
        for (outlook, words) in [
            (PendingOutlook::Transient, passes),
            (PendingOutlook::NeedsAdmin, needs_somebody),
            (PendingOutlook::Never, never),
        ] {
            for word in words.split_whitespace() {
                let (got, words) = described("PENDING", word, None).unwrap();
                assert_eq!(got, outlook, "{word}");
                assert!(!words.contains("another reason"), "{words}");
            }
        }
    }

    #[test]
    fn a_reason_may_be_a_sentence() {
        let rows = [
            (
                "ReqNodeNotAvail, UnavailableNodes:q[1-2]",
                PendingOutlook::NeedsAdmin,
            ),
            (
                "ReqNodeNotAvail, May be reserved for other job",
                PendingOutlook::Transient,
            ),
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                PendingOutlook::Transient,
            ),
            ("launch failed requeued held", PendingOutlook::NeedsAdmin),
            (
                "Job's account not permitted to use this partition (main allows staff not root)",
                PendingOutlook::NeedsAdmin,
            ),
            (
                "Job's QOS not permitted to use this partition (main denies long including long)",
                PendingOutlook::NeedsAdmin,
            ),
            ("JobHeldUser,Dependency", PendingOutlook::NeedsAdmin),
        ];
        for (reason, outlook) in rows {
            let (got, words) = described("PENDING", reason, None).unwrap();
            assert_eq!(got, outlook, "{reason}");
            assert!(words.ends_with(&format!("({reason})")), "{words}");
            assert!(!words.contains("another reason"), "{words}");
        }
    }
}
