//! Why a container runs, or does not: what the record, its lock and the scheduler say, in one answer.

use std::fmt::Write;

use arvados_client::records::{Container, ContainerState};
use serde::Serialize;

use crate::needs::Fit;
use crate::scheduler::{Outlook, Waiting};
use crate::world::Job;

/// How a dispatcher and its scheduler are called.
#[derive(Debug, Clone, Copy)]
pub struct Names {
    /// The scheduler.
    pub scheduler: &'static str,
    /// The dispatcher's program.
    pub program: &'static str,
    /// Its flag for its directory.
    pub directory: &'static str,
    /// The command that tells more of a job that waits, before the job's number.
    pub ask: &'static str,
}

/// What is known.
#[derive(Debug)]
pub struct Facts {
    /// Whose facts.
    pub names: Names,
    /// Its record.
    pub container: Container,
    /// Whether the token that holds its lock is of this dispatcher.
    pub held_by_us: bool,
    /// Its jobs in the scheduler that are this dispatcher's, or why that is not known.
    pub jobs: Result<Vec<Job>, String>,
    /// What its job waits for.
    pub waiting: Option<Waiting>,
    /// How the job of the attempt that holds the lock ended, where it is gone.
    pub ended: Option<String>,
    /// Whether it could start here.
    pub fit: Fit,
    /// What a dispatcher said of it last, in the server's `logs`, the newest first.
    pub last_words: Vec<String>,
    /// What the scheduler itself has to say about its job.
    pub analysis: Option<String>,
}

/// The answer.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// State and priority.
    pub record: String,
    /// Who has it.
    pub lock: String,
    /// What the scheduler has of it.
    pub jobs: String,
    /// Why it is as it is, and what happens next.
    pub why: String,
    /// What a dispatcher said of it last, and when; the newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<String>,
    /// What the scheduler itself has to say about its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<String>,
}

/// From what is known. Pure.
pub fn explain(facts: &Facts) -> Explanation {
    let container = &facts.container;
    let (state, priority) = (&container.state, container.priority);
    let lock = match (&container.locked_by_uuid, facts.held_by_us) {
        (None, _) => "nobody holds it".to_owned(),
        (Some(token), true) => format!("{token}, an attempt of this dispatcher"),
        (Some(token), false) => format!("{token}, not of this dispatcher"),
    };
    Explanation {
        record: format!(
            "{state}, priority {priority}, locked {} times",
            container.lock_count
        ),
        lock,
        jobs: jobs(facts),
        why: why(facts),
        last: facts.last_words.clone(),
        analysis: facts.analysis.clone(),
    }
}

fn jobs(facts: &Facts) -> String {
    let jobs = match &facts.jobs {
        Ok(jobs) => jobs,
        Err(error) => return error.clone(),
    };
    let one = |job: &Job| {
        let place = job.node.as_deref().map(|node| format!(" on {node}"));
        let ended = if job.ended { ", ended" } else { "" };
        format!("job {}{}{ended}", job.id.0, place.unwrap_or_default())
    };
    match (jobs.as_slice(), &facts.ended) {
        ([], None) => "no job of it".to_owned(),
        ([], Some(ended)) => format!("no job of it any more; {ended}"),
        (jobs, _) => jobs.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

fn why(facts: &Facts) -> String {
    use ContainerState as State;
    let Names {
        scheduler,
        program,
        directory,
        ask,
    } = facts.names;
    let container = &facts.container;
    let status = &container.runtime_status;
    let said = |text: &Option<String>, else_said: &str| {
        text.clone().unwrap_or_else(|| else_said.to_owned())
    };
    let Ok(jobs) = &facts.jobs else {
        return format!("{scheduler} does not answer, so that nothing is done until it does");
    };
    let job = jobs.iter().find(|job| !job.ended);
    match (&container.state, facts.held_by_us, job) {
        (State::Complete, ..) => match container.exit_code {
            Some(code) => format!("it has ended, with exit code {code}"),
            None => "it has ended".to_owned(),
        },
        (State::Cancelled, ..) => {
            let reason = said(&status.error, "its record does not say why");
            format!("it was cancelled: {reason}")
        }
        (State::Unknown(state), ..) => {
            format!("its state {state:?} is not known here; it is left alone")
        }
        (_, _, Some(job)) if container.priority == 0 => {
            format!("nobody wants it any more (priority 0): job {} is being stopped", job.id.0)
        }
        (State::Queued, ..) if container.priority == 0 => {
            "nobody wants it now: its priority is 0; raise that of its request".to_owned()
        }
        (State::Queued, _, Some(job)) => format!(
            "job {} is left over from an earlier attempt; it starts again when that has ended",
            job.id.0
        ),
        (State::Queued, _, None) => match &facts.fit {
            Fit::Never(why) => format!("it cannot run here, though another dispatcher may run it: {why}"),
            Fit::Later(why) => format!("it is not handed to {scheduler} yet: {why}"),
            Fit::Now => {
                let again = match container.lock_count {
                    0 => "",
                    // Only the service knows when that is over; it says so in the server's logs.
                    _ => ", when the wait after its last attempt is over (`last`)",
                };
                format!(
                    "it is taken{again}, highest priority first, as soon as fewer than --max-pending wait in {scheduler}; \
                    if none of ours wait there, see that {program} runs, and what its log says of this container"
                )
            }
        },
        (_, false, _) => format!("another dispatcher has it, or an earlier one with another {directory}"),
        (State::Locked, true, Some(job)) => match (&facts.waiting, &job.node) {
            (Some(waiting), _) => {
                // The service looks longer, and may know more.
                let noted = status.activity.as_ref().filter(|noted| {
                    waiting.outlook == Outlook::Passes && **noted != waiting.words
                });
                let noted = noted.map(|noted| format!("; its record says: {noted}"));
                let noted = noted.unwrap_or_default();
                format!("job {} waits in {scheduler}: {}{noted}", job.id.0, waiting.words)
            }
            (None, None) => format!("job {} waits in {scheduler}; {ask}{} tells more", job.id.0, job.id.0),
            (None, Some(node)) => {
                let activity = said(&status.activity, "it prepares its start");
                format!("job {} has started on {node}: {activity}", job.id.0)
            }
        },
        (State::Locked, true, None) => {
            "it is about to be submitted, or its job has ended and it is given back at the next look".to_owned()
        }
        (State::Running, true, Some(job)) => {
            let activity = said(&status.activity, "its command runs");
            match &facts.waiting {
                Some(waiting) => format!("it runs as job {}: {activity}; {}", job.id.0, waiting.words),
                None => format!("it runs as job {}: {activity}", job.id.0),
            }
        }
        (State::Running, true, None) => {
            "its job is gone without a final word: the record is cancelled at the next look, or waits for results on its node"
                .to_owned()
        }
    }
}

impl Explanation {
    /// For people.
    pub fn text(&self) -> String {
        let mut page = String::new();
        let lines = [
            ("record", &self.record),
            ("lock", &self.lock),
            ("jobs", &self.jobs),
            ("why", &self.why),
        ];
        for (what, words) in lines {
            // A string never refuses to be written to.
            let _ = writeln!(page, "{what:<6}  {words}");
        }
        for last in &self.last {
            let _ = writeln!(page, "{:<6}  {last}", "last");
        }
        for line in self.analysis.iter().flat_map(|analysis| analysis.lines()) {
            let _ = writeln!(page, "        {line}");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::world::JobId;

    const NAMES: Names = Names {
        scheduler: "Slurm",
        program: "dispatch-slurm",
        directory: "--shared-dir",
        ask: "squeue --start --job=",
    };

    fn facts(record: Value, held_by_us: bool, jobs: &[(&str, Option<&str>)]) -> Facts {
        let mut all = json!({"uuid": "zzzzz-dz642-queuedcontainer", "priority": 7});
        for (key, value) in record.as_object().unwrap() {
            all[key] = value.clone();
        }
        let container: Container = serde_json::from_value(all).unwrap();
        let job = |(id, node): &(&str, Option<&str>)| Job {
            id: JobId((*id).to_owned()),
            container: container.uuid.clone(),
            attempt: None,
            ended: false,
            node: node.map(str::to_owned),
        };
        Facts {
            names: NAMES,
            analysis: None,
            jobs: Ok(jobs.iter().map(job).collect()),
            container,
            held_by_us,
            waiting: None,
            ended: None,
            fit: Fit::Now,
            last_words: Vec::new(),
        }
    }

    #[test]
    fn every_state_has_its_reason() {
        let locked = "zzzzz-gj3su-000000000000000";
        #[rustfmt::skip]
        let rows = [
            (facts(json!({"state": "Complete", "exit_code": 3}), false, &[]), "with exit code 3"),
            (facts(json!({"state": "Cancelled", "runtime_status": {"error": "no disk"}}), false, &[]), "it was cancelled: no disk"),
            (facts(json!({"state": "Odd"}), false, &[]), "left alone"),
            (facts(json!({"state": "Queued", "priority": 0}), false, &[]), "its priority is 0"),
            (facts(json!({"state": "Running", "priority": 0}), true, &[("3", None)]), "job 3 is being stopped"),
            (facts(json!({"state": "Queued"}), false, &[]), "it is taken, highest"),
            (facts(json!({"state": "Queued", "lock_count": 1}), false, &[]), "its last attempt is over"),
            (facts(json!({"state": "Queued"}), false, &[("3", None)]), "left over"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), false, &[]), "another dispatcher"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[("3", None)]), "waits in Slurm"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[("3", Some("n1"))]), "job 3 has started on n1"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[]), "about to be submitted"),
            (facts(json!({"state": "Running", "locked_by_uuid": locked, "runtime_status": {"activity": "saving"}}), true, &[("3", None)]), "it runs as job 3: saving"),
            (facts(json!({"state": "Running", "locked_by_uuid": locked}), true, &[]), "its job is gone"),
        ];
        for (n, (facts, words)) in rows.iter().enumerate() {
            let got = explain(facts).why;
            assert!(got.contains(words), "row {n}: {got}");
        }
    }

    #[test]
    fn what_slurm_says_is_told() {
        let mut facts = facts(json!({"state": "Queued"}), false, &[]);
        facts.fit = Fit::Never("too large".into());
        assert!(explain(&facts).why.ends_with("too large"));
        facts.ended = Some("it was lost".into());
        assert_eq!(explain(&facts).jobs, "no job of it any more; it was lost");
        facts.last_words = vec!["2026-11-22 04:00:00 UTC, dispatched as job 3".into()];
        let page = explain(&facts).text();
        assert!(
            page.ends_with("last    2026-11-22 04:00:00 UTC, dispatched as job 3\n"),
            "{page}"
        );
        facts.jobs = Err("no answer".into());
        let told = explain(&facts);
        assert_eq!(told.jobs, "no answer");
        assert!(told.why.contains("does not answer"));
        assert!(told.text().starts_with("record  Queued, priority 7"));
    }

    #[test]
    fn a_job_that_waits_says_for_what() {
        let locked = "zzzzz-gj3su-000000000000000";
        let record = json!({"state": "Locked", "locked_by_uuid": locked});
        let mut facts = facts(record, true, &[("3", None)]);
        facts.waiting = Some(Waiting {
            outlook: Outlook::Passes,
            words: "for free nodes".into(),
        });
        assert_eq!(explain(&facts).why, "job 3 waits in Slurm: for free nodes");
        facts.container.runtime_status.activity = Some("no node has it".into());
        let both = "job 3 waits in Slurm: for free nodes; its record says: no node has it";
        assert_eq!(explain(&facts).why, both);
    }
}
