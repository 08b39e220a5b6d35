//! Runs one container and reports its state, logs and outputs.

use anyhow::Context;
use clap::Parser;
use crunch_run::cache::command;
use crunch_run::detach::{DetachError, become_worker, detach, hold};
use crunch_run::exit::ExitCode;
use crunch_run::flags::Flags;
use crunch_run::job_dir::JobDir;
use crunch_run::lock_file::LockError;
use crunch_run::run::{self, Settings};
use fail_points::fail_point;

fn main() -> std::process::ExitCode {
    // Before any thread exists: this process may be the small one that keeps a container.
    crunch_run::engine::builtin::helper_main_if_asked();
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "cache")
    {
        return cache();
    }
    let flags = match Flags::read(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => return refuse(&error),
    };
    for note in flags.obsolete.notes() {
        eprintln!("crunch-run: {note}");
    }
    match start(&flags) {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("crunch-run: {error:#}");
            let held = error
                .downcast_ref()
                .is_some_and(|e| matches!(e, DetachError::Lock(LockError::Held { .. })));
            match held {
                true => ExitCode::NotOurs.into(),
                false => ExitCode::Configuration.into(),
            }
        }
    }
}

/// Wrong flags, or a question about them.
fn refuse(error: &clap::Error) -> std::process::ExitCode {
    let _ = error.print();
    match error.use_stderr() {
        true => ExitCode::Configuration.into(),
        false => std::process::ExitCode::SUCCESS,
    }
}

fn cache() -> std::process::ExitCode {
    let done = match command::Flags::try_parse_from(std::env::args_os().skip(1)) {
        Ok(flags) => command::run(&flags),
        Err(error) => return refuse(&error),
    };
    done.unwrap_or_else(|error| {
        eprintln!("crunch-run: {error:#}");
        std::process::ExitCode::FAILURE
    })
}

fn start(flags: &Flags) -> anyhow::Result<ExitCode> {
    let settings = Settings::new(flags, |name| std::env::var(name).ok())?;
    let dir = match &flags.job_dir {
        Some(path) => JobDir::given(path)
            .with_context(|| format!("the job directory {} cannot be used", path.display()))?,
        None if flags.detach || flags.worker => anyhow::bail!("--detach needs --job-dir"),
        None => JobDir::fresh(&flags.uuid).context("no job directory can be made in TMPDIR")?,
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
    let code = run::to_the_end(&settings, &dir)?;
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
    // Only now may another begin here.
    drop(lock);
    Ok(code)
}
