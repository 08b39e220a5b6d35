//! Parses the output of `condor_q -json` and `condor_history -json` into job ads. Pure.
//!
//! Job states: HTCondor manual, "Job ClassAd Attributes", JobStatus.

use std::cmp::Reverse;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::model::world::{Job, JobId};
use dispatch_core::scheduler::class_ads::{self, ClassAd};
use serde::Deserialize;
use serde_json::Value;

/// Attributes that are queried of jobs.
pub const JOB_ATTRIBUTES: &str = "ClusterId,ProcId,JobStatus,ContainerUUID,AttemptUUID,JobPrio,HoldReason,HoldReasonCode,HoldReasonSubCode,LastHoldReason,LastHoldReasonCode,LastJobStatus,\
RemoveReason,VacateReason,VacateReasonCode,LastRejMatchReason,AutoClusterId,ExitCode,ExitBySignal,ExitSignal,LastRemoteHost,RemoteHost,NumJobStarts,\
NumJobCompletions,NumShadowStarts,JobDisconnectedDate,JobLeaseDuration,RequestCpus,RequestMemory,RequestDisk,RequestGPUs";

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// The state of a job, from JobStatus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobState {
    Idle,
    /// The job runs, or its files are being transferred.
    Running,
    /// Being removed, or removed.
    Removed,
    /// Exited by itself.
    Completed,
    /// Held by HTCondor or a user.
    Held,
    /// Stopped by its execute node for a while.
    Suspended,
    /// An unknown state: the job is in the queue.
    Other(i64),
}

/// The ClassAd of a job.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobAd {
    cluster_id: i64,
    proc_id: i64,
    job_status: i64,
    #[serde(rename = "ContainerUUID")]
    container: String,
    #[serde(rename = "AttemptUUID")]
    attempt: String,
    /// Priority among the jobs of its user.
    pub job_prio: i64,
    hold_reason: Option<String>,
    hold_reason_code: Option<i64>,
    /// The reason of the last hold that is over.
    pub last_hold_reason: Option<String>,
    /// Its code.
    pub last_hold_reason_code: Option<i64>,
    last_job_status: i64,
    /// Sub-code of the hold reason.
    pub hold_reason_sub_code: Option<i64>,
    pub remove_reason: Option<String>,
    /// Reason of the last eviction, in versions that record it; often empty.
    pub vacate_reason: String,
    /// Its code: HTCondor manual, "Vacate Reason Codes".
    pub vacate_reason_code: Option<i64>,
    /// Reason why the negotiator last gave it no slot; set on one job of each auto cluster.
    pub last_rej_match_reason: Option<String>,
    /// Jobs with the same number are equal for the negotiator.
    pub auto_cluster_id: Option<i64>,
    /// crunch-run's exit status.
    pub exit_code: Option<i64>,
    pub exit_by_signal: Option<bool>,
    pub exit_signal: Option<i64>,
    last_remote_host: Option<String>,
    remote_host: Option<String>,
    num_job_starts: i64,
    num_job_completions: i64,
    // Numbers, or expressions from an admin's lines.
    job_disconnected_date: Value,
    job_lease_duration: Value,
    /// Number of times that HTCondor began to start it.
    pub num_shadow_starts: i64,
    // Numbers, or expressions from an admin's lines.
    request_cpus: Value,
    request_memory: Value,
    request_disk: Value,
    #[serde(rename = "RequestGPUs")]
    request_gpus: Value,
}

/// The position of a job in the queue: by JobPrio, then by number, which is the order of
/// submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueuePosition {
    pub prio: i64,
    /// Cluster and process.
    pub number: (i64, i64),
}

impl QueuePosition {
    /// Smaller keys start earlier.
    pub fn sort_key(self) -> (Reverse<i64>, (i64, i64)) {
        (Reverse(self.prio), self.number)
    }
}

/// All ads of an answer. An attribute of another type counts as undefined.
pub fn parse(answer: &str) -> Result<Vec<JobAd>, serde_json::Error> {
    let ads = class_ads::parse(answer)?.into_iter();
    Ok(ads.map(ClassAd::read_leniently).collect())
}

/// Gives ads whose container is undefined that of the job with the same id in an earlier listing.
/// The error is the id of a job that none has: it must not count as gone.
pub fn restore_containers(ads: &mut [JobAd], earlier: &[JobAd]) -> Result<(), String> {
    for ad in ads.iter_mut().filter(|ad| ad.container.is_empty()) {
        let id = ad.id();
        let known = earlier.iter().find(|known| known.id() == id);
        let known = known
            .filter(|known| !known.container.is_empty())
            .ok_or(id)?;
        ad.container.clone_from(&known.container);
        ad.attempt.clone_from(&known.attempt);
    }
    Ok(())
}

impl JobAd {
    /// The job as the controller sees it; none if it is not the job of a container.
    pub fn to_job(&self) -> Option<Job> {
        Some(Job {
            id: JobId(self.id()),
            container: ContainerUuid::parse(&self.container).ok()?,
            attempt: TokenUuid::parse(&self.attempt).ok(),
            // All other states count as alive. A job that is being removed may still save results;
            // then it leaves the queue.
            ended: self.state() == JobState::Completed,
            node: self.node(),
        })
    }

    /// The id, `CLUSTER.PROCESS`.
    pub fn id(&self) -> String {
        format!("{}.{}", self.cluster_id, self.proc_id)
    }

    /// The uuid of its container, unchecked.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// The state, from JobStatus.
    pub fn state(&self) -> JobState {
        match self.job_status {
            1 => JobState::Idle,
            2 | 6 => JobState::Running,
            3 => JobState::Removed,
            4 => JobState::Completed,
            5 => JobState::Held,
            7 => JobState::Suspended,
            other => JobState::Other(other),
        }
    }

    /// If the connection to the execute node is lost: the Unix time of the loss, and the seconds
    /// until HTCondor gives the job up, if known.
    pub fn disconnected(&self) -> Option<(i64, Option<i64>)> {
        let since = self.job_disconnected_date.as_i64();
        let since = since.filter(|date| *date > 0)?;
        let may_run = matches!(self.state(), JobState::Running | JobState::Removed);
        may_run.then_some((since, self.job_lease_duration.as_i64()))
    }

    /// Whether nothing of the job is on any execute node.
    pub fn is_idle_or_held(&self) -> bool {
        matches!(self.state(), JobState::Idle | JobState::Held)
    }

    /// The reason and the code of its hold, also of the hold in which it was removed.
    pub fn hold(&self) -> Option<(&str, i64)> {
        let now = (&self.hold_reason, self.hold_reason_code);
        let last = (&self.last_hold_reason, self.last_hold_reason_code);
        // In a removed job the attributes of the hold have moved to Last….
        let (reason, code) =
            match self.job_status == 3 && self.last_job_status == 5 && now.0.is_none() {
                true => last,
                false => now,
            };
        let is_held = reason.is_some() || self.state() == JobState::Held;
        let reason = reason.as_deref().unwrap_or("no reason given");
        is_held.then_some((reason, code.unwrap_or_default()))
    }

    /// The position in the queue.
    pub fn queue_position(&self) -> QueuePosition {
        QueuePosition {
            prio: self.job_prio,
            number: (self.cluster_id, self.proc_id),
        }
    }

    /// The execute node it is or was on, without the name of the slot.
    pub fn node(&self) -> Option<String> {
        let now = self.remote_host.as_deref();
        let host = now.or(self.last_remote_host.as_deref())?;
        Some(host.rsplit('@').next().unwrap_or(host).to_owned())
    }

    /// Whether it was started at least once.
    pub fn has_started(&self) -> bool {
        self.num_job_starts > 0
    }

    /// Whether a start was not followed by an exit of its own, so that the container may have run.
    pub fn may_have_run(&self) -> bool {
        self.num_job_starts > self.num_job_completions
    }

    /// Whether its resource requests are plain numbers.
    pub fn has_literal_requests(&self) -> bool {
        let amounts = [&self.request_cpus, &self.request_memory, &self.request_disk];
        let gpus = &self.request_gpus;
        amounts.iter().all(|amount| amount.is_u64()) && (gpus.is_null() || gpus.is_u64())
    }

    /// The resource requests that are plain numbers.
    pub fn needs(&self) -> ResourceRequest {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let small = |value: &Value| u32::try_from(number(value)).unwrap_or(u32::MAX);
        ResourceRequest {
            cpus: small(&self.request_cpus),
            ram: number(&self.request_memory).saturating_mul(MIB),
            scratch: number(&self.request_disk).saturating_mul(KIB),
            gpus: small(&self.request_gpus),
            ..ResourceRequest::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"[
        {"ClusterId": 7, "ProcId": 0, "JobStatus": 2, "ContainerUUID": "zzzzz-dz642-queuedcontainer", "AttemptUUID": "zzzzz-gj3su-000000000000000"},
        {"ClusterId": 7, "ProcId": 1, "JobStatus": 4, "ContainerUUID": "zzzzz-dz642-queuedcontaine2", "ExitCode": 75, "ExitBySignal": false},
        {"ClusterId": 8, "ProcId": 0, "JobStatus": 5, "ContainerUUID": "not ours", "HoldReason": "no output file"},
        {"ClusterId": 10, "ProcId": 0, "JobStatus": 3, "ContainerUUID": "zzzzz-dz642-queuedcontaine4"},
        {"ClusterId": 9, "ProcId": 0, "JobStatus": 99, "ContainerUUID": "zzzzz-dz642-queuedcontaine3"}
    ]"#;

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let ads = parse(ANSWER).unwrap();
        let jobs: Vec<(String, bool)> = ads
            .iter()
            .filter_map(JobAd::to_job)
            .map(|job| (job.id.0, job.ended))
            .collect();
        let expected = [
            ("7.0", false),
            ("7.1", true),
            ("10.0", false),
            ("9.0", false),
        ]
        .map(|(id, e)| (id.to_owned(), e));
        assert_eq!(jobs, expected);
        assert!(parse("\n").unwrap().is_empty());
        assert!(parse(&ANSWER[..200]).is_err());
    }

    #[test]
    fn an_attribute_that_an_admin_made_undefined_costs_no_listing() {
        let odd = ANSWER.replace(
            r#""JobStatus": 2,"#,
            r#""JobStatus": 2, "VacateReason": null, "HoldReason": 5, "JobPrio": "/Expr(x)/","#,
        );
        let ads = parse(&odd).unwrap();
        let jobs = |ads: Vec<JobAd>| ads.iter().filter_map(JobAd::to_job).collect::<Vec<_>>();
        assert_eq!(ads[0].state(), JobState::Running);
        assert_eq!((ads[0].job_prio, ads[0].hold()), (0, None));
        assert_eq!(jobs(ads), jobs(parse(ANSWER).unwrap()));
    }

    #[test]
    fn a_job_whose_container_was_made_undefined_is_not_gone() {
        let earlier = parse(ANSWER).unwrap();
        let name = "\"zzzzz-dz642-queuedcontainer\"";
        let edited = || parse(&ANSWER.replacen(name, "null", 1)).unwrap();
        let mut ads = edited();
        assert_eq!(ads[0].to_job(), None);
        restore_containers(&mut ads, &earlier).unwrap();
        assert_eq!(ads[0].to_job(), earlier[0].to_job());
        let unknown = restore_containers(&mut edited(), &[]);
        assert_eq!(unknown, Err("7.0".to_owned()));
        let never_known = restore_containers(&mut edited(), &edited());
        assert_eq!(never_known, Err("7.0".to_owned()));
    }

    #[test]
    fn what_a_job_asks_for_may_be_an_expression() {
        let text = r#"[{"RequestCpus": 2, "RequestMemory": "\/Expr(ifThenElse(x,1,2))\/", "RequestDisk": 3, "RequestGPUs": 1,
            "NumJobStarts": 1, "RemoteHost": "slot1_2@n1.example"}]"#;
        let ad = parse(text).unwrap().remove(0);
        let needs = ad.needs();
        assert_eq!(
            (needs.cpus, needs.ram, needs.scratch, needs.gpus),
            (2, 0, 3072, 1)
        );
        assert!(ad.may_have_run() && ad.has_started());
        assert_eq!(ad.node().as_deref(), Some("n1.example"));
    }
}
