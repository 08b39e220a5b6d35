//! `crunch-run resume DIR`: delivers the results that an attempt left on this node (exit status
//! 77).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::attempt::endpoint;
use crate::environment::variable;
use crate::flags::after_help;
use crate::node::detach::lock_job_dir;
use crate::node::job_dir::JobDir;
use crate::undelivered::record::UndeliveredRun;
use crate::undelivered::resume::{ResumeRequest, resume};
use crunch_contract::ExitCode;
use host_state::private_dir;

const EXIT_STATUS: &str = "\
Exit status:
  0   the record has its final state
  76  another crunch-run works in DIR, or another attempt has the container; nothing was changed
  77  still undelivered; run it again later
  78  there is nothing to deliver, or the flags or the environment are wrong";

/// Delivers the results that an attempt left on this node: saves the output and the log, and
/// records the final state. May be repeated, and needs no engine.
#[derive(Debug, Parser)]
#[command(name = "crunch-run resume", version, after_long_help = after_help(EXIT_STATUS))]
pub struct Flags {
    /// Job directory of the attempt, as named in its log
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// File with the token of the attempt [default: token in DIR, or the one that the attempt had,
    /// or ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Time for which delivery is retried while the API server or Keep does not respond
    #[arg(long, value_parser = units::parse_duration, default_value = "10m", value_name = "TIME")]
    delivery_timeout: Duration,

    /// Trust only the certificates in this file (as SSL_CERT_FILE)
    #[arg(long, value_name = "FILE")]
    ca_certs: Option<PathBuf>,
}

/// Delivers the results in the directory.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let path = flags.dir.display();
    let facts = fs::metadata(&flags.dir).with_context(|| format!("{path} cannot be used"))?;
    // Files that another user's directory names would be read with this user's rights.
    ensure!(
        facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw(),
        "{path} does not belong to the user who runs this command: run it as user {}",
        facts.uid()
    );
    // What others put there may be a record with files of this user as its output.
    private_dir::check(&flags.dir.canonicalize()?)?;
    let dir = JobDir::open(&flags.dir).with_context(|| format!("{path} cannot be used"))?;
    let run = UndeliveredRun::read(&dir)?;
    let (Some(run), false) = (run, is_delivered(&dir)) else {
        return nothing_left(&dir);
    };
    let lock = lock_job_dir(&run.container, Some(run.attempt.clone()), &dir)?;
    // Another process may have delivered them until now.
    let Some(undelivered_run) = UndeliveredRun::read(&dir)? else {
        return nothing_left(&dir);
    };
    let scratch = dir.path().join(&undelivered_run.scratch);
    if undelivered_run.recorded.is_some() {
        tidy(&dir, &scratch).with_context(|| format!("could not clean up {path}"))?;
        return nothing_left(&dir);
    }
    let token_file = flags
        .token_file
        .clone()
        .or_else(|| Some(dir.token()).filter(|path| path.exists()))
        .or_else(|| {
            undelivered_run
                .token_file
                .clone()
                .filter(|path| path.exists())
        });
    let env =
        |name: &str| variable(name).or_else(|| undelivered_run.environment.get(name).cloned());
    let certificates = flags.ca_certs.as_deref();
    let endpoint = endpoint(
        token_file.as_deref(),
        certificates,
        flags.delivery_timeout,
        &env,
    )?;
    let code = resume(ResumeRequest {
        dir: dir.clone(),
        undelivered_run,
        endpoint,
        timeout: flags.delivery_timeout,
    })?;
    if code == ExitCode::Recorded {
        tidy(&dir, &scratch).with_context(|| format!("could not clean up {path}"))?;
    }
    drop(lock);
    dir.run_paths(scratch.parent()).empty_trash();
    Ok(code)
}

/// Writes the exit file before it removes undelivered.json. The caller empties the trash, without
/// the lock.
fn tidy(dir: &JobDir, scratch: &Path) -> io::Result<()> {
    dir.write_exit(ExitCode::Recorded)?;
    host_state::trash::discard(scratch)?;
    dir.clean(ExitCode::Recorded)
}

fn is_delivered(dir: &JobDir) -> bool {
    let note = fs::read(dir.exit()).unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(&note).is_ok_and(|note| note["code"] == 0)
}

fn nothing_left(dir: &JobDir) -> anyhow::Result<ExitCode> {
    let path = dir.path().display();
    if !is_delivered(dir) {
        bail!(
            "{path} has no undelivered results: {} is missing",
            dir.undelivered().display()
        );
    }
    // A killed process may have left these files.
    dir.clean(ExitCode::Recorded)?;
    dir.run_paths(None).empty_trash();
    eprintln!("crunch-run: the results in {path} are delivered");
    Ok(ExitCode::Recorded)
}
