//! The output of `explain`: why a container runs or does not. Input: its record, its lock and the
//! scheduler's answers.

use std::fmt::Write;

use arvados_client::UserUuid;
use arvados_client::api::Note;
use arvados_client::records::{Container, ContainerState};
use jiff::Timestamp;
use serde::Serialize;

use crate::model::decision::Decision;
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
    /// The last notes of a dispatcher on it, newest first, or why they could not be read.
    pub notes: Result<Vec<Note>, String>,
    /// The user of the dispatch token, if the server tells. Others' notes are not believed.
    pub own_user: Option<UserUuid>,
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
        last: last(facts),
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

/// The notes in words.
fn last(facts: &ExplainInput) -> Vec<String> {
    let words = |note: &Note| {
        let by = match (&note.by, is_own(facts, note)) {
            (Some(user), false) => format!(" (written by {user})"),
            _ => String::new(),
        };
        format!("{}, {}{by}", time_text(note.at), note.text)
    };
    match &facts.notes {
        Ok(notes) => notes.iter().map(words).collect(),
        Err(error) => vec![error.clone()],
    }
}

/// Whether the service wrote the note, as far as its user tells.
fn is_own(facts: &ExplainInput, note: &Note) -> bool {
    facts.own_user.is_some() && note.by == facts.own_user
}

fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

/// Why the dispatcher did not run it the last time, as it says itself. Only the service knows the
/// limits and delays that hold a container.
fn last_why_not(facts: &ExplainInput) -> Option<String> {
    let newest = facts.notes.as_ref().ok()?.first()?;
    if !is_own(facts, newest) {
        return None;
    }
    let is_why_not = Decision::is_why_not(&newest.decision);
    is_why_not.then(|| format!("{} (the dispatcher, {})", newest.text, time_text(newest.at)))
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
                let submits = format!(
                    "the dispatcher submits it {ON_ITS_TURN} in {scheduler}; \
                    if none are pending, check that {program} runs, and read its log about this container"
                );
                match last_why_not(facts) {
                    Some(held) => format!("{held}. When that has passed, {submits}"),
                    None => submits,
                }
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
mod tests;
