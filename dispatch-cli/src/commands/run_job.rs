//! `dispatch run`: submits a job, shows what it prints, and ends with its exit code.

use std::io::{self, IsTerminal};

use clap::Args;

use super::wait;
use crate::error::CliError;
use crate::exit::Exit;
use crate::interrupt::until_interrupted;
use crate::job_flags::JobFlags;
use crate::job_request;
use crate::jobs;
use crate::log_files::LogFiles;
use crate::log_follower::{LogFollower, LogProgress};
use crate::log_printer::LinePrinter;
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::watch::Watch;

/// Run a job: submit it, show what it prints while it runs, and end with its exit code
///
/// Standard output and error of the job become those of this command. --stdin - gives it the
/// standard input of this command. Files that the job writes below --output-path become its output,
/// see 'dispatch get'. Ctrl-C ends this command, and the job goes on.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dispatch run --image busybox -- echo hello
  cat table.csv | dispatch run --image busybox --stdin - -- wc -l")]
pub struct Run {
    #[command(flatten)]
    pub job: JobFlags,
}

pub async fn run(args: Run, session: &Session, out: Output) -> Result<Exit, CliError> {
    // Subscribe before the job exists, so that the end of a short job is not missed.
    let mut watch = Watch::new(&session.client);
    let job = job_request::submit(&args.job, session).await?;
    let name = job.name();
    let following = async {
        if io::stderr().is_terminal() {
            eprint_note(&format!("dispatch: job {name}"));
        }
        let job = match job.has_its_container() {
            true => job,
            false => jobs::refresh(&session.client, &job).await?,
        };
        if job.verdict().is_some() {
            eprint_note("dispatch: the result of an equal job is reused");
        }
        let mut files = LogFiles::new(session, &["stdout.txt", "stderr.txt"]).await?;
        let mut printer = LinePrinter::new(false, out);
        let mut follower = LogFollower {
            session,
            files: &mut files,
            printer: &mut printer,
            progress: LogProgress::until_running(),
        };
        let job = follower.until_end(job, &mut watch).await?;
        drop(follower);
        files.finish(|name, line| printer.print(name, line))?;
        printer.finish(wait::is_noted(&job))?;
        wait::report_end(&job, out)
    };
    until_interrupted(following, || CliError::Interrupted(name.clone())).await
}
