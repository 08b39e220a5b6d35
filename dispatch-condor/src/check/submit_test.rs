//! The job of `check --submit-test`: it shows that files travel to a node and back, and what crunch-run finds there.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use arvados_client::{ContainerUuid, TokenUuid};
use dispatch_core::attempt_dir::token_name;
use dispatch_core::check::submit_test::{self, State};
use dispatch_core::command::Command;
use dispatch_core::handover::job_number;
use dispatch_core::needs::Needs;

use crate::analysis::{self, Verdict};
use crate::lines::Asks;
use crate::policy::Starts;
use crate::submission::{Common, Item, Settings};

/// What is asked of a job.
const COLUMNS: &str =
    "JobStatus,HoldReason,LastHoldReason,RemoteHost,LastRemoteHost,ExitCode,RemoveReason";

/// How long HTCondor may take to tell why the job waits.
const PATIENCE: Duration = Duration::from_secs(20);

/// HTCondor, for such a job.
pub struct Trial<'a> {
    pub settings: &'a Settings,
    /// Where it must run.
    pub node: Option<&'a str>,
}

impl submit_test::Trial for Trial<'_> {
    const SUBMIT: &'static str = "condor_submit";
    const CANCEL: &'static str = "condor_rm";
    const MEND: &'static str = "see that nodes have this version of crunch-run where --crunch-run says, or give --transfer-crunch-run and a crunch-run that runs there";
    /// It comes with the end of the job.
    const LATE: Duration = Duration::from_secs(5);

    async fn submit(
        &self,
        container: &ContainerUuid,
        needs: &Needs,
        place: &Path,
    ) -> Result<String, Box<dyn Error>> {
        let mut settings = self.settings.clone();
        if let Some(name) = self.node {
            let name = name.replace(['"', '\\'], "");
            let there = format!("TARGET.Machine == \"{name}\"");
            settings.lines.set("node", "requirements", &there)?;
        }
        settings.crunch_run.push("--check".to_owned());
        settings.types.clear();
        let attempt = container.to_string().replacen("dz642", "gj3su", 1);
        let attempt = TokenUuid::parse(&attempt)?;
        std::fs::write(place.join(token_name(&attempt)), "no token")?;
        let common = Common {
            // No dispatcher's.
            label: "check",
            avoid: &[],
            asks: Asks::of(needs),
            starts: Starts(1),
            log: &place.join("events.log"),
        };
        let item = Item {
            container,
            attempt: &attempt,
            needs,
            dir: place,
        };
        let description = settings.describe(&common, &[item])?;
        let command = Command::new("condor_submit").args(["-terse", "-"]);
        let answer = command.input(description).succeed().await?;
        Ok(job_number(&answer.output, " - "))
    }

    async fn state(&self, job: &str) -> Result<State, String> {
        let queued = ask("condor_q", job, &[]).await?;
        match state(&queued)? {
            Some(state) => Ok(state),
            None => {
                let ended = ask("condor_history", job, &["-limit", "1"]).await?;
                let gone = || State::Ended("is gone".to_owned());
                Ok(state(&ended)?.unwrap_or_else(gone))
            }
        }
    }

    async fn never(&self, job: &str, needs: &Needs) -> Option<String> {
        if self.settings.pool_grows {
            return None;
        }
        match analysis::verdict(job, needs, PATIENCE).await {
            Verdict::Never(why) => Some(why),
            Verdict::Matches | Verdict::Unknown => None,
        }
    }

    async fn cancel(&self, job: &str) -> Result<(), String> {
        if let State::Ended(_) = self.state(job).await? {
            // A held one is still there.
            let _ = Command::new("condor_rm").args([job]).succeed().await;
            return Ok(());
        }
        let done = Command::new("condor_rm").args([job]).succeed().await;
        done.map(drop).map_err(|error| error.to_string())
    }
}

async fn ask(program: &str, job: &str, more: &[&str]) -> Result<String, String> {
    let arguments = [job, "-json", "-attributes", COLUMNS];
    let command = Command::new(program).args(arguments).args(more);
    let answer = command.succeed().await;
    answer
        .map(|answer| answer.output)
        .map_err(|error| error.to_string())
}

/// What an answer says of its only job; none: it has none.
fn state(answer: &str) -> Result<Option<State>, String> {
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
        Some(1) => State::Waits("HTCondor has not matched it with a slot".to_owned()),
        // By the policy of our own description; why it was held tells more.
        Some(3) if ad["LastHoldReason"].is_string() => State::Ended(format!(
            "was held, and then removed: {}",
            text("LastHoldReason")
        )),
        Some(3) => State::Ended(format!("was removed: {}", text("RemoveReason"))),
        Some(4) => State::Ended(format!("ended on {host} with exit code {}", ad["ExitCode"])),
        Some(5) => State::Ended(format!("was held: {}", text("HoldReason"))),
        _ => State::Runs(host),
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
            (r#"[{"JobStatus": 1}]"#, Some(State::Waits("HTCondor has not matched it with a slot".into()))),
            (r#"[{"JobStatus": 2, "RemoteHost": "slot1_1@n1"}]"#, Some(State::Runs("slot1_1@n1".into()))),
            (r#"[{"JobStatus": 4, "LastRemoteHost": "slot1_1@n1", "ExitCode": 2}]"#, Some(State::Ended("ended on slot1_1@n1 with exit code 2".into()))),
            (r#"[{"JobStatus": 3, "RemoveReason": "by me"}]"#, Some(State::Ended("was removed: by me".into()))),
            (r#"[{"JobStatus": 3, "LastHoldReason": "no such file"}]"#, Some(State::Ended("was held, and then removed: no such file".into()))),
            (r#"[{"JobStatus": 5, "HoldReason": "no such file"}]"#, Some(State::Ended("was held: no such file".into()))),
        ];
        for (answer, expected) in rows {
            assert_eq!(state(answer).unwrap(), expected, "{answer}");
        }
        assert!(state("[{").is_err());
    }
}
