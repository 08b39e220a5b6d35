//! Exits of a dispatcher for errors of its configuration and of its command line.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Exit status `EX_CONFIG` of sysexits.h. systemd units list it in `RestartPreventExitStatus=`.
const EXIT_CONFIG: u8 = 78;

/// Prints why the program cannot start as configured, and returns the exit status for that.
pub fn exit_config_error(why: &str) -> ExitCode {
    eprintln!("{}: {why}", program_name());
    ExitCode::from(EXIT_CONFIG)
}

/// Prints a usage error, or the help that was requested, and exits. A usage error exits with
/// `EX_CONFIG`, so that a service manager does not restart the program.
pub fn exit_usage_error(error: clap::Error) -> ! {
    let _ = error.print();
    std::process::exit(match error.use_stderr() {
        true => EXIT_CONFIG.into(),
        false => 0,
    })
}

fn program_name() -> String {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref()
        .and_then(Path::file_name)
        .map_or_else(|| "dispatcher".into(), |n| n.to_string_lossy().into_owned())
}
