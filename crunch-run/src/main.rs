//! Runs one container and reports its state, logs and outputs.

use std::io::Write;
use std::time::Duration;

use anyhow::Context;
use crunch_run::detach::{DetachError, become_worker, detach};
use crunch_run::exit::ExitCode;
use crunch_run::flags::Flags;
use crunch_run::job_dir::JobDir;
use crunch_run::lock_file::LockError;
use crunch_run::run::{Settings, run};
use crunch_run::signals;

fn main() -> std::process::ExitCode {
    // Before any thread exists: this process may be the small one that keeps a container.
    crunch_run::engine::builtin::helper_main_if_asked();
    let flags = match Flags::read(std::env::args_os()) {
        Ok(flags) => flags,
        Err(error) => {
            let _ = error.print();
            return match error.use_stderr() {
                true => ExitCode::Configuration.into(),
                false => std::process::ExitCode::SUCCESS,
            };
        }
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
    let lock = flags.worker.then(|| become_worker(&dir)).transpose()?;
    let _ = tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing::Level::INFO)
        .with_ansi(false)
        .try_init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let code =
        runtime.block_on(async { anyhow::Ok(run(&settings, &dir, signals::listen()?).await) })?;
    // Threads that may hang in a system call are not waited for.
    runtime.shutdown_timeout(Duration::from_millis(100));
    if let Err(error) = dir.clean(code) {
        let _ = writeln!(
            std::io::stderr(),
            "crunch-run: {} is not clean: {error}",
            dir.path().display()
        );
    }
    if lock.is_some() {
        dir.write_exit(code)
            .context("the exit file cannot be written")?;
    }
    Ok(code)
}
