//! Runs one short scheduler command, with limits for time and output and an environment of its own.
//!
//! Input: a program, arguments, stdin and a timeout. Output: a complete answer or an error;
//! truncated output is never returned.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process;

use crate::scheduler::stderr_notes;

/// Time for which the pipes of a command are read that has ended.
const PIPES_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum size of the output in bytes. More is an error: 10,000 jobs are about 2 MiB.
const MAX_OUTPUT: u64 = 64 << 20;
/// Default timeout of a command.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// Number of bytes quoted from the end of stderr.
const STDERR_TAIL_BYTES: usize = 2000;
/// Environment variables that every command inherits. They do not include the API token.
const ENVIRONMENT: &str = "PATH HOME USER LOGNAME LANG TMPDIR SLURM_CONF CONDOR_CONFIG";

/// A command to run.
#[derive(Debug, Clone)]
pub struct Command {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    timeout: Duration,
}

/// The output of a command.
#[derive(Debug, Clone)]
pub struct CommandOutput {
    /// Exit status.
    pub status: ExitStatus,
    /// Content of stdout. Bytes that are not UTF-8, for instance in a user's job name, become
    /// U+FFFD.
    pub stdout: String,
    /// End of stderr.
    pub stderr: String,
}

/// Why a command has no output.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command ended, and a process that it started keeps its output open.
    #[error("{program} has ended, but a process that it started may still write its output")]
    OutputOpen {
        /// Name of the program.
        program: String,
    },
    /// The program did not start, so nothing has happened.
    #[error("{program} could not be run: {source}{}", remedy(source))]
    NotStarted {
        /// Name of the program.
        program: String,
        /// Underlying error.
        source: std::io::Error,
    },
    /// The program was killed after its timeout.
    #[error("{program} did not end within {} s", timeout.as_secs())]
    TimedOut {
        /// Name of the program.
        program: String,
        /// Timeout that it exceeded.
        timeout: Duration,
    },
    /// The program wrote too much output.
    #[error("{program} wrote more than {} MiB", MAX_OUTPUT >> 20)]
    OutputTooLarge {
        /// Name of the program.
        program: String,
    },
    /// Reading from the program failed.
    #[error("cannot read the output of {program}: {source}")]
    Pipe {
        /// Name of the program.
        program: String,
        /// Underlying error.
        source: std::io::Error,
    },
}

/// What to do when a program could not be started.
fn remedy(error: &std::io::Error) -> &'static str {
    match error.kind() {
        std::io::ErrorKind::NotFound => "; install it, or correct PATH",
        std::io::ErrorKind::WouldBlock => {
            "; the limit on processes is reached: see TasksMax and ulimit -u"
        }
        _ => "",
    }
}

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum CommandFailure {
    /// The program ended with a nonzero status. Contains its error text.
    #[error("{0}")]
    Failed(String),
    /// The command has no output.
    #[error(transparent)]
    NotCompleted(#[from] CommandError),
}

impl CommandFailure {
    /// Whether the program does not exist.
    pub fn is_not_installed(&self) -> bool {
        let Self::NotCompleted(CommandError::NotStarted { source, .. }) = self else {
            return false;
        };
        source.kind() == std::io::ErrorKind::NotFound
    }

    /// Whether the program did not start, so that nothing can have happened.
    pub fn is_not_started(&self) -> bool {
        matches!(self, Self::NotCompleted(CommandError::NotStarted { .. }))
    }
}

impl CommandOutput {
    /// The stdout of a command of `program` that succeeded. What it wrote to stderr is logged once
    /// and ignored.
    pub fn into_stdout(self, program: &str) -> String {
        self.into_stdout_except(program, |_| false)
    }

    /// The same, without logging lines of stderr that mean nothing.
    pub fn into_stdout_except(self, program: &str, means_nothing: fn(&str) -> bool) -> String {
        let lines = self.stderr.lines().filter(|line| !means_nothing(line));
        stderr_notes::log_once(program, lines);
        self.stdout
    }

    /// What the program said in place of an answer.
    pub fn said(&self) -> Option<&str> {
        let texts = [self.stderr.trim(), self.stdout.trim()];
        texts.into_iter().find(|text| !text.is_empty())
    }

    /// The output, unless the exit status is nonzero.
    fn checked(self) -> Result<Self, CommandFailure> {
        match self.status.success() {
            true => Ok(self),
            false => Err(CommandFailure::Failed(self.failure())),
        }
    }

    /// The error text of a failed command.
    fn failure(&self) -> String {
        match self.stderr.is_empty() {
            true => format!("it ended with {} and said nothing", self.status),
            false => self.stderr.clone(),
        }
    }
}

impl Command {
    /// Creates a command for `program` without arguments. It inherits PATH, HOME and the scheduler
    /// configuration.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: ENVIRONMENT
                .split(' ')
                .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
                .collect(),
            input: Vec::new(),
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Adds arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds environment variables.
    pub fn envs(mut self, more: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.environment.extend(more);
        self
    }

    /// Removes an environment variable.
    pub fn without(mut self, name: &str) -> Self {
        self.environment.retain(|(key, _)| key != name);
        self
    }

    /// Sets the content of stdin.
    pub fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = text.into();
        self
    }

    /// Sets the timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Resolves the program in PATH. With a full path, the new process needs no copy of this one
    /// before exec. For a large process that copy takes longer than many commands.
    fn resolve_in_path(&self) -> PathBuf {
        let named = PathBuf::from(&self.program);
        if named.components().count() > 1 {
            return named;
        }
        let path = self.environment.iter().rev().find(|(key, _)| key == "PATH");
        let path = path.map(|(_, path)| path.as_os_str()).unwrap_or_default();
        // Relative entries are skipped, because the command runs in another directory.
        let places = std::env::split_paths(path).filter(|dir| dir.is_absolute());
        let mut places = places.map(|dir| dir.join(&self.program));
        let runs = |place: &PathBuf| access(place, Access::EXEC_OK).is_ok() && place.is_file();
        places.find(runs).unwrap_or(named)
    }

    /// Whether the program exists and may be run.
    pub fn is_installed(&self) -> bool {
        let path = self.resolve_in_path();
        path.is_file() && access(&path, Access::EXEC_OK).is_ok()
    }

    /// Name of the program.
    pub fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Runs the command. A nonzero exit status is an error with the command's own text.
    pub async fn run_checked(self) -> Result<CommandOutput, CommandFailure> {
        self.run().await?.checked()
    }

    /// The same for a command of which one line is wanted: what it printed until it ended, although
    /// a process that it left behind may print more.
    pub async fn run_until_exit(self) -> Result<CommandOutput, CommandFailure> {
        self.talk().await?.0.checked()
    }

    /// Runs the command. After an error other than [`CommandError::NotStarted`], its effects are
    /// unknown. What may lack its end is no output.
    pub async fn run(self) -> Result<CommandOutput, CommandError> {
        let program = self.name();
        match self.talk().await? {
            (output, true) => Ok(output),
            (_, false) => Err(CommandError::OutputOpen { program }),
        }
    }

    /// The output, and whether its end was seen. Without that, it ends with a whole line.
    async fn talk(self) -> Result<(CommandOutput, bool), CommandError> {
        let program = self.name();
        let start = |program: &OsStr| {
            process::Command::new(program)
                .args(&self.arguments)
                .env_clear()
                .envs(self.environment.iter().map(|(k, v)| (k, v)))
                .current_dir("/")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .kill_on_drop(true)
                .spawn()
        };
        let started = match start(self.resolve_in_path().as_os_str()) {
            // A script without a `#!` line: an exec by name runs it with a shell.
            Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
                start(&self.program)
            }
            started => started,
        };
        let mut child = started.map_err(|source| CommandError::NotStarted {
            program: program.clone(),
            source,
        })?;
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let input = self.input;
        let (mut output, mut complaint) = (Vec::new(), Vec::new());
        let talk = async {
            let pipes = async {
                let write = async {
                    if let Some(mut stdin) = stdin {
                        // A program may exit without reading all of its input.
                        let _ = stdin.write_all(&input).await;
                    }
                };
                let read = async {
                    tokio::try_join!(read(stdout, &mut output), read(stderr, &mut complaint))
                };
                tokio::join!(write, read).1
            };
            tokio::pin!(pipes);
            tokio::select! {
                read = &mut pipes => (Some(read), child.wait().await),
                // A process that it left behind may keep the pipes open.
                status = child.wait() => {
                    (tokio::time::timeout(PIPES_TIMEOUT, pipes).await.ok(), status)
                }
            }
        };
        let (read, status) = tokio::time::timeout(self.timeout, talk)
            .await
            .map_err(|_| CommandError::TimedOut {
                program: program.clone(),
                timeout: self.timeout,
            })?;
        let pipe = |source| CommandError::Pipe {
            program: program.clone(),
            source,
        };
        let is_whole = read.transpose().map_err(pipe)?.is_some();
        if !is_whole {
            let lines = output.iter().rposition(|byte| *byte == b'\n');
            output.truncate(lines.map_or(0, |end| end + 1));
        }
        if output.len() as u64 > MAX_OUTPUT {
            return Err(CommandError::OutputTooLarge { program });
        }
        let output = String::from_utf8_lossy(&output).into_owned();
        let output = CommandOutput {
            status: status.map_err(pipe)?,
            stdout: output,
            stderr: stderr_tail(&complaint),
        };
        Ok((output, is_whole))
    }
}

/// Reads up to one byte more than allowed. That byte proves excess output, and the rest is dropped.
async fn read(from: Option<impl AsyncRead + Unpin>, bytes: &mut Vec<u8>) -> std::io::Result<()> {
    if let Some(from) = from {
        from.take(MAX_OUTPUT + 1).read_to_end(bytes).await?;
    }
    Ok(())
}

fn stderr_tail(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(STDERR_TAIL_BYTES);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}

#[cfg(test)]
mod tests;
