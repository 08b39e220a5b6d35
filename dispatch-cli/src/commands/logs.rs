//! `dispatch logs`: what a job printed.

use std::io::Write;
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::failure::Failure;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::log_files::{self, LogFiles};
use crate::log_line::Line;
use crate::output::{Output, note};
use crate::session::Session;
use crate::watch::{Outage, Watch};

/// Intervals between two reads of a log that grows: the first after something new, and the last while nothing comes.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1500);

/// Show what a job printed: its standard output on standard output, its standard error on standard error
///
/// While a job runs, its log is shown as it is printed where the server can reach the job, and otherwise as far as it
/// has been saved.
#[derive(Debug, Args)]
pub struct Logs {
    /// Job
    #[arg(value_name = "ID")]
    pub job: JobId,
    /// Go on until the job is over
    #[arg(short, long)]
    pub follow: bool,
    /// Begin each line with the time it was printed
    #[arg(short, long)]
    pub timestamps: bool,
    /// Another file of the log, like crunch-run.txt; see them with --files
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// List the files of the log
    #[arg(long, conflicts_with_all = ["follow", "file"])]
    pub files: bool,
}

pub async fn run(args: Logs, session: &Session, out: Output) -> Result<(), Failure> {
    let client = &session.client;
    let mut job = jobs::find(client, &args.job).await?;
    if args.files {
        let names = log_files::names(client, &job).await?;
        return match out.json {
            true => out.json(&names),
            false => names.iter().try_for_each(|name| out.line(name)),
        };
    }
    let wanted: Vec<&str> = match &args.file {
        Some(name) => vec![name],
        None => vec!["stdout.txt", "stderr.txt"],
    };
    let mut files = LogFiles::new(session, &wanted).await?;
    let mut printer = Printer {
        timestamps: args.timestamps,
        out,
    };
    files
        .read(&job, |name, line| printer.print(name, line))
        .await?;
    if !args.follow && !files.has_begun() {
        check(&args, session, &job).await?;
    }
    if args.follow && job.verdict().is_none() {
        let mut watch = Watch::new(client);
        let mut outage = Outage::default();
        let mut activity = None;
        let mut interval = POLL_INTERVAL;
        while job.verdict().is_none() {
            tell_activity(&job, &mut activity);
            let uuids: Vec<String> = job.uuids().map(str::to_owned).collect();
            let mut pause = pin!(watch.pause(&uuids));
            loop {
                tokio::select! {
                    () = &mut pause => break,
                    () = sleep(interval) => {}
                }
                let is_new = files
                    .read_live(&job, |name, line| printer.print(name, line))
                    .await?;
                interval = match is_new {
                    true => POLL_INTERVAL,
                    false => (interval * 3 / 2).min(MAX_POLL_INTERVAL),
                };
            }
            let Some(fresh) = outage.bear(jobs::refresh(client, &job).await, Instant::now())?
            else {
                continue;
            };
            job = fresh;
            files
                .read(&job, |name, line| printer.print(name, line))
                .await?;
        }
    }
    files.finish(|name, line| printer.print(name, line))
}

/// A job without a log, or without that file, is said to be so.
async fn check(args: &Logs, session: &Session, job: &Job) -> Result<(), Failure> {
    let names = log_files::names(&session.client, job).await?;
    if names.is_empty() {
        let name = job.name();
        return Err(Failure::NoLog {
            why: match job.state() {
                JobState::Complete | JobState::Cancelled => ": none was saved".to_owned(),
                JobState::Held => ": it is on hold (priority 0) and never ran".to_owned(),
                state => format!(
                    " yet: it is {}; follow it with: dispatch logs -f {name}",
                    state.word()
                ),
            },
            job: name,
        });
    }
    match &args.file {
        Some(file) if !names.contains(file) => Err(Failure::NoLogFile {
            job: job.name(),
            file: file.clone(),
            present: names.join(", "),
        }),
        _ => Ok(()),
    }
}

/// What is being done, while there is nothing else to see.
fn tell_activity(job: &Job, last: &mut Option<String>) {
    let said = job
        .container
        .as_ref()
        .and_then(|c| c.runtime_status.activity.clone());
    let now = Some(match said {
        Some(activity) => format!("{}: {activity}", job.state().word()),
        None => job.state().word().to_owned(),
    });
    if *last != now {
        note(&format!("dispatch: {}", now.as_deref().unwrap_or_default()));
        *last = now;
    }
}

struct Printer {
    timestamps: bool,
    out: Output,
}

impl Printer {
    fn print(&mut self, file: &str, line: Line<'_>) -> Result<(), Failure> {
        if self.out.json {
            let text = String::from_utf8_lossy(line.text);
            return self.out.json(
                &json!({"file": file, "time": line.time, "text": text, "ended": line.ended}),
            );
        }
        let mut bytes = Vec::with_capacity(line.text.len() + 40);
        if let (true, Some(time)) = (self.timestamps, line.time) {
            bytes.extend_from_slice(time.as_bytes());
            bytes.push(b' ');
        }
        bytes.extend_from_slice(line.text);
        if line.ended {
            bytes.push(b'\n');
        }
        if file == "stderr.txt" {
            return std::io::stderr()
                .lock()
                .write_all(&bytes)
                .map_err(Failure::Output);
        }
        self.out.bytes(&bytes)
    }
}
