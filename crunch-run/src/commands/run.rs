//! `crunch-run UUID`: runs one container in the foreground or in the background. In: the flags.
//! Out: the exit code, and a status line if no result is recorded.

use anyhow::Context;
use crunch_contract::{ExitCode, StatusLine};
use fail_points::fail_point;

use crate::attempt::Settings;
use crate::attempt::run::run_attempt;
use crate::commands::stdin_config::Config;
use crate::error_chain::one_line;
use crate::flags::Flags;
use crate::gateway::secret;
use crate::node::detach::{become_worker, detach, lock_job_dir};
use crate::node::job_dir::JobDir;
use crate::node::registry;
use crate::undelivered::relocate;
use crate::{environment, status_line};

/// Runs the container that the flags name.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    start(flags).or_else(never_ran_if_disk_is_full)
}

/// Reports a full disk as "never ran", because another node may have space.
fn never_ran_if_disk_is_full(error: anyhow::Error) -> anyhow::Result<ExitCode> {
    use std::io::ErrorKind as K;
    let is_disk_full = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| matches!(error.kind(), K::StorageFull | K::QuotaExceeded))
    });
    if !is_disk_full {
        return Err(error);
    }
    let reason = one_line(&error);
    eprintln!("crunch-run: {reason}");
    status_line::print(&StatusLine::NeverRan { reason });
    Ok(ExitCode::NeverRan)
}

fn fresh_dir(flags: &Flags) -> anyhow::Result<JobDir> {
    JobDir::create_temporary(&flags.uuid).context("cannot create a job directory in TMPDIR")
}

/// Starts this program again with the variables from stdin, and with a job directory that the
/// worker can find.
fn re_exec(flags: &Flags) -> anyhow::Result<ExitCode> {
    let config = match flags.stdin_config {
        true => Config::read(std::io::stdin().lock())?,
        false => Config::default(),
    };
    let dir = match &flags.job_dir {
        Some(path) => JobDir::open(path)
            .with_context(|| format!("the job directory {} cannot be used", path.display()))?,
        None => fresh_dir(flags)?,
    };
    Err(config.re_exec(dir.path(), std::env::args_os()).into())
}

/// The command ran, and its results cannot be delivered any more.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ResultsLost(String);

/// Moves results out of a directory that is removed with the job. An error means that they are
/// lost.
fn relocate_results(flags: &Flags, dir: &JobDir) -> anyhow::Result<()> {
    let configured = flags.undelivered_dir.as_deref();
    let Some(destination) = relocate::destination(dir.path(), configured, environment::variable)
    else {
        return Ok(());
    };
    let new = relocate::relocate(dir, &destination, flags.token_file.as_deref())
        .with_context(|| format!("the results could not be delivered and are lost with this job, because they cannot be moved to {}", destination.display()))
        .map_err(|error| ResultsLost(one_line(&error)))?;
    eprintln!(
        "crunch-run: The results are now in {new}: `crunch-run resume {new}` on this node delivers them later",
        new = new.display()
    );
    let directory = new.display().to_string();
    status_line::print(&StatusLine::Undelivered { directory });
    Ok(())
}

/// Reads the gateway secret and removes it from the environment before any child is started.
fn gateway_secret(flags: &Flags) -> anyhow::Result<Option<String>> {
    if flags.gateway_secret_stdin {
        let mut text = String::new();
        std::io::Read::read_to_string(&mut std::io::stdin().lock(), &mut text)
            .context("the gateway secret cannot be read from stdin")?;
        return Ok(Some(text));
    }
    let Ok(secret) = std::env::var(secret::VARIABLE) else {
        return Ok(None);
    };
    // The worker's stdin is its lock.
    let is_taken = flags.detach || flags.worker;
    let error = secret::re_exec(&secret, is_taken, std::env::args_os());
    Err(anyhow::Error::new(error).context("crunch-run cannot be started again"))
}

fn start(flags: &Flags) -> anyhow::Result<ExitCode> {
    for note in flags.obsolete.notes() {
        eprintln!("crunch-run: {note}");
    }
    if flags.stdin_config || (flags.detach && flags.job_dir.is_none()) {
        return re_exec(flags);
    }
    let secret = gateway_secret(flags)?;
    let settings = Settings::new(flags, |name| match name {
        secret::VARIABLE => secret.clone(),
        _ => environment::variable(name),
    })?;
    let dir = match &flags.job_dir {
        Some(path) => JobDir::open(path)
            .with_context(|| format!("the job directory {} cannot be used", path.display()))?,
        None if flags.worker => anyhow::bail!("--worker needs --job-dir"),
        None => fresh_dir(flags)?,
    };
    if flags.detach {
        detach(&flags.uuid, settings.attempt(), &dir, std::env::args_os())?;
        return Ok(ExitCode::Recorded);
    }
    let lock = match &flags.job_dir {
        _ if flags.worker => Some(become_worker(&flags.uuid, settings.attempt(), &dir)?),
        Some(_) => Some(lock_job_dir(&flags.uuid, settings.attempt(), &dir)?),
        None => None,
    };
    let paths = dir.run_paths(flags.node.scratch_dir.as_deref());
    // Only `--list` needs the registration.
    let registered = registry::register(
        &registry::directory(environment::variable),
        &flags.uuid,
        Some(paths.clone()),
    )
    .inspect_err(|error| {
        eprintln!("crunch-run: could not register this run, so --list does not show it: {error}")
    })
    .ok();
    let code = run_attempt(&settings, &dir, registered.as_ref())?;
    // From here on no error may claim that the command never ran.
    clean_up(flags, &dir, code).map_err(|error| match error.downcast::<ResultsLost>() {
        Ok(lost) => anyhow::Error::new(lost),
        Err(error) => anyhow::anyhow!(one_line(&error)),
    })?;
    // The lock is released only after the cleanup.
    drop(lock);
    // A dispatcher on this machine empties the trash in the scratch directory that it gave.
    let is_dispatchers = flags.worker && flags.node.scratch_dir.is_some();
    if !is_dispatchers
        && !paths.empty_trash()
        && let Some(registered) = registered
    {
        registered.leave();
    }
    Ok(code)
}

/// Cleans up on this node when the attempt is over.
fn clean_up(flags: &Flags, dir: &JobDir, code: ExitCode) -> anyhow::Result<()> {
    if code == ExitCode::Undelivered && flags.job_dir.is_none() {
        relocate_results(flags, dir)?;
    }
    fail_point("run.before-clean");
    if let Err(error) = dir.clean(code) {
        eprintln!(
            "crunch-run: could not clean up {}: {error}",
            dir.path().display()
        );
    }
    fail_point("run.before-exit-note");
    if flags.worker {
        dir.write_exit(code)
            .context("the exit file cannot be written")?;
    }
    fail_point("run.after-exit-note");
    Ok(())
}
