//! `crunch-run resume DIR`: delivers the results that an attempt left on this node (exit status 77).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Parser;

use crate::detach::hold;
use crate::environment::variable;
use crate::exit::ExitCode;
use crate::flags::duration;
use crate::job_dir::JobDir;
use crate::run::{Left, Resumption, endpoint, resume};

const EXIT_STATUS: &str = "\
Exit status:
  0   the record has its final state, now or already
  76  another crunch-run is at it, or the container is not this attempt's any more; nothing was changed
  77  still undelivered; it may be tried again
  78  there is nothing to deliver, or the flags or the environment are wrong";

/// Delivers the results that an attempt left on this node: saves the output and the log, and gives the record its
/// final state. It may be repeated, and needs no engine.
#[derive(Debug, Parser)]
#[command(name = "crunch-run resume", version, after_long_help = EXIT_STATUS)]
pub struct Flags {
    /// The job directory, as the attempt's last words name it
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// File that holds the attempt's token [default: token in DIR, or the one the attempt had, or ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// How long to keep trying while the API or Keep does not answer
    #[arg(long, value_parser = duration, default_value = "10m", value_name = "TIME")]
    deliver_for: Duration,

    /// Trust only the certificates in this file (as SSL_CERT_FILE)
    #[arg(long, value_name = "FILE")]
    ca_certs: Option<PathBuf>,
}

/// Delivers what is in the directory.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let place = flags.dir.display();
    let facts = fs::metadata(&flags.dir).with_context(|| format!("{place} cannot be used"))?;
    // What a directory of somebody else names would be read and saved with our rights.
    ensure!(
        facts.is_dir() && facts.uid() == rustix::process::geteuid().as_raw(),
        "{place} is no directory of the user who runs this: run it as user {}",
        facts.uid()
    );
    let dir = JobDir::given(&flags.dir).with_context(|| format!("{place} cannot be used"))?;
    let seen = Left::read(&dir)?;
    let (Some(seen), false) = (seen, is_delivered(&dir)) else {
        return nothing_left(&dir);
    };
    let lock = hold(&seen.container, Some(seen.attempt.clone()), &dir)?;
    // Another may have gone on with it until just now.
    let Some(left) = Left::read(&dir)? else {
        return nothing_left(&dir);
    };
    let scratch = dir.path().join(&left.scratch);
    if left.recorded.is_some() {
        tidy(&dir, &scratch).with_context(|| format!("{place} is not clean"))?;
        return nothing_left(&dir);
    }
    let token_file = flags
        .token_file
        .clone()
        .or_else(|| Some(dir.token()).filter(|path| path.exists()))
        .or_else(|| left.token_file.clone().filter(|path| path.exists()));
    let env = |name: &str| variable(name).or_else(|| left.environment.get(name).cloned());
    let certificates = flags.ca_certs.as_deref();
    let endpoint = endpoint(token_file.as_deref(), certificates, flags.deliver_for, &env)?;
    let code = resume(Resumption {
        dir: dir.clone(),
        left,
        endpoint,
        patience: flags.deliver_for,
    })?;
    if code == ExitCode::Recorded {
        tidy(&dir, &scratch).with_context(|| format!("{place} is not clean"))?;
    }
    drop(lock);
    Ok(code)
}

/// The note of the end goes before what proves that there was something to deliver.
fn tidy(dir: &JobDir, scratch: &Path) -> io::Result<()> {
    dir.write_exit(ExitCode::Recorded)?;
    match fs::remove_dir_all(scratch) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    dir.clean(ExitCode::Recorded)
}

fn is_delivered(dir: &JobDir) -> bool {
    let note = fs::read(dir.exit()).unwrap_or_default();
    serde_json::from_slice::<serde_json::Value>(&note).is_ok_and(|note| note["code"] == 0)
}

fn nothing_left(dir: &JobDir) -> anyhow::Result<ExitCode> {
    let place = dir.path().display();
    if !is_delivered(dir) {
        bail!(
            "{place} has no undelivered results: {} is missing",
            dir.undelivered().display()
        );
    }
    // A process that was killed may not have come to this.
    dir.clean(ExitCode::Recorded)?;
    eprintln!("crunch-run: the results in {place} are delivered");
    Ok(ExitCode::Recorded)
}
