//! `dispatch submit`: submits a job, and waits for it if that is wanted.

use clap::Args;

use super::wait;
use crate::disk_usage::scratch_disk_size;
use crate::error::CliError;
use crate::exit::Exit;
use crate::job::Job;
use crate::job_flags::JobFlags;
use crate::job_request;
use crate::local_status::{self, Resources, StatusReply};
use crate::printer::{Output, eprint_note};
use crate::session::Session;
use crate::wait_progress::Progress;
use crate::watch::Watch;
use units::format_size;

/// Submit a job: a command to run in a container
///
/// Prints the number and the uuid of the job. Files that the command writes below --output-path
/// become its output, see 'dispatch get'. Its standard output and error are in its log, see
/// 'dispatch logs'.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  dispatch submit --image busybox -- echo hello
  dispatch submit --image busybox --input data=./table.csv --wait -- sh -c 'wc -l /input/data > /out/lines'
  dispatch submit --image tool:2 --cpus 4 --memory 8GiB --time 2h --input ref=zzzzz-4zz18-0123456789abcde:hg38 -- tool /input/ref")]
pub struct Submit {
    #[command(flatten)]
    pub job: JobFlags,
    /// Wait for the job and end with its exit code
    #[arg(long)]
    pub wait: bool,
}

/// What the machine of a local `dispatch up` has for jobs.
pub async fn local_capacity(session: &Session) -> Option<Resources> {
    match local_status::fetch(session).await {
        StatusReply::Reply(status) => status.capacity,
        _ => None,
    }
}

/// Prints a note if the machine of a local `dispatch up` is too small for the job. A job that is
/// waited for has the dispatcher's own words.
pub fn warn_if_impossible(job: &Job, session: &Session, capacity: Resources) {
    let (name, wants) = (job.name(), Resources::of_request(&job.request));
    let without_scratch = Resources {
        scratch: 0,
        ..wants
    };
    if !capacity.can_hold(without_scratch) {
        let no_gpus = match (wants.gpus, capacity.gpus) {
            (1.., 0) => ", no GPU",
            _ => "",
        };
        let capacity = capacity.description();
        eprint_note(&format!(
            "dispatch: job {name} cannot start as it is: this machine has {capacity}{no_gpus}"
        ));
    } else if !capacity.can_hold(wants) {
        let disk = session.local.as_ref().and_then(scratch_disk_size);
        let (needs, has) = (format_size(wants.scratch), format_size(capacity.scratch));
        eprint_note(&match disk.filter(|size| wants.scratch > *size) {
            Some(size) => format!(
                "dispatch: job {name} cannot start as it is: it needs {needs} of scratch, and the disk has {}",
                format_size(size)
            ),
            None => format!(
                "dispatch: job {name} does not start before there is room on the disk: it needs {needs} of scratch, and {has} is free"
            ),
        });
    }
}

pub async fn run(args: Submit, session: &Session, out: Output) -> Result<Exit, CliError> {
    // Subscribe before the job exists, so that the end of a short job is not missed.
    let watch = args.wait.then(|| Watch::new(&session.client));
    let job = job_request::submit(&args.job, session).await?;
    let Some(mut watch) = watch else {
        job_request::announce(&job, out)?;
        if let Some(capacity) = local_capacity(session).await {
            warn_if_impossible(&job, session, capacity);
        }
        return Ok(Exit::Ok);
    };
    if !out.json {
        job_request::announce(&job, out)?;
    }
    wait::follow(session, job, &mut watch, Progress::of_one(), None, out).await
}
