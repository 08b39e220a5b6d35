//! The `dispatch` command. In: the command line. Out: the result of the command, or one error
//! sentence, and the exit status.

mod ca_bundle;
mod cli;
mod collection;
mod collection_name;
mod columns;
mod commands;
mod completion;
mod delete;
mod disk_usage;
mod download;
mod earlier_containers;
mod error;
mod exit;
mod gpu_request;
mod image;
mod input_mount;
mod input_spec;
mod interrupt;
mod job;
mod job_flags;
mod job_id;
mod job_numbers;
mod job_output;
mod job_request;
mod jobs;
mod local_status;
mod log_files;
mod log_follower;
mod log_line;
mod log_printer;
mod owners;
mod pending_reason;
mod printer;
mod result_file;
mod run_command_line;
mod saved_log;
mod selection;
mod session;
mod state_dir;
mod supervise;
mod text;
mod upload;
mod wait_progress;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::cli::Cli;
use crate::error::CliError;
use crate::exit::Exit;
use crate::state_dir::StateDir;

fn main() -> ExitCode {
    commands::completions::answer_shell(Cli::command);
    let cli = Cli::parse();
    let waits = cli.command.waits_for_job();
    let state_dir = cli.global.state_dir();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = match runtime {
        Ok(runtime) => {
            let result = runtime.block_on(run_command_line::run(cli));
            // Do not wait for a blocked read of standard input.
            runtime.shutdown_background();
            result
        }
        Err(error) => Err(CliError::Runtime(error)),
    };
    let exit = match result {
        Ok(exit) => exit,
        Err(failure) if failure.is_closed_pipe() => Exit::Ok,
        Err(failure) => {
            let sentence = text::without_error_numbers(&failure.to_string());
            printer::eprint_note(&format!("dispatch: {sentence}"));
            if failure.exit() == Exit::Failure
                && let Some(shortage) = disk_shortage(state_dir.as_deref())
            {
                printer::eprint_note(&format!("dispatch: {shortage}"));
            }
            match failure.exit() {
                exit @ (Exit::Usage | Exit::Interrupted) => exit,
                // Any other status could be taken for the exit code of the job.
                _ if waits => Exit::WaitFailed,
                exit => exit,
            }
        }
    };
    ExitCode::from(exit.code())
}

/// What is said of the disk of `dispatch up` on this machine if it is full, which may be the cause.
fn disk_shortage(named: Option<&Path>) -> Option<String> {
    let state_dir = StateDir::locate(named).ok()?;
    disk_usage::shortage(&state_dir).filter(|_| state_dir.is_up())
}
