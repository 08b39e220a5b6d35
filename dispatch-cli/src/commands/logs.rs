//! `dispatch logs`: prints the log of a job, and follows it.

use clap::Args;

use super::wait;
use crate::completion;
use crate::error::CliError;
use crate::interrupt::until_interrupted;
use crate::job::{Job, JobState};
use crate::job_id::JobId;
use crate::jobs;
use crate::log_files::{self, LogFiles};
use crate::log_follower::{LogFollower, LogProgress};
use crate::log_printer::LinePrinter;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::watch::Watch;

/// Show what a job printed: its standard output on standard output, its standard error on standard
/// error
///
/// For a running job, shows the live log if the server can reach the job, else the log saved so
/// far. On a terminal, control characters of the job are replaced; redirect the output to get them.
#[derive(Debug, Args)]
pub struct Logs {
    /// Number, uuid or name of the job; of several with this name, the newest
    #[arg(value_name = "ID", value_parser = JobId::or_name, add = completion::job_numbers())]
    pub job: JobId,
    /// Continue to print until the job has ended, and say how on standard error
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
    let job = jobs::find(client, &args.job).await?;
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
    let mut printer = LinePrinter::new(args.timestamps, out);
    files
        .read(&job, |name, line| printer.print(name, line))
        .await?;
    let goes_on = args.follow && !matches!(job.state(), JobState::Held);
    if !goes_on && !files.has_begun() {
        check_log_exists(&args, session, &job).await?;
        if args.file.is_none() && job.verdict().is_some() {
            eprint_note(&format!(
                "job {name} printed nothing; how it went: dispatch logs {name} --file crunch-run.txt",
                name = job.name()
            ));
        }
    }
    if goes_on {
        let mut watch = Watch::new(client);
        let mut follower = LogFollower {
            session,
            files: &mut files,
            printer: &mut printer,
            progress: LogProgress::notes(),
        };
        let name = job.name();
        let following = follower.until_end(job, &mut watch);
        let ended = until_interrupted(following, || CliError::Interrupted(name)).await?;
        files.finish(|name, line| printer.print(name, line))?;
        printer.finish(true)?;
        eprint_note(&format!("dispatch: {}", wait::end_sentence(&ended)));
        return Ok(());
    }
    files.finish(|name, line| printer.print(name, line))?;
    printer.finish(false)
}

/// Fails with a sentence if the job has no log, or the log has no such file.
async fn check_log_exists(args: &Logs, session: &Session, job: &Job) -> Result<(), CliError> {
    let names = log_files::names(&session.client, job).await?;
    if names.is_empty() {
        let name = job.name();
        return Err(CliError::NoLog {
            why: match job.state() {
                JobState::Complete | JobState::Cancelled => ": none was saved".to_owned(),
                JobState::Held => {
                    format!(" yet: it is on hold; let it start with: dispatch release {name}")
                }
                JobState::Queued => {
                    format!(" yet: it is Queued; see why with: dispatch explain {name}")
                }
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
