//! Runs one container and reports its state, logs and outputs.

use clap::Parser;
use crunch_contract::{ExitCode, StatusLine};
use crunch_run::commands::run::ResultsLost;
use crunch_run::commands::{self, Subcommand, cache, check, kill, list, man, resume, run};
use crunch_run::error_chain::one_line;
use crunch_run::flags::{Flags, normalise};
use crunch_run::node::detach::DetachError;
use crunch_run::node::lock_file::LockError;
use crunch_run::status_line;

fn main() -> std::process::ExitCode {
    // Before any thread exists: this process may be the shim of a container.
    container_engine::run_helper_if_requested();
    let done = match commands::parse(std::env::args_os()) {
        Ok(None) => Flags::read(std::env::args_os()).map(|flags| match flags.check {
            true => check::run(&flags.into()),
            false => run::run(&flags).map(Into::into),
        }),
        Ok(Some(subcommand)) => run_subcommand(subcommand),
        Err(sentence) => Ok(Err(anyhow::anyhow!(sentence))),
    };
    match done {
        Ok(Ok(code)) => code,
        Ok(Err(error)) => {
            let reason = one_line(&error);
            eprintln!("crunch-run: {reason}");
            let held = error
                .downcast_ref()
                .is_some_and(|e| matches!(e, DetachError::Lock(LockError::Held { .. })));
            if held {
                return ExitCode::NotOurs.into();
            }
            let lost = error.is::<ResultsLost>();
            status_line::print(&match lost {
                true => StatusLine::ResultsLost { reason },
                false => StatusLine::Misconfigured { reason },
            });
            ExitCode::Misconfigured.into()
        }
        // Wrong flags, or `--help` and `--version`.
        Err(error) => {
            let _ = error.print();
            if !error.use_stderr() {
                return std::process::ExitCode::SUCCESS;
            }
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            let reason = line.trim_start_matches("error: ").to_owned();
            status_line::print(&StatusLine::Misconfigured { reason });
            ExitCode::Misconfigured.into()
        }
    }
}

type Done = Result<anyhow::Result<std::process::ExitCode>, clap::Error>;

fn run_subcommand(subcommand: Subcommand) -> Done {
    // Without the program's name, which clap would take for the subcommand.
    let words = normalise(std::env::args_os()).into_iter().skip(1);
    Ok(match subcommand {
        Subcommand::Cache => cache::run(&cache::Flags::try_parse_from(words)?),
        Subcommand::Check => check::run(&check::Flags::try_parse_from(words)?),
        Subcommand::Resume => resume::run(&resume::Flags::try_parse_from(words)?).map(Into::into),
        Subcommand::Man => manual(),
        Subcommand::List => list::run(),
        Subcommand::Kill(signal, uuid) => kill::run(signal, &uuid),
    })
}

fn manual() -> anyhow::Result<std::process::ExitCode> {
    man::write(&mut std::io::stdout().lock())?;
    Ok(std::process::ExitCode::SUCCESS)
}
