//! What a job waits for, in plain words, and whether it will pass. Pure. Reasons: squeue(1), JOB REASON CODES, and the
//! page of that name in Slurm's documentation (24.11); what is not known here passes, and is told as Slurm says it.

use dispatch_core::scheduler::{Outlook, Waiting};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use crate::squeue::{Meaning, Row};

/// A start that is further away is none: Slurm counts a year for a job before it that has no time limit.
const FORESEEN: SignedDuration = SignedDuration::from_hours(180 * 24);

/// What one of our jobs waits for; none, if it does not wait.
pub fn waiting(row: &Row, now: Timestamp) -> Option<Waiting> {
    let (outlook, words) = match (row.state.as_str(), row.meaning) {
        ("CONFIGURING", _) => (Outlook::Passes, "for its node to be made ready".to_owned()),
        ("SUSPENDED" | "STOPPED", _) => (
            Outlook::Passes,
            "to be resumed: it was suspended in Slurm".to_owned(),
        ),
        ("REQUEUE_HOLD" | "SPECIAL_EXIT", _) => (
            Outlook::NeedsSomebody,
            "to be released: it was put back into the queue and held".to_owned(),
        ),
        ("RESV_DEL_HOLD", _) => (
            Outlook::NeedsSomebody,
            "to be released: its reservation was deleted".to_owned(),
        ),
        (_, Meaning::Pending) => because(&row.reason),
        _ => return None,
    };
    let raw = match row.reason.as_str() {
        "" | "None" => String::new(),
        reason => format!(" ({reason})"),
    };
    let start = match (outlook, row.meaning, row.start) {
        (Outlook::Passes, Meaning::Pending, Some(start))
            if start.duration_since(now) < FORESEEN =>
        {
            expected(start)
        }
        _ => String::new(),
    };
    Some(Waiting {
        outlook,
        words: format!("Slurm job {} waits {words}{raw}{start}", row.id),
    })
}

fn expected(start: Timestamp) -> String {
    let start = start.to_zoned(TimeZone::UTC);
    format!(
        "; expected to start {}",
        start.strftime("%Y-%m-%d %H:%M UTC")
    )
}

fn because(reason: &str) -> (Outlook, String) {
    let sentence = sentence(reason);
    // A reason may go on with details: `ReqNodeNotAvail, UnavailableNodes:n1`.
    let word = reason.split([',', ' ']).next().unwrap_or_default();
    let told = sentence.or_else(|| word_for(word)).or_else(|| limit(word));
    let (outlook, words) = told.unwrap_or((Outlook::Passes, "for something that Slurm names"));
    (outlook, words.to_owned())
}

type Told = Option<(Outlook, &'static str)>;

/// Reasons that are no single word.
fn sentence(reason: &str) -> Told {
    use Outlook::{NeedsSomebody, Passes};
    Some(match reason {
        _ if reason.contains("UnavailableNodes:") => (
            NeedsSomebody,
            "for nodes that are down, drained or do not answer",
        ),
        _ if reason.starts_with("Nodes required for job are DOWN") => (
            Passes,
            "for nodes that are down, drained or kept for others",
        ),
        // The same as `AccountNotAllowed` and `QOSNotAllowed`, with the partition's words.
        _ if reason.starts_with("Job's account not permitted to use this partition") => (
            NeedsSomebody,
            "for an administrator: its account may not use its partition",
        ),
        _ if reason.starts_with("Job's QOS not permitted to use this partition") => (
            NeedsSomebody,
            "for an administrator: its quality of service may not be had in its partition",
        ),
        "launch failed requeued held" => (
            NeedsSomebody,
            "to be released: its node could not start it, and Slurm put it back and held it",
        ),
        "job requeued in held state" => (
            NeedsSomebody,
            "to be released: it was put back into the queue and held",
        ),
        _ => return None,
    })
}

/// Reasons of one word, the limits of associations and of qualities of service left out.
fn word_for(word: &str) -> Told {
    use Outlook::{NeedsSomebody, Never, Passes};
    #[rustfmt::skip]
    let told = match word {
        "" | "None" | "WaitingForScheduling" => (Passes, "for Slurm to look at it"),
        "Priority" => (Passes, "for its turn: others come first"),
        "Resources" => (Passes, "for room: others use what it needs"),
        "SchedDefer" => (Passes, "for Slurm's next round"),
        "Constraints" => (Passes, "for nodes with the features it asks for"),
        "ReqNodeNotAvail" => (Passes, "for nodes that are in use or reserved"),
        "BeginTime" => (Passes, "for its time to begin"),
        "Dependency" => (Passes, "for another job"),
        "Licenses" => (Passes, "for a licence"),
        "Reservation" => (Passes, "for its reservation to begin"),
        "Cleaning" => (Passes, "for what is left of its earlier run to be cleared away"),
        "Prolog" => (Passes, "for Slurm's preparations"),
        "JobArrayTaskLimit" => (Passes, "for other jobs of its array"),
        "FedJobLock" => (Passes, "for the clusters of its federation to agree"),
        "BurstBufferResources" | "BurstBufferStageIn" => (Passes, "for the burst buffer"),
        "PowerNotAvail" | "PowerReserved" => (Passes, "for electrical power"),
        "BlockFreeAction" => (Passes, "for a block of nodes to be freed"),
        "JobHeldAdmin" => (NeedsSomebody, "to be released: an administrator of Slurm held it"),
        "JobHeldUser" => (NeedsSomebody, "to be released: it was held by its user or a coordinator (scontrol release)"),
        "JobHoldMaxRequeue" => (NeedsSomebody, "to be released: it was put back into the queue too often"),
        "JobLaunchFailure" => (NeedsSomebody, "for an administrator: its node could not start it"),
        "SystemFailure" => (NeedsSomebody, "for an administrator: Slurm, a file system or the network failed"),
        "NodeDown" => (NeedsSomebody, "for a node that is down"),
        "FrontEndDown" => (NeedsSomebody, "for a front end node: all are down"),
        "PartitionDown" => (NeedsSomebody, "for its partition, which is down"),
        "PartitionInactive" => (NeedsSomebody, "for its partition, which starts no jobs"),
        "PartitionNodeLimit" => (NeedsSomebody, "for nodes of its partition that are down, or asks for more than the partition gives to a job"),
        "PartitionConfig" => (NeedsSomebody, "because it asks for what its partition does not give now"),
        "BurstBufferOperation" => (NeedsSomebody, "for an administrator: the burst buffer failed"),
        "BlockMaxError" => (NeedsSomebody, "for an administrator: its block of nodes had too many errors"),
        "AccountNotAllowed" => (NeedsSomebody, "for an administrator: its account may not use its partition"),
        "InvalidAccount" => (NeedsSomebody, "for an administrator: Slurm does not know its account"),
        "InvalidQOS" => (NeedsSomebody, "for an administrator: Slurm does not know its quality of service"),
        "QOSNotAllowed" => (NeedsSomebody, "for an administrator: it may not have its quality of service"),
        "QOSUsageThreshold" => (NeedsSomebody, "because its account has used too much for its quality of service"),
        "ReservationDeleted" => (NeedsSomebody, "for a reservation that was deleted"),
        "InactiveLimit" => (NeedsSomebody, "for an administrator: it reached Slurm's limit for inactive jobs"),
        "BadConstraints" => (Never, "in vain: no node of this cluster is what it asks for"),
        "DependencyNeverSatisfied" => (Never, "in vain: the job it depends on failed"),
        "PartitionTimeLimit" => (Never, "in vain: it asks for more time than its partition gives"),
        "MaxMemPerLimit" => (Never, "in vain: it asks for more memory than Slurm gives per CPU or node"),
        "DeadLine" => (Never, "in vain: it cannot meet its deadline any more"),
        _ => return None,
    };
    Some(told)
}

/// The limits of associations, accounts and qualities of service: a family of words, `QOSMaxCpuPerJobLimit`.
fn limit(word: &str) -> Told {
    use Outlook::{NeedsSomebody, Passes};
    let of_all = ["AssocGrp", "QOSGrp"].iter().any(|f| word.starts_with(f));
    let of_one = ["AssocMax", "QOSMax", "Max"]
        .iter()
        .any(|family| word.starts_with(family));
    Some(match word {
        "AssociationJobLimit" | "QOSJobLimit" | "AccountingPolicy" => (
            Passes,
            "for other jobs of its account or quality of service to end",
        ),
        "AssociationResourceLimit" | "QOSResourceLimit" => (
            Passes,
            "for other jobs of its account or quality of service to free what it needs",
        ),
        "AssociationTimeLimit" | "QOSTimeLimit" => (
            NeedsSomebody,
            "because its account or quality of service has used up its time",
        ),
        _ if of_all && word.contains("Minutes") && !word.contains("RunMinutes") => (
            NeedsSomebody,
            "because its account or quality of service has used up its share",
        ),
        _ if of_all => (
            Passes,
            "for other jobs of its account or quality of service to end",
        ),
        _ if word.starts_with("QOSMin") => (
            NeedsSomebody,
            "because it asks for less than its quality of service demands",
        ),
        _ if of_one && (word.contains("PerJob") || word.contains("PerNode")) => (
            NeedsSomebody,
            "because it asks for more than one job of its account or quality of service may have",
        ),
        _ if of_one => (Passes, "for other jobs of its user or account to end"),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use arvados_client::ContainerUuid;

    use super::*;
    use crate::nice::Standing;
    use crate::squeue::meaning;

    fn told(state: &str, reason: &str, start: Option<i64>) -> Option<(Outlook, String)> {
        let row = Row {
            id: "12".into(),
            meaning: meaning(state),
            state: state.into(),
            container: ContainerUuid::parse("zzzzz-dz642-queuedcontainer").unwrap(),
            attempt: None,
            node: None,
            standing: Standing {
                priority: 1,
                nice: 0,
            },
            start: start.and_then(|second| Timestamp::from_second(second).ok()),
            reason: reason.into(),
        };
        let now = Timestamp::from_second(1_795_287_000).unwrap();
        waiting(&row, now).map(|waiting| (waiting.outlook, waiting.words))
    }

    #[test]
    fn words_name_the_reason_and_the_expected_start() {
        #[rustfmt::skip]
        let rows = [
            ("PENDING", "Priority", Some(1_795_287_176), "waits for its turn: others come first (Priority); expected to start 2026-11-21 18:52 UTC"),
            ("PENDING", "Priority", Some(1_795_287_000 + 365 * 86400), "waits for its turn: others come first (Priority)"),
            ("PENDING", "None", None, "waits for Slurm to look at it"),
            ("PENDING", "JobHeldUser", Some(1_795_287_176), "waits to be released: it was held by its user or a coordinator (scontrol release) (JobHeldUser)"),
            ("PENDING", "FullMoon", None, "waits for something that Slurm names (FullMoon)"),
            ("CONFIGURING", "None", Some(1_795_287_176), "waits for its node to be made ready"),
            ("SUSPENDED", "None", None, "waits to be resumed: it was suspended in Slurm"),
        ];
        for (state, reason, start, expected) in rows {
            let words = told(state, reason, start).unwrap().1;
            assert_eq!(words, format!("Slurm job 12 {expected}"));
        }
        for state in ["RUNNING", "COMPLETING", "COMPLETED", "HIBERNATING"] {
            assert_eq!(told(state, "None", None), None, "{state}");
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
            (Outlook::Passes, passes),
            (Outlook::NeedsSomebody, needs_somebody),
            (Outlook::Never, never),
        ] {
            for word in words.split_whitespace() {
                let (got, words) = told("PENDING", word, None).unwrap();
                assert_eq!(got, outlook, "{word}");
                assert!(!words.contains("something"), "{words}");
            }
        }
    }

    #[test]
    fn a_reason_may_be_a_sentence() {
        let rows = [
            (
                "ReqNodeNotAvail, UnavailableNodes:q[1-2]",
                Outlook::NeedsSomebody,
            ),
            (
                "ReqNodeNotAvail, May be reserved for other job",
                Outlook::Passes,
            ),
            (
                "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
                Outlook::Passes,
            ),
            ("launch failed requeued held", Outlook::NeedsSomebody),
            (
                "Job's account not permitted to use this partition (main allows staff not root)",
                Outlook::NeedsSomebody,
            ),
            (
                "Job's QOS not permitted to use this partition (main denies long including long)",
                Outlook::NeedsSomebody,
            ),
            ("JobHeldUser,Dependency", Outlook::NeedsSomebody),
        ];
        for (reason, outlook) in rows {
            let (got, words) = told("PENDING", reason, None).unwrap();
            assert_eq!(got, outlook, "{reason}");
            assert!(words.ends_with(&format!("({reason})")), "{words}");
            assert!(!words.contains("something"), "{words}");
        }
    }
}
