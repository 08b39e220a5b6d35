//! The state directory of `dispatch up`: its files, its lock, and the address of its server for
//! other commands.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::{Endpoint, Token};
use host_state::file::{self, Durability};
use host_state::lock;
use serde::{Deserialize, Serialize};

/// Subdirectory that is the state directory of dispatch-local.
pub const LOCAL_STATE_DIR: &str = "run";

/// File with the [`UpRecord`].
pub const RECORD_FILE: &str = "up.json";

/// File of the server with disk space for deletions, which the server takes again.
const SERVER_RESERVE: &str = "api/reserve";

/// Maximum time for which [`StateDir::is_up`] of another process holds the lock.
const PROBE_LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(
        "cannot tell where to keep the state: set XDG_STATE_HOME or HOME, or give --state-dir DIR"
    )]
    NoHome,
    #[error("cannot use the state directory {path}: {source}")]
    Io { path: String, source: io::Error },
    #[error(
        "'dispatch up' already runs on {dir}{holder}; use it with: eval \"$(dispatch env)\", or give another directory with --state-dir"
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

/// Record of a running `dispatch up`, in `up.json`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct UpRecord {
    /// Directory with unpacked images and inputs.
    pub cache_dir: Option<PathBuf>,
    /// Directory with the files of running containers.
    pub scratch_dir: Option<PathBuf>,
    /// Process id of `dispatch up`.
    pub pid: u32,
    /// The server, once all programs are ready.
    pub server: Option<ServerRecord>,
    /// The programs it started, so that the next `dispatch up` finds orphans.
    #[serde(default)]
    pub children: Vec<ChildRecord>,
}

/// The server of a running `dispatch up`, and how to reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerRecord {
    /// `host:port`.
    pub host: String,
    /// The certificate that this server is verified by.
    pub certificate: PathBuf,
    /// That certificate and those of the system, for other programs.
    pub ca_bundle: PathBuf,
    /// File with the token of an ordinary user.
    pub token_file: PathBuf,
    /// File with the token of the administrator.
    pub admin_token_file: PathBuf,
}

/// A program that `dispatch up` started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildRecord {
    /// Name of the program.
    pub name: String,
    /// Process id.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`, which distinguishes a later process with the same pid.
    pub start_time: u64,
}

/// The directory named by the environment. An empty variable counts as unset, like every variable
/// here.
pub fn named_in_environment() -> Option<PathBuf> {
    let set = std::env::var_os("DISPATCH_STATE_DIR").filter(|dir| !dir.is_empty());
    set.map(PathBuf::from)
}

impl StateDir {
    /// The given directory, else `$XDG_STATE_HOME/dispatch`, else `~/.local/state/dispatch`.
    /// Creates nothing.
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

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file or directory in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Creates the directory, readable by its owner only, and locks it: another `dispatch up` is
    /// refused until the file is dropped.
    pub fn lock(&self) -> Result<File, StateError> {
        self.make_dir("")?;
        let path = self.join("lock");
        let file = lock::open(&path).map_err(|source| io_error(&path, source))?;
        // Retried, because `is_up` takes the lock briefly, too.
        match lock::acquire_within(PROBE_LOCK_TIMEOUT, || file.try_lock()) {
            Ok(true) => Ok(file),
            Ok(false) => Err(StateError::AlreadyUp {
                dir: self.path.display().to_string(),
                holder: match self.record().map(|record| record.pid) {
                    Ok(pid) if pid > 0 => format!(" (process {pid})"),
                    _ => String::new(),
                },
            }),
            Err(error) => Err(io_error(&path, error)),
        }
    }

    /// Creates a directory in it, readable by its owner only.
    pub fn make_dir(&self, name: &str) -> Result<PathBuf, StateError> {
        let path = self.path.join(name);
        file::create_private_dir(&path)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o700)))
            .map_err(|source| io_error(&path, source))?;
        Ok(path)
    }

    /// Whether a `dispatch up` holds the lock now.
    pub fn is_up(&self) -> bool {
        File::open(self.join("lock")).is_ok_and(|file| file.try_lock_shared().is_err())
    }

    /// Writes a file atomically, readable by its owner only. On a full disk it writes over the old
    /// content, else it takes the space that the server reserves for deletions: without a
    /// `dispatch up`, nobody can make room.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<(), StateError> {
        let (path, content) = (self.join(name), content.as_ref());
        let replace = || file::replace(&path, content, Durability::Process);
        let is_full = |error: &io::Error| {
            let kind = error.kind();
            kind == io::ErrorKind::StorageFull || kind == io::ErrorKind::QuotaExceeded
        };
        let written = match replace() {
            Err(error) if is_full(&error) => write_over(&path, content).or_else(|_| {
                // Without it, the next line says what is wrong.
                let _ = fs::remove_file(self.join(SERVER_RESERVE));
                replace()
            }),
            written => written,
        };
        written.map_err(|source| io_error(&path, source))
    }

    /// Removes a file, if it exists.
    pub fn remove(&self, name: &str) {
        // An error is ignored: the next start replaces the file, and nothing reads it while the
        // lock is free.
        let _ = fs::remove_file(self.join(name));
    }

    /// The record of the current or last `dispatch up`.
    pub fn record(&self) -> Result<UpRecord, StateError> {
        let path = self.join(RECORD_FILE);
        let text = fs::read_to_string(&path).map_err(|source| io_error(&path, source))?;
        serde_json::from_str(&text).map_err(|problem| StateError::Damaged {
            path: path.display().to_string(),
            why: problem.to_string(),
        })
    }

    /// The server of the running `dispatch up`.
    pub fn server(&self) -> Result<ServerRecord, StateError> {
        let dir = || self.path.display().to_string();
        if let Err(source) = File::open(self.join("lock"))
            && source.kind() == io::ErrorKind::PermissionDenied
        {
            return Err(io_error(&self.path, source));
        }
        if !self.is_up() {
            return Err(StateError::NotUp(dir()));
        }
        match self.record() {
            Ok(UpRecord {
                server: Some(server),
                ..
            }) => Ok(server),
            Ok(_) => Err(StateError::NotReady(dir())),
            Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(StateError::NotReady(dir()))
            }
            Err(error) => Err(error),
        }
    }

    /// The server with the token of its ordinary user, verified by its own certificate.
    pub fn endpoint(&self) -> Result<Endpoint, StateError> {
        let server = self.server()?;
        self.endpoint_with(&server.host, &server.certificate, &server.token_file)
    }

    /// The server with the token of its administrator.
    pub fn admin_endpoint(&self) -> Result<Endpoint, StateError> {
        let server = self.server()?;
        self.endpoint_with(&server.host, &server.certificate, &server.admin_token_file)
    }

    /// The server at this address, with the token in a file.
    pub fn endpoint_with(
        &self,
        host: &str,
        certificate: &Path,
        token_file: &Path,
    ) -> Result<Endpoint, StateError> {
        let token = fs::read_to_string(token_file).map_err(|error| io_error(token_file, error))?;
        let mut endpoint =
            Endpoint::new(host, Token::new(token)).map_err(|e| StateError::Damaged {
                path: self.join(RECORD_FILE).display().to_string(),
                why: e.to_string(),
            })?;
        endpoint.ca_file = Some(certificate.to_owned());
        // 'dispatch up' serves it from this machine, under any name.
        endpoint.is_direct = true;
        Ok(endpoint)
    }
}

fn io_error(path: &Path, source: io::Error) -> StateError {
    StateError::Io {
        path: path.display().to_string(),
        source,
    }
}

/// Writes over the content of a file that exists, within its blocks.
fn write_over(path: &Path, content: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    file.write_all_at(content, 0)?;
    file.set_len(content.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> (tempfile::TempDir, StateDir) {
        let temporary = tempfile::tempdir().unwrap();
        let state = StateDir::locate(Some(&temporary.path().join("state"))).unwrap();
        (temporary, state)
    }

    /// A child of another test has a copy of open descriptors until it executes its program.
    fn until_free(state: &StateDir) {
        let file = lock::open(&state.join("lock")).unwrap();
        let minute = Duration::from_secs(60);
        assert!(lock::acquire_within(minute, || file.try_lock()).unwrap());
    }

    #[test]
    fn one_up_at_a_time_holds_a_directory() {
        let (_keep, state) = dir();
        assert!(!state.is_up());
        let held = state.lock().unwrap();
        assert!(state.is_up());
        assert!(matches!(state.lock(), Err(StateError::AlreadyUp { .. })));
        drop(held);
        until_free(&state);
        state.lock().unwrap();
    }

    #[test]
    fn what_up_wrote_is_believed_only_while_it_is_there() {
        let (_keep, state) = dir();
        let held = state.lock().unwrap();
        assert!(matches!(state.endpoint(), Err(StateError::NotReady(_))));
        let server = ServerRecord {
            host: "127.0.0.1:4242".to_owned(),
            certificate: state.join("certificate"),
            ca_bundle: state.join("bundle"),
            token_file: state.join("token"),
            admin_token_file: state.join("admin-token"),
        };
        let record = UpRecord {
            server: Some(server),
            ..UpRecord::default()
        };
        let text = serde_json::to_string(&record).unwrap();
        state.write(RECORD_FILE, text).unwrap();
        state
            .write("token", "v2/zzzzz-gj3su-0123456789abcde/sesame")
            .unwrap();
        state
            .write("admin-token", "v2/zzzzz-gj3su-000000000000000/root\n")
            .unwrap();
        let endpoint = state.endpoint().unwrap();
        assert_eq!(endpoint.host, "127.0.0.1:4242");
        assert!(endpoint.token.expose().ends_with("/sesame"));
        assert_eq!(endpoint.ca_file, Some(state.join("certificate")));
        assert!(!endpoint.insecure);
        assert!(endpoint.is_direct, "no proxy is asked for it");
        let admin = state.admin_endpoint().unwrap();
        assert!(admin.token.expose().ends_with("/root"));
        drop(held);
        until_free(&state);
        assert!(matches!(state.endpoint(), Err(StateError::NotUp(_))));
    }

    #[test]
    fn what_is_written_is_for_the_owner_only() {
        let (_keep, state) = dir();
        let _held = state.lock().unwrap();
        state.write("a", "x").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&state.join("a")), 0o600);
        assert_eq!(mode(state.path()), 0o700);
    }
}
