//! Reading `condor_q -json` and `condor_history -json`. Job states: HTCondor manual, "Job ClassAd Attributes", JobStatus.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::needs::Needs;
use dispatch_core::world::{Job, JobId};
use serde::Deserialize;
use serde_json::Value;

use crate::prio::Standing;

/// The columns asked for.
pub const COLUMNS: &str = "ClusterId,ProcId,JobStatus,ContainerUUID,AttemptUUID,JobPrio,HoldReason,HoldReasonCode,HoldReasonSubCode,LastHoldReason,LastHoldReasonCode,LastJobStatus,\
RemoveReason,VacateReason,LastRejMatchReason,AutoClusterId,ExitCode,ExitBySignal,ExitSignal,LastRemoteHost,RemoteHost,NumJobStarts,\
NumJobCompletions,NumShadowStarts,JobDisconnectedDate,JobLeaseDuration,RequestCpus,RequestMemory,RequestDisk,RequestGPUs";

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// JobStatus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits.
    Idle,
    /// It runs, or its files are being transferred.
    Running,
    /// It is being removed, or was.
    Removed,
    /// It ended by itself.
    Completed,
    /// Held by HTCondor or somebody.
    Held,
    /// Its machine has stopped it for a while.
    Suspended,
    /// Anything else: it is there.
    Other(i64),
}

/// A job as HTCondor shows it.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Ad {
    cluster_id: i64,
    proc_id: i64,
    job_status: i64,
    #[serde(rename = "ContainerUUID")]
    container: String,
    #[serde(rename = "AttemptUUID")]
    attempt: String,
    /// Its place among its user's jobs.
    pub job_prio: i64,
    hold_reason: Option<String>,
    hold_reason_code: Option<i64>,
    last_hold_reason: Option<String>,
    last_hold_reason_code: Option<i64>,
    last_job_status: i64,
    /// Which of its kind its hold is.
    pub hold_reason_sub_code: Option<i64>,
    /// Why it was removed.
    pub remove_reason: Option<String>,
    /// Why it was last taken off its machine, where HTCondor tells.
    pub vacate_reason: String,
    /// Why it was last not given a slot: said of one of many that are alike.
    pub last_rej_match_reason: Option<String>,
    /// Which jobs are alike for the negotiator.
    pub auto_cluster_id: Option<i64>,
    /// crunch-run's exit status.
    pub exit_code: Option<i64>,
    /// A signal ended crunch-run.
    pub exit_by_signal: Option<bool>,
    /// Which.
    pub exit_signal: Option<i64>,
    last_remote_host: Option<String>,
    remote_host: Option<String>,
    num_job_starts: i64,
    num_job_completions: i64,
    // Numbers, or what an admin's lines make of them.
    job_disconnected_date: Value,
    job_lease_duration: Value,
    /// How often HTCondor began to start it.
    pub num_shadow_starts: i64,
    // Numbers, or what an admin's lines make of them.
    request_cpus: Value,
    request_memory: Value,
    request_disk: Value,
    #[serde(rename = "RequestGPUs")]
    request_gpus: Value,
}

/// All ads of an answer. Nothing at all is how condor_q says that there is no job.
pub fn parse(answer: &str) -> Result<Vec<Ad>, serde_json::Error> {
    match answer.trim().is_empty() {
        true => Ok(Vec::new()),
        false => serde_json::from_str(answer),
    }
}

impl Ad {
    /// As the engine sees it; none if it is not the job of a container.
    pub fn job(&self) -> Option<Job> {
        Some(Job {
            id: JobId(self.id()),
            container: ContainerUuid::parse(&self.container).ok()?,
            attempt: TokenUuid::parse(&self.attempt).ok(),
            // Everything else is still there, a job that is being removed, too: its crunch-run may be saving what there
            // is. When it is done it leaves the queue.
            ended: self.state() == State::Completed,
            node: self.node(),
        })
    }

    /// Its number.
    pub fn id(&self) -> String {
        format!("{}.{}", self.cluster_id, self.proc_id)
    }

    /// Its container.
    pub fn container(&self) -> &str {
        &self.container
    }

    /// Its state.
    pub fn state(&self) -> State {
        match self.job_status {
            1 => State::Idle,
            2 | 6 => State::Running,
            3 => State::Removed,
            4 => State::Completed,
            5 => State::Held,
            7 => State::Suspended,
            other => State::Other(other),
        }
    }

    /// The connection to the machine it runs on is lost: since when (Unix time), and how many seconds later HTCondor gives
    /// it up, where that is known.
    pub fn lost(&self) -> Option<(i64, Option<i64>)> {
        let since = self.job_disconnected_date.as_i64();
        let since = since.filter(|date| *date > 0)?;
        (self.state() == State::Running).then_some((since, self.job_lease_duration.as_i64()))
    }

    /// It waits or is held: nothing of it is on any machine.
    pub fn rests(&self) -> bool {
        matches!(self.state(), State::Idle | State::Held)
    }

    /// Why it is held, or was when it was removed, and the kind of hold.
    pub fn hold(&self) -> Option<(&str, i64)> {
        let now = (&self.hold_reason, self.hold_reason_code);
        let last = (&self.last_hold_reason, self.last_hold_reason_code);
        // A job that is removed is not held any more.
        let (reason, code) =
            match self.job_status == 3 && self.last_job_status == 5 && now.0.is_none() {
                true => last,
                false => now,
            };
        let is_held = reason.is_some() || self.state() == State::Held;
        let reason = reason.as_deref().unwrap_or("no reason given");
        is_held.then_some((reason, code.unwrap_or_default()))
    }

    /// Where it stands in the queue.
    pub fn standing(&self) -> Standing {
        Standing {
            prio: self.job_prio,
            number: (self.cluster_id, self.proc_id),
        }
    }

    /// The machine it is or was on; the slot's name before it does not count.
    pub fn node(&self) -> Option<String> {
        let now = self.remote_host.as_deref();
        let host = now.or(self.last_remote_host.as_deref())?;
        Some(host.rsplit('@').next().unwrap_or(host).to_owned())
    }

    /// It was started at least once.
    pub fn has_started(&self) -> bool {
        self.num_job_starts > 0
    }

    /// A start of it was not followed by an exit of its own: the container may have run.
    pub fn may_have_run(&self) -> bool {
        self.num_job_starts > self.num_job_completions
    }

    /// What it asks for is in plain numbers.
    pub fn asks_plainly(&self) -> bool {
        let amounts = [&self.request_cpus, &self.request_memory, &self.request_disk];
        let gpus = &self.request_gpus;
        amounts.iter().all(|amount| amount.is_u64()) && (gpus.is_null() || gpus.is_u64())
    }

    /// What it asks for, as far as that is in plain numbers.
    pub fn needs(&self) -> Needs {
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let small = |value: &Value| u32::try_from(number(value)).unwrap_or(u32::MAX);
        Needs {
            cpus: small(&self.request_cpus),
            ram: number(&self.request_memory).saturating_mul(MIB),
            scratch: number(&self.request_disk).saturating_mul(KIB),
            gpus: small(&self.request_gpus),
            ..Needs::default()
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
            .filter_map(Ad::job)
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
