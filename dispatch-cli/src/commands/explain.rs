//! `dispatch explain`: prints why a job is pending, or how it ended, in sentences. What a
//! dispatcher itself prints is in `service/subcommands/explain.rs` of dispatch-core.

use arvados_client::Client;
use arvados_client::api::Note;
use clap::Args;
use jiff::Timestamp;
use serde_json::json;

use super::show::needs;
use crate::completion;
use crate::disk_usage;
use crate::earlier_containers;
use crate::error::CliError;
use crate::job::{Job, JobState, RETRIED_PROPERTY};
use crate::job_id::JobId;
use crate::jobs;
use crate::local_status::{self, NO_REPLY, StatusReply};
use crate::pending_reason;
use crate::printer::Output;
use crate::session::Session;
use crate::text::time_between;

/// Maximum number of log entries that are shown: the start of an attempt follows the reason why the
/// last one failed.
const MAX_LOG_ENTRIES: u64 = 3;
/// Number of locks from which a sentence mentions them.
const LOCK_COUNT_WARNING: u32 = 3;

/// Say why a job is not running, or how it ended
#[derive(Debug, Args)]
pub struct Explain {
    /// Number, uuid or name of the job; of several with this name, the newest
    #[arg(value_name = "ID", value_parser = JobId::or_name, add = completion::job_numbers())]
    pub job: JobId,
}

pub async fn run(args: Explain, session: &Session, out: Output) -> Result<(), CliError> {
    let client = &session.client;
    let job = jobs::find(client, &args.job).await?;
    let (dispatcher, server) = tokio::join!(
        local_status::fetch_for(session, &job),
        pending_reason::of_server(client, &job)
    );
    let last = match dispatcher {
        StatusReply::NotLocal => recent_log_entries(client, &job).await,
        _ => Vec::new(),
    };
    let now = Timestamp::now();
    let retried = jobs::name_in(client, &job, RETRIED_PROPERTY).await;
    let mut sentences = sentences(&job, &dispatcher, server.as_deref(), last, now);
    match retried {
        Some(other) => sentences.push(format!("It was submitted once more as job {other}.")),
        None => sentences.extend(retry_hint(&job)),
    }
    if !job.state().is_over() {
        sentences.extend(session.local.as_ref().and_then(disk_usage::shortage));
    }
    let earlier = earlier_containers::lines(client, &job).await.into_iter();
    sentences.extend(earlier.map(|line| format!("Earlier container {line}")));
    if out.json {
        return out.json(&json!({
            "id": job.number, "uuid": job.request.uuid, "state": job.state().as_str(), "sentences": sentences,
        }));
    }
    sentences.iter().try_for_each(|sentence| out.line(sentence))
}

/// The last log entries of dispatchers about a pending job, with their times; the newest first.
async fn recent_log_entries(client: &Client, job: &Job) -> Vec<Note> {
    let Some(container) = job.request.container_uuid.as_ref() else {
        return Vec::new();
    };
    // An error is ignored: the entries are only a hint.
    let notes = client.last_notes(container, MAX_LOG_ENTRIES).await;
    notes.unwrap_or_default()
}

fn sentences(
    job: &Job,
    dispatcher: &StatusReply,
    server: Option<&str>,
    last: Vec<Note>,
    now: Timestamp,
) -> Vec<String> {
    let name = job.name();
    let state = job.state();
    let mut lines = vec![state_sentence(job, state, now)];
    let container = job.container.as_ref();
    if matches!(
        state,
        JobState::Queued | JobState::Locked | JobState::Stopping
    ) {
        let reason = match (dispatcher, &job.request.container_uuid) {
            (StatusReply::Reply(status), Some(uuid)) => {
                if let Some(error) = &status.error {
                    lines.push(format!("Error of the dispatcher: {error}"));
                }
                let row = status.container(uuid.as_str());
                if row.is_some_and(|row| row.never_fits) {
                    lines.push(
                        "It cannot start on this machine as it is: kill it, and submit it anew."
                            .to_owned(),
                    );
                }
                let waits = row.and_then(|row| row.waits.clone());
                match (waits, state) {
                    (Some(waits), _) => Some(format!("Reason from the dispatcher: {waits}")),
                    (None, JobState::Queued) if status.error.is_none() => {
                        Some("The dispatcher has not listed it yet.".to_owned())
                    }
                    _ => None,
                }
            }
            (StatusReply::NoReply, _) => Some(format!("Reason: {NO_REPLY}.")),
            _ => server.map(|text| format!("Scheduling status from the server: {text}")),
        };
        lines.extend(reason);
        if let (StatusReply::Reply(status), Some(uuid)) = (dispatcher, &job.request.container_uuid)
            && let Some(place) = status.place(uuid.as_str())
        {
            lines.push(format!("It is {place}."));
        }
        let last = last.into_iter().filter(|_| state != JobState::Stopping);
        lines.extend(last.map(|note| message(note, now)));
        if state == JobState::Queued {
            lines.push(format!("It requests {}.", needs(job).join(", ")));
        }
    } else if state == JobState::Running {
        // A job that stands still, or goes on, is told of after its start.
        let started = container.and_then(|container| container.started_at);
        let newest = last.into_iter().next();
        let newest = newest.filter(|note| started.is_some_and(|started| note.at > started));
        lines.extend(newest.map(|note| message(note, now)));
    }
    if let Some(container) = container {
        let status = &container.runtime_status;
        let detail = |text: &Option<String>, more: &Option<String>| {
            text.as_ref().map(|text| match more.as_deref() {
                None | Some("") => text.clone(),
                // Output of a program, which the log has as well.
                Some(more) if more.trim_end().contains('\n') => text.clone(),
                Some(more) => format!("{text} ({more})"),
            })
        };
        let activity = status.activity.clone().filter(|_| !state.is_over());
        let told = [
            ("Now", activity),
            ("Error", detail(&status.error, &status.error_detail)),
            ("Warning", detail(&status.warning, &status.warning_detail)),
            ("Notice", status.preemption_notice.clone()),
        ];
        let told = told
            .into_iter()
            .filter_map(|(title, text)| Some((title, text?)));
        lines.extend(told.map(|(title, text)| format!("{title}: {text}")));
        if container.lock_count >= LOCK_COUNT_WARNING && !state.is_over() {
            lines.push(format!(
                "It was started {} times without running; the server cancels it after MaxDispatchAttempts, 10 by default.",
                container.lock_count
            ));
        }
    }
    if job.request.container_count > 1 {
        // The limit is unknown on a server of Arvados that does not report it.
        let most = match job.request.container_count_max {
            0 => String::new(),
            most => format!(" of at most {most}"),
        };
        lines.push(format!(
            "This is container {}{most} of its request: the earlier ones were cancelled.",
            job.request.container_count
        ));
    }
    if state.has_ended() && job.request.log_uuid.is_some() {
        lines.push(format!("See its log with: dispatch logs {name}"));
    }
    lines
}

/// How to have the job run again, if it was cancelled by an error.
fn retry_hint(job: &Job) -> Option<String> {
    let name = job.name();
    let was_cancelled = job.state() == JobState::Cancelled && job.error().is_some();
    (was_cancelled && !job.was_killed()).then(|| {
        format!("Submit it once more, unchanged, with: dispatch retry {name}; with other limits or another command: dispatch submit")
    })
}

/// A log entry of a dispatcher in words.
fn message(note: Note, now: Timestamp) -> String {
    let ago = time_between(note.at, now);
    format!("Message of a dispatcher, {ago} ago: {}", note.text)
}

fn state_sentence(job: &Job, state: JobState, now: Timestamp) -> String {
    let name = job.name();
    let since = |time: Option<Timestamp>| -> String {
        time.map_or_else(String::new, |t| format!(" for {}", time_between(t, now)))
    };
    let started = job.container.as_ref().and_then(|c| c.started_at);
    match state {
        JobState::Draft => format!("Job {name} is a draft: its owner has not committed it."),
        JobState::Held => format!(
            "Job {name} is on hold: its priority is 0. Let it start with: dispatch release {name}"
        ),
        JobState::Queued => format!(
            "Job {name} has been waiting{} with priority {}.",
            since(job.request.created_at),
            job.request.priority
        ),
        JobState::Locked => {
            format!("Job {name} has been taken by a dispatcher and is being started.")
        }
        JobState::Running => format!("Job {name} has been running{}.", since(started)),
        JobState::Stopping => format!("Job {name} is being stopped: its priority is 0."),
        JobState::Complete => match job.exit_code() {
            Some(0) => format!("Job {name} succeeded."),
            Some(code) => format!(
                "Job {name} ran to its end; its command ended with exit code {code}{}.",
                signal(code)
            ),
            None => format!("Job {name} is complete without an exit code."),
        },
        JobState::Cancelled => {
            let exit = job.container.as_ref().and_then(|c| c.exit_code);
            let ran = match (started, exit) {
                (Some(_), Some(137 | 143)) => "its command was stopped".to_owned(),
                (Some(_), Some(code)) => {
                    format!("its command ended with exit code {code}{}", signal(code))
                }
                (Some(_), None) => "its command did not end by itself".to_owned(),
                (None, _) => "its command did not run".to_owned(),
            };
            match (job.was_killed(), job.killed_by()) {
                (true, by) => format!("Job {name} was stopped with 'dispatch kill'{by}; {ran}."),
                (false, _) => format!("Job {name} was cancelled; {ran}."),
            }
        }
    }
}

/// Meaning of an exit code: codes above 128 usually stand for a signal.
fn signal(code: i32) -> &'static str {
    match code {
        126 => " (it could not be executed)",
        127 => " (it was not found)",
        134 => " (aborted)",
        137 => " (killed)",
        139 => " (it crashed: segmentation fault)",
        143 => " (it was asked to end)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    use crate::local_status::{Status, TrackedContainer};

    const CONTAINER: &str = "zzzzz-dz642-0123456789abcde";

    fn job(priority: i64, container: Value) -> Job {
        let mut container = container;
        container["uuid"] = json!(CONTAINER);
        let request = json!({
            "uuid": "zzzzz-xvhdp-0123456789abcde", "state": "Committed", "priority": priority,
            "container_uuid": CONTAINER, "created_at": "2026-01-01T00:00:00Z",
            "runtime_constraints": {"vcpus": 2, "ram": 1u64 << 30},
            "properties": {"dispatch_id": 7, "dispatch_user": "me"},
        });
        Job::new(
            serde_json::from_value(request).unwrap(),
            Some(serde_json::from_value(container).unwrap()),
            "me",
        )
    }

    fn answer(waits: Option<&str>, error: Option<&str>) -> StatusReply {
        StatusReply::Reply(Box::new(Status {
            error: error.map(str::to_owned),
            containers: vec![TrackedContainer {
                container: CONTAINER.to_owned(),
                waits: waits.map(str::to_owned),
                ..TrackedContainer::default()
            }],
            ..Status::default()
        }))
    }

    #[test]
    fn a_dispatcher_elsewhere_is_quoted_while_nothing_runs() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let note = "2026-01-01T00:03:00Z".parse().unwrap();
        for (state, started, expected) in [
            ("Queued", None, true),
            ("Locked", None, true),
            ("Running", Some("2026-01-01T00:04:00Z"), false),
            ("Running", Some("2026-01-01T00:02:00Z"), true),
            ("Complete", Some("2026-01-01T00:02:00Z"), false),
        ] {
            let container = json!({"state": state, "priority": 9, "started_at": started});
            let job = job(500, container);
            let last = vec![Note {
                at: note,
                by: None,
                text: "not run now: it asks for 64 CPUs".to_owned(),
                decision: String::new(),
            }];
            let text = sentences(&job, &StatusReply::NotLocal, None, last, now).join("\n");
            let words = "Message of a dispatcher, 2m00s ago: not run now: it asks for 64 CPUs";
            assert_eq!(text.contains(words), expected, "{text}");
        }
    }

    #[test]
    fn the_reason_is_told_by_whoever_knows_it() {
        let queued = || json!({"state": "Queued", "priority": 9});
        let rows = [
            (
                500,
                queued(),
                answer(Some("needs 2 CPUs, 1 is free"), None),
                None,
                vec![
                    "waiting for 5m00s with priority 500",
                    "from the dispatcher: needs 2 CPUs",
                    "2 CPUs, 1 GiB memory",
                ],
            ),
            (
                500,
                queued(),
                answer(None, None),
                Some("ignored"),
                vec!["not listed it yet"],
            ),
            (
                500,
                queued(),
                answer(None, Some("no API")),
                None,
                vec!["Error of the dispatcher: no API"],
            ),
            (
                500,
                queued(),
                StatusReply::NoReply,
                None,
                vec!["does not reply"],
            ),
            (
                500,
                queued(),
                StatusReply::NotLocal,
                Some("Waiting for nodes."),
                vec!["from the server: Waiting for nodes."],
            ),
            (
                0,
                json!({"state": "Queued", "priority": 0}),
                StatusReply::NotLocal,
                None,
                vec!["on hold"],
            ),
            (
                500,
                json!({"state": "Locked", "priority": 9, "lock_count": 4, "runtime_status": {"activity": "fetching image"}}),
                answer(None, None),
                None,
                vec![
                    "taken by a dispatcher",
                    "Now: fetching image",
                    "started 4 times without running; the server cancels it after MaxDispatchAttempts, 10",
                ],
            ),
            (
                500,
                json!({"state": "Running", "priority": 9, "started_at": "2026-01-01T00:04:00Z"}),
                StatusReply::NotLocal,
                None,
                vec!["running for 1m00s"],
            ),
            (
                500,
                json!({"state": "Complete", "exit_code": 137, "runtime_status": {"error": "killed by its memory limit", "errorDetail": "used 2 of 1 GiB"}}),
                StatusReply::NotLocal,
                None,
                vec![
                    "exit code 137 (killed)",
                    "Error: killed by its memory limit (used 2 of 1 GiB)",
                ],
            ),
        ];
        for (priority, container, dispatcher, server, words) in rows {
            let job = job(priority, container);
            let text = sentences(
                &job,
                &dispatcher,
                server,
                Vec::new(),
                "2026-01-01T00:05:00Z".parse().unwrap(),
            );
            let text = text.join("\n");
            for word in words {
                assert!(text.contains(word), "no {word:?} in:\n{text}");
            }
            assert!(!text.contains("ignored"));
        }
    }
}
