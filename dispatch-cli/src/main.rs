//! `dispatch`: parse, run, say what went wrong in one sentence, end with the status that says so.

mod cli;
mod collection;
mod collection_name;
mod commands;
mod download;
mod exit;
mod failure;
mod image;
mod input_spec;
mod job;
mod job_id;
mod jobs;
mod log_files;
mod log_line;
mod output;
mod result_file;
mod saved_log;
mod session;
mod state_dir;
mod status;
mod supervise;
mod units;
mod upload;
mod waiting;
mod watch;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::exit::Exit;
use crate::failure::Failure;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let waits = cli.command.waits();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(commands::run(cli));
            // A blocked read of standard input must not keep us.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(Failure::Runtime(error)),
    };
    let exit = match result {
        Ok(exit) => exit,
        Err(failure) if failure.is_closed_pipe() => Exit::Ok,
        Err(failure) => {
            output::note(&format!("dispatch: {failure}"));
            match failure.exit() {
                Exit::Usage => Exit::Usage,
                // Otherwise it could be mistaken for the job's own exit code.
                _ if waits => Exit::WaitFailed,
                exit => exit,
            }
        }
    };
    ExitCode::from(exit.code())
}
