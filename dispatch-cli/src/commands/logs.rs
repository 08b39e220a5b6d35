//! `dispatch logs`: prints the log of a job, and follows it.

use std::io::{IsTerminal, Write};
use std::pin::pin;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::error::CliError;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::log_files::{self, LogFiles};
use crate::log_line::Line;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::text::for_terminal;
use crate::watch::{Outage, Watch};

/// Intervals between two reads of a live log: after new lines, and the maximum while there are
/// none.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(1500);

/// Show what a job printed: its standard output on standard output, its standard error on standard
/// error
///
/// For a running job, shows the live log if the server can reach the job, else the log saved so
/// far. On a terminal, control characters of the job are replaced; redirect the output to get them.
#[derive(Debug, Args)]
pub struct Logs {
    /// Number or uuid of the job
    #[arg(value_name = "ID")]
    pub job: JobId,
    /// Continue to print until the job has ended
    #[arg(short, long)]
    pub follow: bool,
    /// Begin each line with the time it was printed
    #[arg(short, long)]
    pub timestamps: bool,
    /// Print another file of the log, like crunch-run.txt; --files lists them
    #[arg(long, value_name = "NAME")]
    pub file: Option<String>,
    /// List the files of the log
    #[arg(long, conflicts_with_all = ["follow", "file"])]
    pub files: bool,
}

pub async fn run(args: Logs, session: &Session, out: Output) -> Result<(), CliError> {
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
    let mut printer = LinePrinter {
        timestamps: args.timestamps,
        out,
    };
    files
        .read(&job, |name, line| printer.print(name, line))
        .await?;
    if !args.follow && !files.has_begun() {
        check_log_exists(&args, session, &job).await?;
    }
    if args.follow && job.verdict().is_none() {
        let mut watch = Watch::new(client);
        let mut outage = Outage::default();
        let mut activity = None;
        let mut interval = POLL_INTERVAL;
        while job.verdict().is_none() {
            print_activity(&job, &mut activity);
            let uuids: Vec<String> = job.uuids().map(str::to_owned).collect();
            let mut pause = pin!(watch.wait_for_change(&uuids));
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
            let Some(fresh) = outage.tolerate(
                jobs::refresh(client, &job).await,
                Instant::now(),
                &eprint_note,
            )?
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

/// Fails with a sentence if the job has no log, or the log has no such file.
async fn check_log_exists(args: &Logs, session: &Session, job: &Job) -> Result<(), CliError> {
    let names = log_files::names(&session.client, job).await?;
    if names.is_empty() {
        let name = job.name();
        return Err(CliError::NoLog {
            why: match job.state() {
                JobState::Complete | JobState::Cancelled => ": none was saved".to_owned(),
                JobState::Held => ": it is on hold (priority 0) and never ran".to_owned(),
                state => format!(
                    " yet: it is {}; follow it with: dispatch logs -f {name}",
                    state.as_str()
                ),
            },
            job: name,
        });
    }
    match &args.file {
        Some(file) if !names.contains(file) => Err(CliError::NoLogFile {
            job: job.name(),
            file: file.clone(),
            present: names.join(", "),
        }),
        _ => Ok(()),
    }
}

/// Prints the state and activity of the job when they change.
fn print_activity(job: &Job, last: &mut Option<String>) {
    let activity = job
        .container
        .as_ref()
        .and_then(|c| c.runtime_status.activity.clone());
    let now = Some(match activity {
        Some(activity) => format!("{}: {activity}", job.state().as_str()),
        None => job.state().as_str().to_owned(),
    });
    if *last != now {
        eprint_note(&format!("dispatch: {}", now.as_deref().unwrap_or_default()));
        *last = now;
    }
}

struct LinePrinter {
    timestamps: bool,
    out: Output,
}

impl LinePrinter {
    fn print(&mut self, file: &str, line: Line<'_>) -> Result<(), CliError> {
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
        let is_terminal = match file {
            "stderr.txt" => std::io::stderr().is_terminal(),
            _ => std::io::stdout().is_terminal(),
        };
        if is_terminal {
            bytes = for_terminal(&bytes).into_bytes();
        }
        if file == "stderr.txt" {
            return std::io::stderr()
                .lock()
                .write_all(&bytes)
                .map_err(CliError::Output);
        }
        self.out.bytes(&bytes)
    }
}
