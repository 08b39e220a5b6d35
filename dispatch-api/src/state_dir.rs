//! The state directory: the server's identity, its private files, and an exclusive lock.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use host_state::file::{self, Durability};
use serde::{Deserialize, Serialize};

use crate::auth::secrets;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot use the state directory {path}: {source}")]
    Io { path: String, source: io::Error },
    #[error("another dispatch-api is already running on {0}; stop it or use another --state-dir")]
    InUse(String),
    #[error(
        "{path} is damaged: {why}; restore it from a backup, or start with an empty --state-dir"
    )]
    Damaged { path: String, why: String },
    #[error(
        "{0} is a backup; `dispatch-api --state-dir NEW restore {0}` makes a state directory of it"
    )]
    IsBackup(String),
    #[error("the restore into {0} has not ended; run it again")]
    UnfinishedRestore(String),
    #[error("the cluster id {0:?} is not 5 characters out of a-z and 0-9")]
    BadClusterId(String),
    #[error(
        "the state in {path} belongs to cluster {stored}, not {requested}; leave --cluster-id out or use another --state-dir"
    )]
    ClusterMismatch {
        path: String,
        stored: String,
        requested: String,
    },
}

/// File that makes a directory a backup; see `backup`.
pub const BACKUP_FILE: &str = "backup.json";
/// File that a directory has until a backup is restored into it as a whole.
pub const RESTORE_FILE: &str = "unfinished-restore";

/// Ids and keys that the server generates at its first start.
#[derive(Clone, Serialize, Deserialize)]
pub struct ServerIdentity {
    pub cluster_id: String,
    /// 0 until the first start has bound a port.
    pub port: u16,
    pub blob_signing_key: String,
    pub attempt_key: String,
    /// Names and addresses of the certificate that the server issues to itself.
    #[serde(default)]
    pub certificate_names: Vec<String>,
}

/// The locked state directory; dropping the value releases the lock.
pub struct StateDir {
    pub path: PathBuf,
    pub identity: ServerIdentity,
    _lock: File,
}

impl StateDir {
    pub fn open(path: &Path, cluster_id: Option<&str>) -> Result<StateDir, StateError> {
        if let Some(id) = cluster_id {
            check_cluster_id(id)?;
        }
        file::create_private_dir(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
            .map_err(|source| io_error(path, source))?;
        let path = path
            .canonicalize()
            .map_err(|source| io_error(path, source))?;
        let lock = lock(&path)?;
        for (file, refusal) in [
            (
                BACKUP_FILE,
                StateError::IsBackup as fn(String) -> StateError,
            ),
            (RESTORE_FILE, StateError::UnfinishedRestore),
        ] {
            if path.join(file).exists() {
                return Err(refusal(path.display().to_string()));
            }
        }
        let identity = load_or_create(&path, cluster_id)?;
        fail_points::fail_point("api.start.state-made");
        Ok(StateDir {
            path,
            identity,
            _lock: lock,
        })
    }

    pub fn save_port(&mut self, port: u16) -> Result<(), StateError> {
        if self.identity.port == port {
            return Ok(());
        }
        self.identity.port = port;
        save(&self.path, &self.identity)
    }

    pub fn save_certificate_names(&mut self, names: Vec<String>) -> Result<(), StateError> {
        self.identity.certificate_names = names;
        save(&self.path, &self.identity)
    }

    /// Writes a file atomically that only its owner can read.
    pub fn write_private(&self, name: &str, content: &str) -> Result<(), StateError> {
        replace_private(&self.path.join(name), content)
    }

    /// Writes a file that only its owner can read, if it is missing or different. A file with this
    /// content stays as it is, because the server must start on a full disk too.
    pub fn ensure_private(&self, name: &str, content: &str) -> Result<(), StateError> {
        let path = self.path.join(name);
        let is_private = || {
            let mode = fs::metadata(&path).ok()?.permissions().mode();
            Some(mode & 0o777 == 0o600 && fs::read(&path).ok()? == content.as_bytes())
        };
        match is_private() {
            Some(true) => Ok(()),
            _ => self.write_private(name, content),
        }
    }
}

fn check_cluster_id(id: &str) -> Result<(), StateError> {
    let sane = id.len() == 5
        && id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    if sane {
        Ok(())
    } else {
        Err(StateError::BadClusterId(id.to_owned()))
    }
}

fn lock(directory: &Path) -> Result<File, StateError> {
    let path = directory.join("lock");
    host_state::lock::try_exclusive(&path)
        .map_err(|source| io_error(&path, source))?
        .ok_or_else(|| StateError::InUse(directory.display().to_string()))
}

fn load_or_create(
    directory: &Path,
    cluster_id: Option<&str>,
) -> Result<ServerIdentity, StateError> {
    let path = directory.join("server.json");
    let identity = match read_identity(&path) {
        Ok(identity) => identity,
        Err(StateError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            let identity = ServerIdentity {
                cluster_id: cluster_id.unwrap_or("local").to_owned(),
                port: 0,
                blob_signing_key: secrets::new_signing_key(),
                attempt_key: secrets::new_signing_key(),
                certificate_names: Vec::new(),
            };
            save(directory, &identity)?;
            return Ok(identity);
        }
        Err(error) => return Err(error),
    };
    match cluster_id {
        Some(requested) if requested != identity.cluster_id => Err(StateError::ClusterMismatch {
            path: directory.display().to_string(),
            stored: identity.cluster_id,
            requested: requested.to_owned(),
        }),
        _ => Ok(identity),
    }
}

pub fn read_identity(path: &Path) -> Result<ServerIdentity, StateError> {
    let text = fs::read_to_string(path).map_err(|source| io_error(path, source))?;
    serde_json::from_str(&text).map_err(|problem| StateError::Damaged {
        path: path.display().to_string(),
        why: problem.to_string(),
    })
}

fn save(directory: &Path, identity: &ServerIdentity) -> Result<(), StateError> {
    let path = directory.join("server.json");
    let text = serde_json::to_string_pretty(identity).map_err(|problem| StateError::Damaged {
        path: path.display().to_string(),
        why: problem.to_string(),
    })?;
    replace_private(&path, &text)
}

/// Replaces a file atomically with one that only its owner can read.
pub fn replace_private(path: &Path, content: &str) -> Result<(), StateError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let write = || -> io::Result<()> {
        file::create_private_dir(directory)?;
        file::replace(path, content.as_bytes(), Durability::Power)?;
        File::open(directory)?.sync_all()
    };
    write().map_err(|source| io_error(path, source))
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

    #[test]
    fn what_was_decided_once_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        let mut first = StateDir::open(&path, Some("abcde")).unwrap();
        first.save_port(4242).unwrap();
        let key = first.identity.attempt_key.clone();
        drop(first);
        let second = StateDir::open(&path, None).unwrap();
        assert_eq!(second.identity.cluster_id, "abcde");
        assert_eq!(second.identity.port, 4242);
        assert_eq!(second.identity.attempt_key, key);
        drop(second);
        assert!(matches!(
            StateDir::open(&path, Some("other")),
            Err(StateError::ClusterMismatch { .. })
        ));
    }

    #[test]
    fn only_one_server_may_use_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateDir::open(directory.path(), None).unwrap();
        let second = StateDir::open(directory.path(), None);
        assert!(matches!(second, Err(StateError::InUse(_))));
        drop(first);
        assert!(StateDir::open(directory.path(), None).is_ok());
    }

    #[test]
    fn cluster_ids_are_checked() {
        for bad in ["abc", "ABCDE", "ab-de", "abcdef"] {
            let directory = tempfile::tempdir().unwrap();
            let refused = StateDir::open(directory.path(), Some(bad));
            assert!(matches!(refused, Err(StateError::BadClusterId(_))), "{bad}");
        }
    }
}
