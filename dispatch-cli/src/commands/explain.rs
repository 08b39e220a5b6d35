//! `dispatch explain`: why a job is where it is, in sentences.

use std::time::Duration;

use arvados_client::Client;
use arvados_client::client::Call;
use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::output::{Output, plain};
use crate::session::Session;
use crate::status::{self, Asked};
use crate::units::{count, show_size, show_time};

/// The kind of log entries that dispatchers of this suite write.
pub const NOTES: &str = "dispatch";
/// So many of those are shown: when the next attempt begins comes after why the last came to nothing.
const LAST_WORDS: u64 = 3;
/// Locked this often is worth telling.
const MANY_LOCKS: u32 = 3;

/// Say why a job is not running, or how it ended
#[derive(Debug, Args)]
pub struct Explain {
    /// Job
    #[arg(value_name = "ID")]
    pub job: JobId,
}

pub async fn run(args: Explain, session: &Session, out: Output) -> Result<(), Failure> {
    let client = &session.client;
    let job = jobs::find(client, &args.job).await?;
    let (dispatcher, server) = tokio::join!(status::ask(session), scheduling(client, &job));
    let last = match dispatcher {
        Asked::Elsewhere => last_words(client, &job).await,
        _ => Vec::new(),
    };
    let now = Timestamp::now();
    let sentences = sentences(&job, &dispatcher, server.as_deref(), last, now);
    if out.json {
        return out.json(&json!({
            "id": job.number, "uuid": job.request.uuid, "state": job.state().word(), "sentences": sentences,
        }));
    }
    sentences.iter().try_for_each(|s| out.line(&plain(s)))
}

/// What the server says about scheduling. Not every server has the call, and it is only help.
async fn scheduling(client: &Client, job: &Job) -> Option<String> {
    let path = format!("container_requests/{}/container_status", job.request.uuid);
    let answer: Value = client.send(Call::get(path)).await.ok()?;
    let text = answer.get("scheduling_status")?.as_str()?.trim().to_owned();
    Some(text).filter(|text| !text.is_empty())
}

/// What a dispatcher last noted of a job that does not run yet, in the server's logs, and when; the newest first.
async fn last_words(client: &Client, job: &Job) -> Vec<(Timestamp, String)> {
    let Some(container) = job.request.container_uuid.as_ref() else {
        return Vec::new();
    };
    // It is only help.
    let notes = client.last_notes(container, NOTES, LAST_WORDS).await;
    notes.unwrap_or_default()
}

fn sentences(
    job: &Job,
    dispatcher: &Asked,
    server: Option<&str>,
    last: Vec<(Timestamp, String)>,
    now: Timestamp,
) -> Vec<String> {
    let name = job.name();
    let state = job.state();
    let mut said = vec![first(job, state, now)];
    let container = job.container.as_ref();
    if matches!(
        state,
        JobState::Queued | JobState::Locked | JobState::Stopping
    ) {
        let asked = match (dispatcher, &job.request.container_uuid) {
            (Asked::Answer(status), Some(uuid)) => {
                if let Some(error) = &status.error {
                    said.push(format!("The dispatcher has trouble: {error}"));
                }
                let waits = status.of(uuid.as_str()).and_then(|c| c.waits.clone());
                match (waits, state) {
                    (Some(waits), _) => Some(format!("The dispatcher says: {waits}")),
                    (None, JobState::Queued) if status.error.is_none() => {
                        Some("The dispatcher has not looked at it yet.".to_owned())
                    }
                    _ => None,
                }
            }
            (Asked::Silent, _) => Some(
                "The dispatcher of this machine does not answer; see the log named by: dispatch info"
                    .to_owned(),
            ),
            _ => server.map(|text| format!("The server says: {text}")),
        };
        said.extend(asked);
        let last = last.into_iter().filter(|_| state != JobState::Stopping);
        for (at, words) in last {
            let ago = Duration::try_from(now.duration_since(at)).unwrap_or_default();
            said.push(format!("A dispatcher said {} ago: {words}", show_time(ago)));
        }
        if state == JobState::Queued {
            said.push(format!("It asks for {}.", needs(job)));
        }
    }
    if let Some(container) = container {
        let status = &container.runtime_status;
        let detail = |text: &Option<String>, more: &Option<String>| {
            text.as_ref().map(|text| match more {
                Some(more) => format!("{text} ({more})"),
                None => text.clone(),
            })
        };
        said.extend(
            status
                .activity
                .as_ref()
                .filter(|_| !state.is_over())
                .map(|a| format!("Now: {a}")),
        );
        said.extend(detail(&status.error, &status.error_detail).map(|e| format!("Error: {e}")));
        said.extend(
            detail(&status.warning, &status.warning_detail).map(|w| format!("Warning: {w}")),
        );
        said.extend(
            status
                .preemption_notice
                .as_ref()
                .map(|n| format!("Notice: {n}")),
        );
        if container.lock_count >= MANY_LOCKS && !state.is_over() {
            said.push(format!(
                "It was started {} times without running; the server gives up after a few more.",
                container.lock_count
            ));
        }
    }
    if job.request.container_count > 1 {
        // A server of Arvados that does not say how many there may be.
        let most = match job.request.container_count_max {
            0 => String::new(),
            most => format!(" of at most {most}"),
        };
        said.push(format!(
            "This is container {}{most}: the earlier ones were cancelled.",
            job.request.container_count
        ));
    }
    if matches!(state, JobState::Complete | JobState::Cancelled) && job.request.log_uuid.is_some() {
        said.push(format!("See its log with: dispatch logs {name}"));
    }
    said
}

fn first(job: &Job, state: JobState, now: Timestamp) -> String {
    let name = job.name();
    let since = |time: Option<Timestamp>| -> String {
        let passed = time.and_then(|t| Duration::try_from(now.duration_since(t)).ok());
        passed.map_or_else(String::new, |t| format!(" for {}", show_time(t)))
    };
    let started = job.container.as_ref().and_then(|c| c.started_at);
    match state {
        JobState::Draft => format!("Job {name} is a draft: whoever made it has not committed it."),
        JobState::Held => format!(
            "Job {name} is on hold: its priority is 0, because it was killed or submitted so. It does not start by itself."
        ),
        JobState::Queued => format!(
            "Job {name} has been waiting{} with priority {}; no dispatcher has taken it yet.",
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
            format!("Job {name} was cancelled; its command did not end by itself.")
        }
    }
}

/// Codes above 128 usually mean a signal.
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

fn needs(job: &Job) -> String {
    let needs = &job.request.runtime_constraints;
    let gpus = match needs.gpu.device_count {
        0 => String::new(),
        n => format!(" and {} ({})", count(n.into(), "GPU"), needs.gpu.stack),
    };
    let cpus = count(needs.vcpus.into(), "CPU");
    format!("{cpus}, {} memory{gpus}", show_size(needs.ram))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Status, Tracked};

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

    fn answer(waits: Option<&str>, error: Option<&str>) -> Asked {
        Asked::Answer(Box::new(Status {
            error: error.map(str::to_owned),
            containers: vec![Tracked {
                container: CONTAINER.to_owned(),
                waits: waits.map(str::to_owned),
                ..Tracked::default()
            }],
            ..Status::default()
        }))
    }

    #[test]
    fn a_dispatcher_elsewhere_is_quoted_while_nothing_runs() {
        let now: Timestamp = "2026-01-01T00:05:00Z".parse().unwrap();
        let note = "2026-01-01T00:03:00Z".parse().unwrap();
        for (state, told) in [("Queued", true), ("Locked", true), ("Running", false)] {
            let job = job(500, json!({"state": state, "priority": 9}));
            let last = vec![(note, "not run now: it asks for 64 CPUs".to_owned())];
            let said = sentences(&job, &Asked::Elsewhere, None, last, now).join("\n");
            let words = "A dispatcher said 2m00s ago: not run now: it asks for 64 CPUs";
            assert_eq!(said.contains(words), told, "{said}");
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
                    "dispatcher says: needs 2 CPUs",
                    "2 CPUs, 1 GiB memory",
                ],
            ),
            (
                500,
                queued(),
                answer(None, None),
                Some("ignored"),
                vec!["not looked at it yet"],
            ),
            (
                500,
                queued(),
                answer(None, Some("no API")),
                None,
                vec!["has trouble: no API"],
            ),
            (500, queued(), Asked::Silent, None, vec!["does not answer"]),
            (
                500,
                queued(),
                Asked::Elsewhere,
                Some("Waiting for nodes."),
                vec!["The server says: Waiting for nodes."],
            ),
            (
                0,
                json!({"state": "Queued", "priority": 0}),
                Asked::Elsewhere,
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
                    "started 4 times",
                ],
            ),
            (
                500,
                json!({"state": "Running", "priority": 9, "started_at": "2026-01-01T00:04:00Z"}),
                Asked::Elsewhere,
                None,
                vec!["running for 1m00s"],
            ),
            (
                500,
                json!({"state": "Complete", "exit_code": 137, "runtime_status": {"error": "killed by its memory limit", "errorDetail": "used 2 of 1 GiB"}}),
                Asked::Elsewhere,
                None,
                vec![
                    "exit code 137 (killed)",
                    "Error: killed by its memory limit (used 2 of 1 GiB)",
                ],
            ),
        ];
        for (priority, container, dispatcher, server, words) in rows {
            let job = job(priority, container);
            let said = sentences(
                &job,
                &dispatcher,
                server,
                Vec::new(),
                "2026-01-01T00:05:00Z".parse().unwrap(),
            );
            let text = said.join("\n");
            for word in words {
                assert!(text.contains(word), "no {word:?} in:\n{text}");
            }
            assert!(!text.contains("ignored"));
        }
    }
}
