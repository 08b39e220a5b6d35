//! File names in the job directory of one attempt. The dispatcher makes the directory; crunch-run
//! works in it.

use serde::{Deserialize, Serialize};

/// The attempt token, and the secret of the gateway where the dispatcher has it. The dispatcher
/// removes the file with the directory, and finds its attempts again by it after a restart.
pub const TOKEN_FILE: &str = "token";
/// stdout and stderr of crunch-run.
pub const OUTPUT_LOG: &str = "output.log";
/// Directory with the files of the container's log, as far as they were written.
pub const LOG_DIR: &str = "log";
/// Lock of the crunch-run that works here, with the identity of its process. Absent if none ever
/// started.
pub const LOCK_FILE: &str = "lock";
/// How a detached crunch-run ended: an [`ExitFile`]. Absent while it runs and after it was killed.
pub const EXIT_FILE: &str = "exit";
/// Data that `crunch-run resume` needs to deliver results. Present from the end of the command
/// until its delivery.
pub const UNDELIVERED_FILE: &str = "undelivered.json";

/// Name of the token file of one attempt, for job directories that several attempts share.
pub fn token_file_for(attempt: &str) -> String {
    format!("{TOKEN_FILE}-{attempt}")
}

/// Content of [`EXIT_FILE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExitFile {
    /// Exit code of crunch-run.
    pub code: i32,
}
