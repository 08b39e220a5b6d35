//! Reading `condor_q -json` and `condor_history -json`. Job states: HTCondor manual, "Job ClassAd Attributes", JobStatus.

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::exit_status;
use dispatch_core::world::{Job, JobId};
use serde::Deserialize;

/// The columns asked for.
pub const COLUMNS: &str = "ClusterId,ProcId,JobStatus,ContainerUUID,AttemptUUID,HoldReason,RemoveReason,ExitCode,ExitBySignal,ExitSignal,LastRemoteHost,RemoteHost";

/// A job as HTCondor shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Ad {
    cluster_id: i64,
    proc_id: i64,
    job_status: i64,
    #[serde(rename = "ContainerUUID")]
    container: String,
    #[serde(rename = "AttemptUUID")]
    attempt: String,
    hold_reason: Option<String>,
    remove_reason: Option<String>,
    exit_code: Option<i64>,
    exit_by_signal: Option<bool>,
    exit_signal: Option<i64>,
    last_remote_host: Option<String>,
    remote_host: Option<String>,
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
            id: JobId(format!("{}.{}", self.cluster_id, self.proc_id)),
            container: ContainerUuid::parse(&self.container).ok()?,
            attempt: TokenUuid::parse(&self.attempt).ok(),
            ended: self.has_ended(),
            node: self.node(),
        })
    }

    /// Completed. Everything else is still there, a job that is being removed (3) too: its crunch-run may be saving
    /// what there is. When it is done it leaves the queue.
    fn has_ended(&self) -> bool {
        self.job_status == 4
    }

    /// The machine it was on; the slot's name before it does not count.
    pub fn node(&self) -> Option<String> {
        let now = self.remote_host.as_deref();
        let host = now.or(self.last_remote_host.as_deref())?;
        Some(host.rsplit('@').next().unwrap_or(host).to_owned())
    }

    /// Held by HTCondor or an admin: somebody must look at it.
    pub fn hold(&self) -> Option<&str> {
        (self.job_status == 5).then(|| self.hold_reason.as_deref().unwrap_or("no reason given"))
    }

    /// Whether its results are on the node, to be delivered later.
    pub fn is_undelivered(&self) -> bool {
        self.has_ended() && self.exit_code == Some(exit_status::UNDELIVERED)
    }

    /// How it ended, in one sentence.
    pub fn verdict(&self) -> String {
        let job = format!("HTCondor job {}.{}", self.cluster_id, self.proc_id);
        match (self.job_status, self.exit_by_signal, self.exit_code) {
            (3, ..) => {
                let reason = self.remove_reason.as_deref().unwrap_or("no reason given");
                match &self.hold_reason {
                    Some(held) => format!("{job} was held and then removed: {held}"),
                    None => format!("{job} was removed: {reason}"),
                }
            }
            (4, Some(true), _) => format!(
                "{job}: crunch-run was killed by signal {}",
                self.exit_signal.unwrap_or_default()
            ),
            (4, _, Some(code)) => {
                let said = exit_status::sentence(code);
                format!("{job} ended with exit code {code}: {said}")
            }
            (5, ..) => format!("{job} is held: {}", self.hold().unwrap_or_default()),
            (status, ..) => format!("{job} is in state {status}"),
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
    fn verdicts_are_sentences() {
        let ads = parse(ANSWER).unwrap();
        assert_eq!(ads[2].hold(), Some("no output file"));
        assert_eq!(ads[2].verdict(), "HTCondor job 8.0 is held: no output file");
        assert!(ads[1].verdict().contains("exit code 75"));
        let removed = Ad {
            job_status: 3,
            remove_reason: Some("via condor_rm (by user me)".into()),
            ..Ad::default()
        };
        assert_eq!(
            removed.verdict(),
            "HTCondor job 0.0 was removed: via condor_rm (by user me)"
        );
    }
}
