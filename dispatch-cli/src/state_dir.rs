//! The directory of one `dispatch up`: what is where, who holds it, and how others find its server.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use arvados_client::{Endpoint, Token};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

/// The directory in it where the dispatcher keeps one directory for each container that runs.
pub const RUN_DIR: &str = "run";

/// Nobody only looks for longer.
const A_LOOK: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// What can be wrong with the directory.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot tell where to keep the state: set XDG_STATE_HOME or HOME, or give --state DIR")]
    NoHome,
    #[error("cannot use the state directory {path}: {source}")]
    Io { path: String, source: io::Error },
    #[error(
        "'dispatch up' already runs on {dir}{holder}; use it with: eval \"$(dispatch env)\", or give another directory with --state"
    )]
    AlreadyUp { dir: String, holder: String },
    #[error("no 'dispatch up' is running on {0}; start it with: dispatch up")]
    NotUp(String),
    #[error("'dispatch up' on {0} is still starting; try again in a moment")]
    NotReady(String),
    #[error("{path} is damaged ({why}); stop 'dispatch up' and start it again")]
    Damaged { path: String, why: String },
}

/// The state directory.
#[derive(Debug, Clone)]
pub struct StateDir {
    path: PathBuf,
}

/// What `up` writes down about itself, beside `env`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpRecord {
    /// Its own process.
    pub pid: u32,
    /// The server's certificate, to verify it by.
    #[serde(default)]
    pub certificate: Option<PathBuf>,
    /// The processes it started, to find them again should it be killed.
    #[serde(default)]
    pub children: Vec<ChildRecord>,
}

/// A process that must be ended before its place is taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRecord {
    /// Program.
    pub name: String,
    /// Process.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: tells it from a later process with the same number.
    pub start_time: u64,
}

/// Holding the directory; another `up` is refused while this lives.
#[derive(Debug)]
pub struct Held {
    _lock: File,
}

impl StateDir {
    /// The one given, or `$XDG_STATE_HOME/dispatch`, or `~/.local/state/dispatch`. Nothing is created.
    pub fn locate(given: Option<&Path>) -> Result<Self, StateError> {
        let absolute = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let path = match given {
            Some(path) => std::path::absolute(path).map_err(|source| io_error(path, source))?,
            None => absolute("XDG_STATE_HOME")
                .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
                .ok_or(StateError::NoHome)?
                .join("dispatch"),
        };
        Ok(Self { path })
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A file or directory in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes it, for its owner only, and takes hold of it.
    pub fn hold(&self) -> Result<Held, StateError> {
        self.make_dir("")?;
        let path = self.join("lock");
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(|source| io_error(&path, source))?;
        match exclusive(&lock) {
            Ok(()) => Ok(Held { _lock: lock }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(StateError::AlreadyUp {
                dir: self.path.display().to_string(),
                holder: match self.record().map(|record| record.pid) {
                    Ok(pid) if pid > 0 => format!(" (process {pid})"),
                    _ => String::new(),
                },
            }),
            Err(errno) => Err(io_error(&path, errno.into())),
        }
    }

    /// Makes a directory in it, for its owner only.
    pub fn make_dir(&self, name: &str) -> Result<PathBuf, StateError> {
        let path = self.path.join(name);
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o700)))
            .map_err(|source| io_error(&path, source))?;
        Ok(path)
    }

    /// Whether an `up` holds it now.
    pub fn is_up(&self) -> bool {
        let Ok(lock) = OpenOptions::new().write(true).open(self.join("lock")) else {
            return false;
        };
        flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
    }

    /// Writes a file only its owner may read, whole or not at all.
    pub fn write(&self, name: &str, content: &str) -> Result<(), StateError> {
        let path = self.join(name);
        let write = || -> io::Result<()> {
            let temporary = path.with_extension("new");
            let mut file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&temporary)?;
            file.write_all(content.as_bytes())?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|source| io_error(&path, source))
    }

    /// Removes a file; one that is gone already is fine.
    pub fn remove(&self, name: &str) {
        // What is left behind is replaced by the next start, and not believed while nobody holds the lock.
        let _ = fs::remove_file(self.join(name));
    }

    /// The record of the `up` that is or was here.
    pub fn record(&self) -> Result<UpRecord, StateError> {
        let path = self.join("up.json");
        let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        serde_json::from_str(&text).map_err(|problem| StateError::Damaged {
            path: path.display().to_string(),
            why: problem.to_string(),
        })
    }

    /// The lines that `up` printed.
    pub fn env(&self) -> Result<String, StateError> {
        let dir = || self.path.display().to_string();
        if !self.is_up() {
            return Err(StateError::NotUp(dir()));
        }
        match fs::read_to_string(self.join("env")) {
            Ok(text) => Ok(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(StateError::NotReady(dir()))
            }
            Err(source) => Err(io_error(&self.join("env"), source)),
        }
    }

    /// The server of the `up` that is here, verified by its own certificate.
    pub fn endpoint(&self) -> Result<Endpoint, StateError> {
        let text = self.env()?;
        let damaged = |why: &str| StateError::Damaged {
            path: self.join("env").display().to_string(),
            why: why.to_owned(),
        };
        let host =
            variable(&text, "ARVADOS_API_HOST").ok_or_else(|| damaged("it names no host"))?;
        let token =
            variable(&text, "ARVADOS_API_TOKEN").ok_or_else(|| damaged("it has no token"))?;
        let mut endpoint =
            Endpoint::new(host, Token::new(token)).map_err(|e| damaged(&e.to_string()))?;
        endpoint.ca_file = self.record().ok().and_then(|record| record.certificate);
        endpoint.insecure = endpoint.ca_file.is_none();
        Ok(endpoint)
    }
}

/// The two lines for a shell.
pub fn env_lines(host: &str, token: &Token) -> String {
    format!(
        "export ARVADOS_API_HOST={host} ARVADOS_API_HOST_INSECURE=1\nexport ARVADOS_API_TOKEN={}\n",
        token.expose()
    )
}

/// Who only looks whether an `up` is there has the lock for a moment, too.
fn exclusive(lock: &File) -> rustix::io::Result<()> {
    let began = Instant::now();
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Err(rustix::io::Errno::WOULDBLOCK) if began.elapsed() < A_LOOK => {
                std::thread::sleep(PAUSE);
            }
            tried => return tried,
        }
    }
}

fn variable<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn io_error(path: &Path, source: io::Error) -> StateError {
    StateError::Io {
        path: path.display().to_string(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, StateDir) {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(&temporary.path().join("state"))).unwrap();
        (temporary, state)
    }

    /// What another test starts has a copy of what is open here, until it runs.
    fn until_free(state: &StateDir) {
        let until = Instant::now() + Duration::from_secs(60);
        while state.is_up() {
            assert!(Instant::now() < until, "it is held");
            std::thread::sleep(PAUSE);
        }
    }

    #[test]
    fn one_up_at_a_time_holds_a_directory() {
        let (_keep, state) = dir();
        assert!(!state.is_up());
        let held = state.hold().unwrap();
        assert!(state.is_up());
        assert!(matches!(state.hold(), Err(StateError::AlreadyUp { .. })));
        drop(held);
        until_free(&state);
        state.hold().unwrap();
    }

    #[test]
    fn what_up_wrote_is_believed_only_while_it_is_there() {
        let (_keep, state) = dir();
        let held = state.hold().unwrap();
        assert!(matches!(state.env(), Err(StateError::NotReady(_))));
        let token = Token::new("v2/zzzzz-gj3su-0123456789abcde/sesame");
        state
            .write("env", &env_lines("127.0.0.1:4242", &token))
            .unwrap();
        let endpoint = state.endpoint().unwrap();
        assert_eq!(endpoint.host, "127.0.0.1:4242");
        assert_eq!(endpoint.token.expose(), token.expose());
        assert!(endpoint.insecure, "no certificate was recorded");
        drop(held);
        until_free(&state);
        assert!(matches!(state.endpoint(), Err(StateError::NotUp(_))));
    }

    #[test]
    fn what_is_written_is_for_the_owner_only() {
        let (_keep, state) = dir();
        let _held = state.hold().unwrap();
        state.write("env", "x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state.join("env")), 0o600);
        assert_eq!(mode(state.path()), 0o700);
    }
}
