//! `dispatch-api`: parses flags, starts the server, prints the ready line, waits for a signal,
//! stops. Or runs a command: `backup`, `restore`, `fsck`.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::{CommandFactory, Parser};
use dispatch_api::backup::command;
use dispatch_api::{EX_CONFIG, LogFormat, Options, Server};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

/// Time that work on files and the database has to end after the server has stopped.
const BLOCKED_GRACE: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    host_state::allocator::limit_arenas();
    if let Some(written) = write_manual() {
        return match written {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                eprintln!("dispatch-api: cannot write the manual page: {problem}");
                ExitCode::FAILURE
            }
        };
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let _ = error.print();
            return match error.use_stderr() {
                true => ExitCode::from(EX_CONFIG),
                false => ExitCode::SUCCESS,
            };
        }
    };
    start_logging(options.log_format);
    if let Some(subcommand) = &options.maintenance {
        return command::run(&options.state_dir, subcommand);
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(problem) => {
            eprintln!("dispatch-api: cannot start: {problem}");
            return ExitCode::FAILURE;
        }
    };
    let status = runtime.block_on(run(&options));
    // Queries of requests whose clients were sent away may take a minute.
    runtime.shutdown_timeout(BLOCKED_GRACE);
    status
}

/// Prints the manual page for `man`, and writes all pages for `man --dir DIR`; `None` for anything
/// else.
fn write_manual() -> Option<std::io::Result<()>> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [man] if man == "man" => {
            Some(clap_mangen::Man::new(Options::command()).render(&mut std::io::stdout().lock()))
        }
        [man, flag, dir] if man == "man" && flag == "--dir" => Some(
            std::fs::create_dir_all(dir)
                .and_then(|()| clap_mangen::generate_to(Options::command(), dir)),
        ),
        _ => None,
    }
}

async fn run(options: &Options) -> ExitCode {
    let signals = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    );
    let (Ok(mut terminate), Ok(mut interrupt)) = signals else {
        eprintln!("dispatch-api: cannot listen for signals");
        return ExitCode::FAILURE;
    };
    let server = match Server::start(options).await {
        Ok(server) => server,
        Err(problem) => {
            eprintln!("dispatch-api: {problem}");
            return ExitCode::from(problem.exit_code());
        }
    };
    let mut out = std::io::stdout();
    if writeln!(out, "{}", server.ready())
        .and_then(|()| out.flush())
        .is_err()
    {
        tracing::warn!("cannot write the ready line to standard output");
    }
    // Without a service manager there is no notification socket; that is no error.
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    server.stop().await;
    ExitCode::SUCCESS
}

fn start_logging(format: LogFormat) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().init(),
    }
}
