//! The output of `explain`: why a container runs or does not. Input: its record, its lock and the
//! scheduler's answers.

use std::fmt::Write;

use arvados_client::records::{Container, ContainerState};
use serde::Serialize;

use crate::model::owner::{KnownOwner, Owner};
use crate::model::resources::Admission;
use crate::model::world::Job;
use crate::report::health::ON_ITS_TURN;
use crate::scheduler::{PendingOutlook, PendingReason};
use crate::service::subcommands::Render;

/// The names of a dispatcher and its scheduler, for texts.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerTerms {
    /// Name of the scheduler.
    pub scheduler: &'static str,
    /// Name of the dispatcher's program.
    pub program: &'static str,
    /// Command that shows details of a pending job, without the job's number.
    pub ask: &'static str,
}

/// The input of an explanation.
#[derive(Debug)]
pub struct ExplainInput {
    /// Names of the dispatcher and its scheduler.
    pub names: SchedulerTerms,
    /// Record of the container.
    pub container: Container,
    /// Whether the token that holds the lock belongs to this dispatcher.
    pub held_by_us: bool,
    /// The container's jobs of this dispatcher, or why they could not be listed.
    pub jobs: Result<Vec<Job>, String>,
    /// Pending reason of its job.
    pub waiting: Option<PendingReason>,
    /// End of the lock-holding attempt's job, if that job is gone.
    pub ended: Option<String>,
    /// Whether the container could start here.
    pub fit: Admission,
    /// What must pass before a start, if the submit host or the file storage has a fault.
    pub host_fault: Option<String>,
    /// The last entries of a dispatcher about it in the server's `logs`, newest first.
    pub last_log_entries: Vec<String>,
    /// The scheduler's own analysis of its job.
    pub analysis: Option<String>,
    /// User and project of the container, if they are known.
    pub owner: KnownOwner,
}

/// The explanation for the user.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// UUID of the container.
    pub container: String,
    /// User and project of the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// State and priority of the record.
    pub record: String,
    /// Holder of the lock.
    pub lock: String,
    /// The container's jobs in the scheduler.
    pub jobs: String,
    /// The reason for its state, and the next step.
    pub why: String,
    /// The last entries of a dispatcher about it with their times, newest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last: Vec<String>,
    /// The scheduler's own analysis of its job.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analysis: Option<String>,
}

/// Explains a container. No I/O.
pub fn explain(facts: &ExplainInput) -> Explanation {
    let container = &facts.container;
    let (state, priority) = (&container.state, container.priority);
    let lock = match (&container.locked_by_uuid, facts.held_by_us) {
        (None, _) => "nobody holds it".to_owned(),
        (Some(token), true) => format!("{token}, an attempt of this dispatcher"),
        (Some(token), false) => format!("{token}, not of this dispatcher"),
    };
    Explanation {
        container: container.uuid.to_string(),
        owner: facts.owner.as_deref().and_then(owner_text),
        record: match container.lock_count {
            1 => format!("{state}, priority {priority}, locked once"),
            times => format!("{state}, priority {priority}, locked {times} times"),
        },
        lock,
        jobs: jobs(facts),
        why: why(facts),
        last: facts.last_log_entries.clone(),
        analysis: facts.analysis.clone(),
    }
}

/// The owner in words.
fn owner_text(owner: &Owner) -> Option<String> {
    let user = owner.user_label()?;
    Some(match (&owner.project, &owner.project_name) {
        (Some(project), Some(name)) => format!("user {user}, project {name:?} ({project})"),
        (Some(project), None) => format!("user {user}, project {project}"),
        (None, _) => format!("user {user}, no project"),
    })
}

fn jobs(facts: &ExplainInput) -> String {
    let jobs = match &facts.jobs {
        Ok(jobs) => jobs,
        Err(error) => return error.clone(),
    };
    let one = |job: &Job| {
        let node = job.node.as_deref().map(|node| format!(" on {node}"));
        let ended = if job.ended { ", ended" } else { "" };
        format!("job {}{}{ended}", job.id.0, node.unwrap_or_default())
    };
    match (jobs.as_slice(), &facts.ended) {
        ([], None) => "no job".to_owned(),
        ([], Some(ended)) => format!("no job any more; {ended}"),
        (jobs, _) => jobs.iter().map(one).collect::<Vec<_>>().join("; "),
    }
}

fn why(facts: &ExplainInput) -> String {
    use ContainerState as State;
    let SchedulerTerms {
        scheduler,
        program,
        ask,
    } = facts.names;
    let container = &facts.container;
    let status = &container.runtime_status;
    let text_or =
        |text: &Option<String>, default: &str| text.clone().unwrap_or_else(|| default.to_owned());
    let Ok(jobs) = &facts.jobs else {
        return format!(
            "{scheduler} does not answer: what runs goes on, and the dispatcher starts and stops nothing until it does"
        );
    };
    let job = jobs.iter().find(|job| !job.ended);
    let is_next = match container.state {
        State::Queued => container.priority > 0 && facts.fit.never().is_none(),
        State::Locked => facts.held_by_us,
        _ => false,
    };
    if let (Some(fault), true, None) = (&facts.host_fault, is_next, job) {
        return format!("the dispatcher submits it as soon as {fault}");
    }
    match (&container.state, facts.held_by_us, job) {
        (State::Complete, ..) => match container.exit_code {
            Some(code) => format!("it has ended, with exit code {code}"),
            None => "it has ended".to_owned(),
        },
        (State::Cancelled, ..) => {
            let reason = text_or(&status.error, "its record does not say why");
            format!("it was cancelled: {reason}")
        }
        (State::Unknown(state), ..) => {
            format!("this version does not know its state {state:?}, and leaves it alone")
        }
        (_, _, Some(job)) if container.priority == 0 => {
            format!("its priority is 0: the dispatcher is cancelling job {}", job.id.0)
        }
        (State::Queued, ..) if container.priority == 0 => {
            "its priority is 0: raise the priority of its request".to_owned()
        }
        (State::Queued, _, Some(job)) => format!(
            "job {} of an earlier attempt still exists; the container starts again when that job has ended",
            job.id.0
        ),
        (State::Queued, _, None) => match &facts.fit {
            Admission::Never(why) | Admission::Impossible(why) => format!("this dispatcher cannot run it: {why}"),
            Admission::Later(why) => format!("the dispatcher does not submit it yet: {why}"),
            Admission::Now => {
                let again = match container.lock_count {
                    0 => "",
                    // Only the service knows the end of the wait. It writes it to the server's
                    // logs.
                    _ => " after the retry delay of its last attempt (`before`)",
                };
                format!(
                    "the dispatcher submits it{again}, {ON_ITS_TURN} in {scheduler}; \
                    if none are pending, check that {program} runs, and read its log about this container"
                )
            }
        },
        (_, false, _) => "another dispatcher has it, or an earlier one with another --state-dir".to_owned(),
        (State::Locked, true, Some(job)) => match (&facts.waiting, &job.node) {
            (Some(waiting), _) => {
                // The service observes the job for longer, so its text may say more.
                let noted = status.activity.as_ref().filter(|noted| {
                    waiting.outlook == PendingOutlook::Transient && **noted != waiting.text
                });
                let words = noted.unwrap_or(&waiting.text);
                // The service names the job in the record, too.
                match words.strip_prefix(&format!("{scheduler} job {} ", job.id.0)) {
                    Some(words) => format!("job {} {words}", job.id.0),
                    None => format!("job {} waits in {scheduler}: {words}", job.id.0),
                }
            }
            (None, None) => format!("job {} waits in {scheduler}; {ask}{} shows more", job.id.0, job.id.0),
            (None, Some(node)) => {
                match &status.activity {
                    None => format!("job {} has started on {node}", job.id.0),
                    // A dispatcher may have written it before the job started.
                    Some(noted) => format!("job {} has started on {node}; its record says: {noted}", job.id.0),
                }
            }
        },
        (State::Locked, true, None) => {
            match &facts.ended {
                None => "the dispatcher is submitting its job".to_owned(),
                Some(ended) => format!("its job has ended, and the next poll returns the container to the queue: {ended}"),
            }
        }
        (State::Running, true, Some(job)) => {
            let activity = text_or(&status.activity, "its command runs");
            match &facts.waiting {
                Some(waiting) if waiting.outlook == PendingOutlook::NeedsAdmin => {
                    format!("its job stopped, and starts anew later: {}", waiting.text)
                }
                Some(waiting) if waiting.text != activity => {
                    format!("it runs as job {}: {activity}; {}", job.id.0, waiting.text)
                }
                _ => format!("it runs as job {}: {activity}", job.id.0),
            }
        }
        (State::Running, true, None) => {
            "its job is gone and recorded no final state: the next poll cancels the record, or waits for results on the node"
                .to_owned()
        }
    }
}

impl Render for Explanation {
    fn text(&self) -> String {
        let mut page = String::new();
        let lines = [
            ("uuid", Some(&self.container)),
            ("for", self.owner.as_ref()),
            ("record", Some(&self.record)),
            ("lock", Some(&self.lock)),
            ("jobs", Some(&self.jobs)),
            ("why", Some(&self.why)),
        ];
        for (what, words) in lines {
            let Some(words) = words else { continue };
            // Writing to a string never fails.
            let _ = writeln!(page, "{what:<6}  {words}");
        }
        for last in &self.last {
            let _ = writeln!(page, "{:<6}  {last}", "before");
        }
        for line in self.analysis.iter().flat_map(|analysis| analysis.lines()) {
            let _ = writeln!(page, "        {line}");
        }
        page
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arvados_client::{GroupUuid, UserUuid};
    use serde_json::{Value, json};

    use super::*;
    use crate::model::world::JobId;

    const NAMES: SchedulerTerms = SchedulerTerms {
        scheduler: "Slurm",
        program: "dispatch-slurm",
        ask: "squeue --start --job=",
    };

    fn facts(record: Value, held_by_us: bool, jobs: &[(&str, Option<&str>)]) -> ExplainInput {
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
        ExplainInput {
            names: NAMES,
            analysis: None,
            jobs: Ok(jobs.iter().map(job).collect()),
            container,
            held_by_us,
            waiting: None,
            ended: None,
            fit: Admission::Now,
            host_fault: None,
            last_log_entries: Vec::new(),
            owner: None,
        }
    }

    #[test]
    fn every_state_has_its_reason() {
        let locked = "zzzzz-gj3su-000000000000000";
        #[rustfmt::skip]
        let rows = [
            (facts(json!({"state": "Complete", "exit_code": 3}), false, &[]), "with exit code 3"),
            (facts(json!({"state": "Cancelled", "runtime_status": {"error": "no disk"}}), false, &[]), "it was cancelled: no disk"),
            (facts(json!({"state": "Odd"}), false, &[]), "leaves it alone"),
            (facts(json!({"state": "Queued", "priority": 0}), false, &[]), "its priority is 0"),
            (facts(json!({"state": "Running", "priority": 0}), true, &[("3", None)]), "is cancelling job 3"),
            (facts(json!({"state": "Queued"}), false, &[]), "submits it, when it is its user's turn"),
            (facts(json!({"state": "Queued", "lock_count": 1}), false, &[]), "the retry delay of its last attempt"),
            (facts(json!({"state": "Queued"}), false, &[("3", None)]), "of an earlier attempt still exists"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), false, &[]), "another dispatcher"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[("3", None)]), "waits in Slurm"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[("3", Some("n1"))]), "job 3 has started on n1"),
            (facts(json!({"state": "Locked", "locked_by_uuid": locked}), true, &[]), "is submitting its job"),
            (facts(json!({"state": "Running", "locked_by_uuid": locked, "runtime_status": {"activity": "saving"}}), true, &[("3", None)]), "it runs as job 3: saving"),
            (facts(json!({"state": "Running", "locked_by_uuid": locked}), true, &[]), "its job is gone"),
        ];
        for (n, (facts, words)) in rows.iter().enumerate() {
            let got = explain(facts).why;
            assert!(got.contains(words), "row {n}: {got}");
        }
    }

    #[test]
    fn a_fault_of_this_host_is_told_of_what_waits_for_it() {
        let locked = json!({"state": "Locked", "locked_by_uuid": "zzzzz-gj3su-000000000000000"});
        let queued = |priority| json!({"state": "Queued", "priority": priority});
        for (record, jobs, expected) in [
            (queued(1), &[][..], true),
            (queued(0), &[][..], false),
            (locked.clone(), &[][..], true),
            (locked, &[("3", None)][..], false),
        ] {
            let mut facts = facts(record, true, jobs);
            facts.host_fault = Some("this host can submit jobs: the disk is full".to_owned());
            let why = explain(&facts).why;
            assert_eq!(
                why.ends_with("can submit jobs: the disk is full"),
                expected,
                "{why}"
            );
        }
    }

    #[test]
    fn what_slurm_says_is_told() {
        let mut facts = facts(json!({"state": "Queued"}), false, &[]);
        facts.fit = Admission::Never("too large".into());
        assert!(explain(&facts).why.ends_with("too large"));
        facts.ended = Some("it was lost".into());
        facts.container.state = ContainerState::Locked;
        facts.held_by_us = true;
        let why = explain(&facts).why;
        assert!(
            why.starts_with("its job has ended") && why.ends_with("it was lost"),
            "{why}"
        );
        assert_eq!(explain(&facts).jobs, "no job any more; it was lost");
        facts.last_log_entries = vec!["2026-11-22 04:00:00 UTC, dispatched as job 3".into()];
        let page = explain(&facts).text();
        assert!(
            page.ends_with("before  2026-11-22 04:00:00 UTC, dispatched as job 3\n"),
            "{page}"
        );
        facts.jobs = Err("no answer".into());
        let answer = explain(&facts);
        assert_eq!(answer.jobs, "no answer");
        assert!(answer.why.contains("does not answer"));
        let text = answer.text();
        let expected = "uuid    zzzzz-dz642-queuedcontainer\nrecord  Locked, priority 7";
        assert!(text.starts_with(expected), "{text}");
        facts.owner = Some(Arc::new(Owner {
            user: UserUuid::parse("zzzzz-tpzed-000000000000001").ok(),
            username: Some("ada".into()),
            project: GroupUuid::parse("zzzzz-j7d0g-000000000000001").ok(),
            project_name: Some("RNA".into()),
        }));
        let text = explain(&facts).text();
        let line = "for     user ada, project \"RNA\" (zzzzz-j7d0g-000000000000001)\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_job_that_waits_says_for_what() {
        let locked = "zzzzz-gj3su-000000000000000";
        let record = json!({"state": "Locked", "locked_by_uuid": locked});
        let mut facts = facts(record, true, &[("3", None)]);
        facts.waiting = Some(PendingReason {
            outlook: PendingOutlook::Transient,
            text: "for free nodes".into(),
        });
        assert_eq!(explain(&facts).why, "job 3 waits in Slurm: for free nodes");
        facts.container.runtime_status.activity = Some("no node has it".into());
        let better = "job 3 waits in Slurm: no node has it";
        assert_eq!(explain(&facts).why, better);
        facts.container.runtime_status.activity = Some("Slurm job 3 waits for Ada".into());
        assert_eq!(explain(&facts).why, "job 3 waits for Ada");
    }
}
