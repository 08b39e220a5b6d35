//! The contract between crunch-run and the programs that start it.
//!
//! crunch-run writes these values, and dispatchers and schedulers read them: the exit code, the
//! status line at the end of the output, the names of files in the job directory, and our keys of
//! `runtime_status`. No program decides anything by matching an English sentence of another.

pub mod job_dir;
pub mod runtime_status;

/// The flag by which a dispatcher says that it gives the record its final state where crunch-run
/// cannot: crunch-run then ends with [`ExitCode::LeftToDispatcher`].
pub const LEAVE_TO_DISPATCHER: &str = "--leave-to-dispatcher";

/// Environment variable with the file that crunch-run removes when the command has ended. The file
/// says what the command holds of the machine.
pub const MACHINE_CLAIM: &str = "DISPATCH_MACHINE_CLAIM";

/// Size in bytes of the longest line in stdout.txt and stderr.txt of a log, without its timestamp.
/// A line of this size goes on in the next one. So a reader has every byte that the container
/// printed, and knows where its lines end.
pub const STAMPED_LINE_BYTES: usize = 64 << 10;

mod exit_code;
mod status_line;

pub use exit_code::{ExitCode, describe};
pub use status_line::{StatusLine, split_output};
