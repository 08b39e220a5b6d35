//! The probe job of `check --submit-test`: shows that files are transferred to a node and back, and
//! what `crunch-run --check` finds there.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use crunch_contract::job_dir::token_file_for;
use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::command::Command;
use dispatch_core::scheduler::submit_command::parse_job_id;
use dispatch_core::service::subcommands::check::probe_job::{ProbeScheduler, ProbeState};

use crate::condor::Condor;
use crate::query::better_analyze::{self, MatchVerdict};
use crate::submit::description::Item;

/// Attributes that are queried of the probe job.
const PROBE_ATTRIBUTES: &str =
    "JobStatus,HoldReason,LastHoldReason,RemoteHost,LastRemoteHost,ExitCode,RemoveReason";

/// Timeout of the analysis why the probe job waits.
const ANALYSIS_TIMEOUT: Duration = Duration::from_secs(20);

impl ProbeScheduler for Condor {
    const SUBMIT: &'static str = "condor_submit";
    const CANCEL: &'static str = "condor_rm";
    const REMEDY: &'static str = "see that nodes have this version of crunch-run where --crunch-run says, or give --transfer-crunch-run and a crunch-run that runs there";
    /// Delay of the output file after the end of the job.
    const OUTPUT_DELAY: Duration = Duration::from_secs(5);

    async fn submit(
        &self,
        container: &ContainerUuid,
        needs: &ResourceRequest,
        place: &Path,
        node: Option<&str>,
    ) -> Result<String, Box<dyn Error>> {
        if let Admission::Never(why) = self.settings.fit_partitions(needs) {
            return Err(why.into());
        }
        let mut settings = self.settings.clone();
        if let Some(name) = node {
            let name = name.replace(['"', '\\'], "");
            let there = format!("TARGET.Machine == \"{name}\"");
            settings
                .admin_lines
                .add_setting("node", "requirements", &there)?;
        }
        settings.crunch_run.push("--check".to_owned());
        settings.instance_types.clear();
        let attempt = TokenUuid::generate("check");
        std::fs::write(place.join(token_file_for(attempt.as_str())), "no token")?;
        let item = Item {
            container,
            attempt: &attempt,
            needs,
            owner: None,
            dir: place,
        };
        // The id of no dispatcher.
        let description = settings.describe_trial("check", &place.join("events.log"), item, 1)?;
        let command = Command::new("condor_submit").args(["-terse", "-"]);
        let answer = command.input(description).run_checked().await?;
        Ok(parse_job_id(&answer, " - ")?)
    }

    async fn state(&self, job: &str) -> Result<ProbeState, String> {
        let queued = query_job("condor_q", job, &[]).await?;
        match parse_state(&queued)? {
            Some(state) => Ok(state),
            None => {
                let ended = query_job("condor_history", job, &["-limit", "1"]).await?;
                let gone = || ProbeState::Ended("is gone".to_owned());
                Ok(parse_state(&ended)?.unwrap_or_else(gone))
            }
        }
    }

    async fn never_starts_because(&self, job: &str, needs: &ResourceRequest) -> Option<String> {
        if self.settings.pool_grows {
            return None;
        }
        match better_analyze::match_verdict(job, needs, ANALYSIS_TIMEOUT).await {
            MatchVerdict::Never(why) => Some(why),
            MatchVerdict::Matches | MatchVerdict::Unknown => None,
        }
    }

    async fn cancel(&self, job: &str) -> Result<(), String> {
        if let ProbeState::Ended(_) = self.state(job).await? {
            // A held job is still in the queue.
            let _ = Command::new("condor_rm").args([job]).run_checked().await;
            return Ok(());
        }
        let done = Command::new("condor_rm").args([job]).run_checked().await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

async fn query_job(program: &str, job: &str, more: &[&str]) -> Result<String, String> {
    let arguments = [job, "-json", "-attributes", PROBE_ATTRIBUTES];
    let command = Command::new(program).args(arguments).args(more);
    let answer = command.run_checked().await;
    answer
        .map(|answer| answer.stdout)
        .map_err(|error| error.to_string())
}

/// The state of the only job in an answer; none if it has no job.
fn parse_state(answer: &str) -> Result<Option<ProbeState>, String> {
    let answer = match answer.trim() {
        "" => "[]",
        answer => answer,
    };
    let ads: Vec<serde_json::Value> =
        serde_json::from_str(answer).map_err(|error| error.to_string())?;
    let Some(ad) = ads.first() else {
        return Ok(None);
    };
    let text = |key: &str| ad[key].as_str().unwrap_or("no reason given").to_owned();
    let host = ad["RemoteHost"].as_str().or(ad["LastRemoteHost"].as_str());
    let host = host.unwrap_or("a node").to_owned();
    Ok(Some(match ad["JobStatus"].as_i64() {
        Some(1) => ProbeState::Pending("HTCondor has not matched it with a slot".to_owned()),
        // The description's own policy removed the job; the reason of its hold says more.
        Some(3) if ad["LastHoldReason"].is_string() => ProbeState::Ended(format!(
            "was held, and then removed: {}",
            text("LastHoldReason")
        )),
        Some(3) => ProbeState::Ended(format!("was removed: {}", text("RemoveReason"))),
        Some(4) => ProbeState::Ended(format!("ended on {host} with exit code {}", ad["ExitCode"])),
        Some(5) => ProbeState::Ended(format!("was held: {}", text("HoldReason"))),
        _ => ProbeState::Running(host),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ad_is_a_state() {
        #[rustfmt::skip]
        let rows = [
            ("", None),
            ("[ ]", None),
            (r#"[{"JobStatus": 1}]"#, Some(ProbeState::Pending("HTCondor has not matched it with a slot".into()))),
            (r#"[{"JobStatus": 2, "RemoteHost": "slot1_1@n1"}]"#, Some(ProbeState::Running("slot1_1@n1".into()))),
            (r#"[{"JobStatus": 4, "LastRemoteHost": "slot1_1@n1", "ExitCode": 2}]"#, Some(ProbeState::Ended("ended on slot1_1@n1 with exit code 2".into()))),
            (r#"[{"JobStatus": 3, "RemoveReason": "by me"}]"#, Some(ProbeState::Ended("was removed: by me".into()))),
            (r#"[{"JobStatus": 3, "LastHoldReason": "no such file"}]"#, Some(ProbeState::Ended("was held, and then removed: no such file".into()))),
            (r#"[{"JobStatus": 5, "HoldReason": "no such file"}]"#, Some(ProbeState::Ended("was held: no such file".into()))),
        ];
        for (answer, expected) in rows {
            assert_eq!(parse_state(answer).unwrap(), expected, "{answer}");
        }
        assert!(parse_state("[{").is_err());
    }
}
