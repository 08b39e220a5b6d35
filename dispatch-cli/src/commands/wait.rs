//! `dispatch wait`, and the wait of `dispatch submit --wait`: polls jobs until they end.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use arvados_client::Client;
use clap::Args;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::CliError;
use crate::exit::Exit;
use crate::interrupt::until_interrupted;
use crate::job::{Job, JobState};
use crate::jobs;
use crate::log_files::LogFiles;
use crate::printer::{Output, eprint_note};
use crate::selection::{Scope, Selection};
use crate::session::Session;
use crate::wait_progress::{Progress, WaitProgress};
use crate::watch::{Outage, Watch};

/// Number of lines of standard error that are shown for a failed job.
const STDERR_TAIL_LINES: usize = 20;
/// Timeout of the last refresh, after the end of `--timeout`.
const FINAL_REFRESH_TIMEOUT: Duration = Duration::from_secs(5);

/// Wait until jobs have ended, and exit with their exit code; of several jobs, the first that is
/// not 0
///
/// A job that has ended before counts, too. Only --all without --since waits for those alone that
/// have not ended.
#[derive(Debug, Args)]
pub struct Wait {
    #[command(flatten)]
    pub selection: Selection,
    /// Maximum time to wait; exits with 124 after it [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = units::parse_whole_seconds)]
    pub timeout: Option<Duration>,
}

pub async fn run(args: Wait, session: &Session, out: Output) -> Result<Exit, CliError> {
    let deadline = args.timeout.map(|time| Instant::now() + time);
    let mut watch = Watch::new(&session.client);
    let mut first = Exit::Ok;
    let scope = match args.selection.all && args.selection.since.is_none() {
        true => Scope::Open,
        false => Scope::Any,
    };
    let jobs = args.selection.find(&session.client, scope).await?;
    let mut progress = Progress {
        jobs: jobs.len(),
        ..Progress::of_one()
    };
    for mut job in jobs {
        // The wait for the others took time, and took the events of this job.
        if progress.ended > 0 && job.verdict().is_none() {
            job = jobs::refresh(&session.client, &job).await?;
        }
        let exit = follow(session, job, &mut watch, progress, deadline, out).await?;
        progress.ended += 1;
        first = first.or(exit);
    }
    Ok(first)
}

/// Waits for the job and prints how it ended. Ctrl-C ends this, not the job.
pub async fn follow(
    session: &Session,
    job: Job,
    watch: &mut Watch,
    progress: Progress,
    deadline: Option<Instant>,
    out: Output,
) -> Result<Exit, CliError> {
    let name = job.name();
    let has_ended = Cell::new(false);
    let following = async {
        let (job, reason) = until_over(session, job, watch, progress, deadline).await?;
        has_ended.set(job.verdict().is_some());
        if let Some(reason) = reason.filter(|_| job.verdict().is_none()) {
            eprint_note(&format!("dispatch: job {}: {reason}", job.name()));
        }
        report(session, &job, out).await
    };
    let interrupted = || match has_ended.get() {
        true => CliError::ReportInterrupted,
        false => CliError::Interrupted(name),
    };
    until_interrupted(following, interrupted).await
}

/// Polls until the job has ended or the deadline has passed. After the deadline, the job may not
/// have ended; then what it waits for is returned, too, unless that was printed.
async fn until_over(
    session: &Session,
    mut job: Job,
    watch: &mut Watch,
    progress: Progress,
    deadline: Option<Instant>,
) -> Result<(Job, Option<String>), CliError> {
    let mut outage = Outage::default();
    let client = &session.client;
    let mut progress = WaitProgress::new(progress);
    let mut is_known = job.has_its_container();
    if !is_known
        && let Some(fresh) = refresh(client, &job, &mut outage, &progress, deadline).await?
    {
        (job, is_known) = (fresh, true);
    }
    loop {
        if is_known && job.verdict().is_some() {
            return Ok((job, None));
        }
        match outage.lasts() {
            true => progress.show_outage(&job),
            false => progress.show(session, &job, Instant::now()).await,
        }
        let uuids: Vec<String> = job.uuids().map(str::to_owned).collect();
        let pause = async {
            let change = watch.wait_for_change(&uuids);
            match progress.next_look() {
                // The end of this time is a reason to look, too.
                Some(next) => drop(timeout(next, change).await),
                None => change.await,
            }
        };
        let in_time = match deadline {
            Some(deadline) => timeout_at(deadline, pause).await.is_ok(),
            None => {
                pause.await;
                true
            }
        };
        if let Some(fresh) = refresh(client, &job, &mut outage, &progress, deadline).await? {
            (job, is_known) = (fresh, true);
        }
        if !in_time {
            return Ok((job, progress.last_reason()));
        }
    }
}

/// Fetches the job. `None` during an outage, or if the deadline passes before the reply.
async fn refresh(
    client: &Client,
    job: &Job,
    outage: &mut Outage,
    progress: &WaitProgress,
    deadline: Option<Instant>,
) -> Result<Option<Job>, CliError> {
    let refresh = jobs::refresh(client, job);
    let refreshed = match deadline {
        // One more refresh after the deadline gives a more recent state.
        Some(deadline) => match timeout_at(deadline + FINAL_REFRESH_TIMEOUT, refresh).await {
            Ok(refreshed) => refreshed,
            Err(_) => return Ok(None),
        },
        None => refresh.await,
    };
    outage.tolerate(refreshed, Instant::now(), &|text| progress.note(text))
}

/// Prints how the job ended, with the last lines of its standard error if it failed.
async fn report(session: &Session, job: &Job, out: Output) -> Result<Exit, CliError> {
    let exit = job.verdict().unwrap_or(Exit::TimedOut);
    if exit != Exit::Ok {
        for line in stderr_tail(session, job).await {
            eprint_note(&line);
        }
    }
    report_end(job, out)
}

/// Prints how the job ended.
pub fn report_end(job: &Job, out: Output) -> Result<Exit, CliError> {
    let exit = job.verdict().unwrap_or(Exit::TimedOut);
    if out.json {
        let mut summary = summary(job);
        summary["warnings"] = json!(job.warnings());
        out.json(&summary)?;
        return Ok(exit);
    }
    if exit != Exit::Ok {
        eprint_note(&format!("dispatch: {}", end_sentence(job)));
    }
    eprint_warnings(job);
    Ok(exit)
}

/// Whether [`report_end`] prints notes on standard error.
pub fn is_noted(job: &Job) -> bool {
    job.verdict() != Some(Exit::Ok) || !job.warnings().is_empty()
}

/// Prints the warnings of the job, such as the entries that are not in its output.
pub fn eprint_warnings(job: &Job) {
    for warning in job.warnings() {
        eprint_note(&format!("dispatch: warning: job {}: {warning}", job.name()));
    }
}

/// One sentence about the end of the job.
pub fn end_sentence(job: &Job) -> String {
    let name = job.name();
    let because = match job.error() {
        Some(error) => format!(": {error}"),
        None => String::new(),
    };
    match (job.state(), job.exit_code()) {
        (JobState::Complete, Some(code)) => {
            format!("job {name} ended with exit code {code}{because}")
        }
        (JobState::Complete, None) => format!("job {name} ended without an exit code{because}"),
        (JobState::Held, _) => {
            format!(
                "job {name} is on hold (priority 0); let it start with: dispatch release {name}"
            )
        }
        (JobState::Cancelled, _) => {
            format!("job {name} was cancelled{}{because}", job.killed_by())
        }
        (state, _) => format!(
            "job {name} has not ended yet: it is {}; see why with: dispatch explain {name}",
            state.as_str()
        ),
    }
}

/// The record of a job and its end for programs.
pub fn summary(job: &Job) -> Value {
    json!({
        "id": job.number,
        "uuid": job.request.uuid,
        "container_uuid": job.request.container_uuid,
        "state": job.state().as_str(),
        "exit_code": job.exit_code(),
        "error": job.error(),
        "output_uuid": job.request.output_uuid,
        "log_uuid": job.request.log_uuid,
    })
}

/// The last lines of standard error. Errors are ignored: the lines are only a hint.
async fn stderr_tail(session: &Session, job: &Job) -> VecDeque<String> {
    let mut tail = VecDeque::new();
    if let Ok(mut files) = LogFiles::new(session, &["stderr.txt"]).await {
        let mut push = |_: &str, line: crate::log_line::Line<'_>| {
            if tail.len() == STDERR_TAIL_LINES {
                tail.pop_front();
            }
            tail.push_back(String::from_utf8_lossy(line.text).into_owned());
            Ok(())
        };
        if files.read(job, &mut push).await.is_ok() {
            // The closure above cannot fail.
            let _ = files.finish(&mut push);
        }
    }
    tail
}

#[cfg(test)]
mod tests {
    use arvados_client::{Endpoint, Token};
    use dispatch_api::{Options, Server};
    use http::{Method, StatusCode};
    use suite_tests::proxy::{Effect, Fault, Proxy, Rule};

    use super::*;
    use crate::job_id::JobId;

    /// A client of the server's user, by way of the proxy, that believes refusals early.
    fn client(ready: &Value, proxy: &Proxy) -> Client {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let token = std::fs::read_to_string(text(&ready["tokens"]["user"])).unwrap();
        let host = text(&proxy.ready(ready)["host"]);
        let mut endpoint = Endpoint::new(&host, Token::new(token)).unwrap();
        endpoint.ca_file = Some(text(&ready["certificate"]).into());
        endpoint.refusal_window = Duration::from_millis(500);
        Client::new(endpoint).unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_refusal_that_lasts_ends_the_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new(dir.path().join("state"));
        let server = Server::start(&options).await.unwrap();
        let ready = serde_json::to_value(server.ready()).unwrap();
        let proxy = Proxy::start(&ready);
        let client = client(&ready, &proxy);
        let image = client.create_collection(json!({"manifest_text": ""}));
        let request = json!({
            "state": "Committed", "priority": 1, "command": ["true"], "output_path": "/out", "cwd": ".",
            "container_image": image.await.unwrap().portable_data_hash,
            "mounts": {"/out": {"kind": "tmp", "capacity": 1}},
            "runtime_constraints": {"vcpus": 1, "ram": 1 << 28},
        });
        let request = client.create_container_request(request).await.unwrap();
        let job = jobs::find(&client, &JobId::Request(request.uuid))
            .await
            .unwrap();
        assert!(job.has_its_container());
        for (status, exit) in [
            (StatusCode::UNAUTHORIZED, Exit::Denied),
            (StatusCode::NOT_FOUND, Exit::NotFound),
        ] {
            let refused = Fault::Answer(status, Effect::None);
            proxy.faults([Rule::every(Method::GET, "container_requests/*", refused)]);
            let before = proxy.fault_count();
            let session = Session {
                client: client.clone(),
                local: None,
            };
            let mut watch = Watch::new(&client);
            let one = Progress::of_one();
            let ended = until_over(&session, job.clone(), &mut watch, one, None).await;
            assert_eq!(ended.unwrap_err().exit(), exit, "{status}");
            assert!(proxy.fault_count() - before > 1, "{status}");
        }
        server.stop().await;
    }
}
