//! One short command of a scheduler: with a time limit, a size limit, and an environment of its own.
//!
//! What it answers is complete or an error: output that was cut is never handed on.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::fs::{Access, access};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process;

/// More output than this is an error: 10,000 jobs are about 2 MiB.
const LARGEST_OUTPUT: u64 = 64 << 20;
/// How long a command may take, if not said otherwise.
const PATIENCE: Duration = Duration::from_secs(60);
/// How much of what it said on stderr is quoted.
const LAST_WORDS: usize = 2000;
/// What every command gets of our environment; the API token is not among it.
const ENVIRONMENT: [&str; 8] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "TMPDIR",
    "SLURM_CONF",
    "CONDOR_CONFIG",
];

/// A command to be run.
#[derive(Debug, Clone)]
pub struct Command {
    program: OsString,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    input: Vec<u8>,
    patience: Duration,
}

/// What a command answered.
#[derive(Debug, Clone)]
pub struct Answer {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote. What is not UTF-8 in it, as in a name that somebody gave his job, has become U+FFFD.
    pub output: String,
    /// The end of what it complained.
    pub complaint: String,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It did not start: nothing has happened.
    #[error("{program} could not be run: {source}")]
    NotStarted {
        /// Which.
        program: String,
        /// Why.
        source: std::io::Error,
    },
    /// It was ended by us.
    #[error("{program} did not end within {} s", patience.as_secs())]
    TimedOut {
        /// Which.
        program: String,
        /// How long it had.
        patience: Duration,
    },
    /// Too much output.
    #[error("{program} wrote more than {} MiB", LARGEST_OUTPUT >> 20)]
    TooMuch {
        /// Which.
        program: String,
    },
    /// The pipes.
    #[error("{program} could not be listened to: {source}")]
    Pipe {
        /// Which.
        program: String,
        /// Why.
        source: std::io::Error,
    },
}

/// Why a command did not succeed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It ended with a status other than 0; this is what it said.
    #[error("{0}")]
    Said(String),
    /// There is no answer.
    #[error(transparent)]
    NoAnswer(#[from] CommandError),
}

impl Failure {
    /// Whether there is no such program.
    pub fn is_not_installed(&self) -> bool {
        let Self::NoAnswer(CommandError::NotStarted { source, .. }) = self else {
            return false;
        };
        source.kind() == std::io::ErrorKind::NotFound
    }

    /// Whether nothing can have happened.
    pub fn is_not_started(&self) -> bool {
        matches!(self, Self::NoAnswer(CommandError::NotStarted { .. }))
    }
}

impl Answer {
    /// What to tell of a command that failed.
    fn failure(&self) -> String {
        match self.complaint.is_empty() {
            true => format!("it ended with {} and said nothing", self.status),
            false => self.complaint.clone(),
        }
    }
}

impl Command {
    /// `program`, without arguments, with our PATH, HOME and scheduler configuration.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            environment: ENVIRONMENT
                .iter()
                .filter_map(|name| Some((OsString::from(name), std::env::var_os(name)?)))
                .collect(),
            input: Vec::new(),
            patience: PATIENCE,
        }
    }

    /// With these arguments.
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// With these variables besides.
    pub fn envs(mut self, more: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        self.environment.extend(more);
        self
    }

    /// Without this variable of ours.
    pub fn without(mut self, name: &str) -> Self {
        self.environment.retain(|(key, _)| key != name);
        self
    }

    /// With this on its stdin.
    pub fn input(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.input = text.into();
        self
    }

    /// With so much time.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Where PATH has the program. Where that is known a new process needs no copy of this one before it becomes another,
    /// which for a large one takes longer than many a command.
    fn place(&self) -> PathBuf {
        let named = PathBuf::from(&self.program);
        if named.components().count() > 1 {
            return named;
        }
        let path = self.environment.iter().rev().find(|(key, _)| key == "PATH");
        let path = path.map(|(_, path)| path.as_os_str()).unwrap_or_default();
        // What is relative would be so to another directory.
        let places = std::env::split_paths(path).filter(|dir| dir.is_absolute());
        let mut places = places.map(|dir| dir.join(&self.program));
        let runs = |place: &PathBuf| access(place, Access::EXEC_OK).is_ok() && place.is_file();
        places.find(runs).unwrap_or(named)
    }

    fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Runs it; a failure is told in its own words.
    pub async fn succeed(self) -> Result<Answer, Failure> {
        match self.run().await {
            Ok(answer) if answer.status.success() => Ok(answer),
            Ok(answer) => Err(Failure::Said(answer.failure())),
            Err(error) => Err(Failure::NoAnswer(error)),
        }
    }

    /// Runs it. An error other than [`CommandError::NotStarted`] says nothing about what it did.
    pub async fn run(self) -> Result<Answer, CommandError> {
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
        let started = match start(self.place().as_os_str()) {
            // A script that does not say whose it is: a shell takes it, where it is looked for by name.
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
        let talk = async {
            let write = async {
                if let Some(mut stdin) = stdin {
                    // A program that does not read its input to the end has its reasons.
                    let _ = stdin.write_all(&input).await;
                }
            };
            let (_, output, complaint) = tokio::join!(write, read(stdout), read(stderr));
            (output, complaint, child.wait().await)
        };
        let (output, complaint, status) =
            tokio::time::timeout(self.patience, talk)
                .await
                .map_err(|_| CommandError::TimedOut {
                    program: program.clone(),
                    patience: self.patience,
                })?;
        let pipe = |source| CommandError::Pipe {
            program: program.clone(),
            source,
        };
        let (output, complaint) = (output.map_err(pipe)?, complaint.map_err(pipe)?);
        if output.len() as u64 > LARGEST_OUTPUT {
            return Err(CommandError::TooMuch { program });
        }
        let output = String::from_utf8_lossy(&output).into_owned();
        Ok(Answer {
            status: status.map_err(pipe)?,
            output,
            complaint: last_words(&complaint),
        })
    }
}

/// One byte more than allowed shows that there was too much; the rest of a flood is not kept.
async fn read(from: Option<impl AsyncRead + Unpin>) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(LARGEST_OUTPUT + 1)
            .read_to_end(&mut bytes)
            .await?;
    }
    Ok(bytes)
}

fn last_words(bytes: &[u8]) -> String {
    let from = bytes.len().saturating_sub(LAST_WORDS);
    String::from_utf8_lossy(&bytes[from..]).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str) -> Command {
        Command::new("sh").args(["-c", script])
    }

    #[tokio::test]
    async fn a_command_answers_with_all_it_wrote() {
        let answer = sh("cat; echo no >&2; exit 3")
            .input("hello")
            .run()
            .await
            .unwrap();
        assert_eq!(
            (
                answer.output.as_str(),
                answer.failure().as_str(),
                answer.status.code()
            ),
            ("hello", "no", Some(3))
        );
    }

    #[tokio::test]
    async fn a_command_that_hangs_is_ended() {
        let error = sh("sleep 100")
            .patience(Duration::from_millis(100))
            .run()
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "sh did not end within 0 s");
    }

    #[tokio::test]
    async fn cut_or_broken_output_is_no_answer() {
        let flood = sh("head -c 70000000 /dev/zero").run().await.unwrap_err();
        assert_eq!(flood.to_string(), "sh wrote more than 64 MiB");
        let binary = sh(r"printf 'a\377b'").run().await.unwrap();
        assert_eq!(binary.output, "a\u{fffd}b");
        let missing = Command::new("/no/such").run().await.unwrap_err();
        assert!(
            matches!(missing, CommandError::NotStarted { .. }),
            "{missing}"
        );
    }

    #[tokio::test]
    async fn a_script_that_names_no_shell_has_one() {
        let dir = tempfile::tempdir().unwrap();
        // Written by another process: one that is forked by another test must not have it open.
        let file = dir.path().join("nameless").display().to_string();
        let script = sh(&format!("cat >{file}; chmod 755 {file}")).input("echo it ran");
        script.succeed().await.unwrap();
        let nameless = Command::new("nameless").without("PATH");
        let nameless = nameless.envs([("PATH".into(), dir.path().into())]);
        assert_eq!(nameless.run().await.unwrap().output, "it ran\n");
    }

    #[tokio::test]
    async fn a_command_goes_without_what_is_not_for_it() {
        let own = sh("echo ${OWN-gone}").envs([("OWN".into(), "there".into())]);
        assert_eq!(own.clone().run().await.unwrap().output, "there\n");
        assert_eq!(own.without("OWN").run().await.unwrap().output, "gone\n");
    }

    #[tokio::test]
    async fn a_command_does_not_see_our_token() {
        let answer = sh("env | grep -c ARVADOS_API_TOKEN").run().await.unwrap();
        assert_eq!(answer.output.trim(), "0");
    }
}
