//! Runs one container and reports its state, logs and outputs.

use std::io::Write;

use anyhow::Context;
use clap::Parser;
use crunch_run::detach::{DetachError, become_worker, detach, hold};
use crunch_run::errand::{self, Errand};
use crunch_run::exit::ExitCode;
use crunch_run::flags::{Flags, normalise};
use crunch_run::gateway::secret;
use crunch_run::job_dir::JobDir;
use crunch_run::lock_file::LockError;
use crunch_run::run::{self, Settings};
use crunch_run::sentence::sentence;
use crunch_run::stdin_config::Config;
use crunch_run::{cache, check, environment, manual, refuge, registry, resume};
use fail_points::fail_point;

fn main() -> std::process::ExitCode {
    // Before any thread exists: this process may be the small one that keeps a container.
    crunch_run::engine::builtin::helper_main_if_asked();
    let done = match errand::asked(std::env::args_os()) {
        Ok(None) => Flags::read(std::env::args_os()).map(|flags| match flags.check {
            true => check::run(&flags.into()),
            false => start(&flags).or_else(not_on_this_node).map(Into::into),
        }),
        Ok(Some(errand)) => run_errand(errand),
        Err(sentence) => Ok(Err(anyhow::anyhow!(sentence))),
    };
    match done {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            eprintln!("crunch-run: {}", sentence(&error));
            let held = error
                .downcast_ref()
                .is_some_and(|e| matches!(e, DetachError::Lock(LockError::Held { .. })));
            match held {
                true => ExitCode::NotOurs.into(),
                false => ExitCode::Configuration.into(),
            }
        }
        // Wrong flags, or a question about them.
        Err(error) => {
            let _ = error.print();
            match error.use_stderr() {
                true => ExitCode::Configuration.into(),
                false => std::process::ExitCode::SUCCESS,
            }
        }
    }
}

/// Another node may have room where this one has none.
fn not_on_this_node(error: anyhow::Error) -> anyhow::Result<ExitCode> {
    use std::io::ErrorKind as K;
    let is_nodes = error.chain().any(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| matches!(error.kind(), K::StorageFull | K::QuotaExceeded))
    });
    if !is_nodes {
        return Err(error);
    }
    eprintln!("crunch-run: {}", sentence(&error));
    Ok(ExitCode::NeverRan)
}

type Done = Result<anyhow::Result<std::process::ExitCode>, clap::Error>;

fn run_errand(errand: Errand) -> Done {
    // Without the program's name, so that the errand's takes its place.
    let words = normalise(std::env::args_os()).into_iter().skip(1);
    Ok(match errand {
        Errand::Cache => cache::command::run(&cache::command::Flags::try_parse_from(words)?),
        Errand::Check => check::run(&check::Flags::try_parse_from(words)?),
        Errand::Resume => resume::run(&resume::Flags::try_parse_from(words)?).map(Into::into),
        Errand::Man => manual(),
        Errand::List => list(),
        Errand::Kill(signal, uuid) => kill(signal, &uuid),
    })
}

fn manual() -> anyhow::Result<std::process::ExitCode> {
    manual::write(&mut std::io::stdout().lock())?;
    Ok(std::process::ExitCode::SUCCESS)
}

/// What upstream's prints: a uuid a line, each once.
fn list() -> anyhow::Result<std::process::ExitCode> {
    let mut uuids: Vec<_> = registry::list(&runs())?
        .into_iter()
        .map(|entry| entry.uuid)
        .collect();
    uuids.dedup();
    let mut out = std::io::stdout().lock();
    for uuid in uuids {
        writeln!(out, "{uuid}")?;
    }
    Ok(std::process::ExitCode::SUCCESS)
}

fn kill(
    signal: rustix::process::Signal,
    uuid: &arvados_client::ContainerUuid,
) -> anyhow::Result<std::process::ExitCode> {
    if registry::kill(&runs(), uuid, signal)? {
        return Ok(std::process::ExitCode::SUCCESS);
    }
    eprintln!("crunch-run: {uuid} got the signal and still runs");
    Ok(std::process::ExitCode::FAILURE)
}

fn runs() -> std::path::PathBuf {
    registry::directory(environment::variable)
}

fn fresh_dir(flags: &Flags) -> anyhow::Result<JobDir> {
    JobDir::fresh(&flags.uuid).context("no job directory can be made in TMPDIR")
}

/// With what stdin says, and with a job directory that the process in the background can find.
fn start_anew(flags: &Flags) -> anyhow::Result<ExitCode> {
    let config = match flags.stdin_config {
        true => Config::read(std::io::stdin().lock())?,
        false => Config::default(),
    };
    let dir = match &flags.job_dir {
        Some(path) => JobDir::given(path)
            .with_context(|| format!("the job directory {} cannot be used", path.display()))?,
        None => fresh_dir(flags)?,
    };
    Err(config.start_anew(dir.path(), std::env::args_os()).into())
}

/// An error, and with it another status, where nothing will be left to deliver.
fn take_to_safety(flags: &Flags, dir: &JobDir) -> anyhow::Result<()> {
    let told = flags.undelivered_dir.as_deref();
    let Some(place) = refuge::place(dir.path(), told, environment::variable) else {
        return Ok(());
    };
    let new = refuge::take(dir, &place, flags.token_file.as_deref())
        .with_context(|| format!("the results could not be delivered and end with this job, since they cannot be taken to {}", place.display()))?;
    eprintln!(
        "crunch-run: The results are now in {new}: `crunch-run resume {new}` on this node delivers them later",
        new = new.display()
    );
    Ok(())
}

/// The gateway secret leaves the environment before anything is started that could inherit it.
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
    let error = secret::start_anew(&secret, is_taken, std::env::args_os());
    Err(anyhow::Error::new(error).context("crunch-run cannot be started anew"))
}

fn start(flags: &Flags) -> anyhow::Result<ExitCode> {
    for note in flags.obsolete.notes() {
        eprintln!("crunch-run: {note}");
    }
    if flags.stdin_config || (flags.detach && flags.job_dir.is_none()) {
        return start_anew(flags);
    }
    let secret = gateway_secret(flags)?;
    let settings = Settings::new(flags, |name| match name {
        secret::VARIABLE => secret.clone(),
        _ => environment::variable(name),
    })?;
    let dir = match &flags.job_dir {
        Some(path) => JobDir::given(path)
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
        Some(_) => Some(hold(&flags.uuid, settings.attempt(), &dir)?),
        None => None,
    };
    // Without it only --list knows less.
    let registered = registry::register(
        &runs(),
        &flags.uuid,
        Some(dir.places(flags.scratch.as_deref())),
    )
    .inspect_err(|error| eprintln!("crunch-run: --list will not show this run: {error}"))
    .ok();
    let code = run::to_the_end(&settings, &dir, registered.as_ref())?;
    // The command may have run: no error from here on may say that another node can.
    leave(flags, &dir, code).map_err(|error| anyhow::anyhow!(sentence(&error)))?;
    // Only now may another begin here.
    drop(lock);
    Ok(code)
}

/// What is left to do on this node when the attempt is over.
fn leave(flags: &Flags, dir: &JobDir, code: ExitCode) -> anyhow::Result<()> {
    if code == ExitCode::Undelivered && flags.job_dir.is_none() {
        take_to_safety(flags, dir)?;
    }
    fail_point("run.before-clean");
    if let Err(error) = dir.clean(code) {
        eprintln!("crunch-run: {} is not clean: {error}", dir.path().display());
    }
    fail_point("run.before-exit-note");
    if flags.worker {
        dir.write_exit(code)
            .context("the exit file cannot be written")?;
    }
    fail_point("run.after-exit-note");
    Ok(())
}
