//! The state directory: who this server is, kept from one start to the next, and only one server on it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::random;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot use the state directory {path}: {source}")]
    Io { path: String, source: io::Error },
    #[error(
        "another dispatch-api is already running on {0}; stop it or use another --state directory"
    )]
    InUse(String),
    #[error(
        "{path} is damaged: {why}; restore it from a backup, or start with an empty --state directory"
    )]
    Damaged { path: String, why: String },
    #[error("the cluster id {0:?} is not 5 characters out of a-z and 0-9")]
    BadClusterId(String),
    #[error(
        "the state in {path} belongs to cluster {kept}, not {asked}; leave --cluster-id out or use another --state directory"
    )]
    OtherCluster {
        path: String,
        kept: String,
        asked: String,
    },
}

/// What the server decided about itself at its first start.
#[derive(Clone, Serialize, Deserialize)]
pub struct Kept {
    pub cluster_id: String,
    /// 0 until the first start has found a free port.
    pub port: u16,
    pub blob_signing_key: String,
    pub attempt_key: String,
}

/// The directory, held for as long as this value lives.
pub struct StateDir {
    pub path: PathBuf,
    pub kept: Kept,
    _lock: File,
}

impl StateDir {
    pub fn open(path: &Path, cluster_id: Option<&str>) -> Result<StateDir, StateError> {
        if let Some(id) = cluster_id {
            check_cluster_id(id)?;
        }
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o700)))
            .map_err(|source| io_error(path, source))?;
        let path = path
            .canonicalize()
            .map_err(|source| io_error(path, source))?;
        let lock = lock(&path)?;
        let kept = load_or_create(&path, cluster_id)?;
        fail_points::fail_point("api.start.state-made");
        Ok(StateDir {
            path,
            kept,
            _lock: lock,
        })
    }

    pub fn remember_port(&mut self, port: u16) -> Result<(), StateError> {
        if self.kept.port == port {
            return Ok(());
        }
        self.kept.port = port;
        save(&self.path, &self.kept)
    }

    /// Write a file only its owner may read, whole or not at all.
    pub fn write_private(&self, name: &str, content: &str) -> Result<PathBuf, StateError> {
        let path = self.path.join(name);
        write_private(&path, content)?;
        Ok(path)
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
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|source| io_error(&path, source))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            Err(StateError::InUse(directory.display().to_string()))
        }
        Err(errno) => Err(io_error(&path, errno.into())),
    }
}

fn load_or_create(directory: &Path, cluster_id: Option<&str>) -> Result<Kept, StateError> {
    let path = directory.join("server.json");
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(missing) if missing.kind() == io::ErrorKind::NotFound => {
            let kept = Kept {
                cluster_id: cluster_id.unwrap_or("local").to_owned(),
                port: 0,
                blob_signing_key: random::key(),
                attempt_key: random::key(),
            };
            save(directory, &kept)?;
            return Ok(kept);
        }
        Err(source) => return Err(io_error(&path, source)),
    };
    let kept: Kept = serde_json::from_str(&text).map_err(|problem| StateError::Damaged {
        path: path.display().to_string(),
        why: problem.to_string(),
    })?;
    match cluster_id {
        Some(asked) if asked != kept.cluster_id => Err(StateError::OtherCluster {
            path: directory.display().to_string(),
            kept: kept.cluster_id,
            asked: asked.to_owned(),
        }),
        _ => Ok(kept),
    }
}

fn save(directory: &Path, kept: &Kept) -> Result<(), StateError> {
    let path = directory.join("server.json");
    let text = serde_json::to_string_pretty(kept).map_err(|problem| StateError::Damaged {
        path: path.display().to_string(),
        why: problem.to_string(),
    })?;
    write_private(&path, &text)
}

fn write_private(path: &Path, content: &str) -> Result<(), StateError> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let write = || -> io::Result<()> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(directory)?;
        let temporary = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
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
        first.remember_port(4242).unwrap();
        let key = first.kept.attempt_key.clone();
        drop(first);
        let second = StateDir::open(&path, None).unwrap();
        assert_eq!(second.kept.cluster_id, "abcde");
        assert_eq!(second.kept.port, 4242);
        assert_eq!(second.kept.attempt_key, key);
        drop(second);
        assert!(matches!(
            StateDir::open(&path, Some("other")),
            Err(StateError::OtherCluster { .. })
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
