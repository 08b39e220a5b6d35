//! The state directory of a dispatcher. It admits one dispatcher at a time and stores the
//! dispatcher's instance id across restarts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use host_state::file::{self, Durability};
use host_state::lock;

use crate::scheduler::submit_host::HostNeeds;

/// Uid of root's files on an NFS export with root_squash.
const NOBODY_UID: u32 = 65534;

/// The reason for which a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Another dispatcher holds the directory.
    #[error("another dispatcher uses the directory {}", .0.display())]
    InUse(PathBuf),
    /// The directory belongs to another user.
    #[error(
        "the directory {} belongs to the user with uid {owner}: run this as the user of the dispatcher",
        path.display()
    )]
    OwnedByOther {
        /// Path of the directory.
        path: PathBuf,
        /// Uid of the owner.
        owner: u32,
    },
    /// The file system returned an error.
    #[error("cannot use {}: {source}{}", path.display(), owner_hint(path, source))]
    Unusable {
        /// Path of the file or directory.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
}

/// The directory, locked for as long as this value lives.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    _lock: Option<File>,
}

impl StateDir {
    /// Name of the file with the [`Self::instance_id`].
    const INSTANCE_ID_FILE: &str = "label";

    /// Creates the directory if needed, and locks it. Root does not lock another user's directory:
    /// it would leave files that the dispatcher could not open.
    pub fn acquire(path: &Path) -> Result<Self, StateDirError> {
        let path = create_private(path)?;
        let owner = path.metadata().map_err(unusable(&path))?.uid();
        if rustix::process::geteuid().is_root() && ![0, NOBODY_UID].contains(&owner) {
            return Err(StateDirError::OwnedByOther { path, owner });
        }
        let file = path.join("dispatcher.lock");
        match lock::try_exclusive(&file).map_err(unusable(&file))? {
            Some(_lock) => Ok(Self {
                path,
                _lock: Some(_lock),
            }),
            None => Err(StateDirError::InUse(path)),
        }
    }

    /// Opens the directory without the lock, while a dispatcher may hold it. Only the owner may,
    /// because other users cannot read the files.
    pub fn open_shared(path: &Path) -> Result<Self, StateDirError> {
        let path = path.canonicalize().map_err(unusable(path))?;
        let owner = path.metadata().map_err(unusable(&path))?.uid();
        match owner == rustix::process::geteuid().as_raw() {
            true => Ok(Self { path, _lock: None }),
            false => Err(StateDirError::OwnedByOther { path, owner }),
        }
    }

    /// Path of the directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory `given`, or `name` in this directory. Created if needed.
    pub fn directory(&self, given: Option<PathBuf>, name: &str) -> Result<PathBuf, StateDirError> {
        create_private(&given.unwrap_or_else(|| self.path.join(name)))
    }

    /// The stored [`Self::instance_id`], if a dispatcher ever used the directory.
    fn stored_instance_id(&self) -> Option<String> {
        let label = fs::read_to_string(self.path.join(Self::INSTANCE_ID_FILE)).ok();
        label.filter(|text| text.len() >= 16)
    }

    /// Name of a directory for trials. A subcommand must not disturb the dispatcher's.
    pub(crate) fn trial_name(&self) -> String {
        match self._lock {
            Some(_) => ".trial".to_owned(),
            None => format!(".trial.{}", std::process::id()),
        }
    }

    /// What a host needs that submits with `program` and has its job directories here. With
    /// `version` as its argument, the program does nothing.
    pub fn host_needs(&self, program: impl Into<OsString>, version: &'static str) -> HostNeeds {
        let identity = self.stored_instance_id();
        HostNeeds {
            directories: vec![self.path.clone()],
            trial: self.trial_name(),
            identity: identity.map(|id| (self.path.join(Self::INSTANCE_ID_FILE), id)),
            command: (program.into(), version),
        }
    }

    /// The stored [`Self::instance_id`], or a placeholder that no dispatcher has. For commands that
    /// only read.
    pub fn instance_id_or_placeholder(&self) -> String {
        self.stored_instance_id()
            .unwrap_or_else(|| "LABEL".to_owned())
    }

    /// The id that marks attempt tokens as this dispatcher's. It belongs to the directory and
    /// outlives the process. Created if needed.
    pub fn instance_id(&self) -> Result<String, StateDirError> {
        if let Some(label) = self.stored_instance_id() {
            return Ok(label);
        }
        let file = self.path.join(Self::INSTANCE_ID_FILE);
        let label = format!("{:016x}", fastrand::u64(..));
        file::replace(&file, label.as_bytes(), Durability::Power).map_err(unusable(&file))?;
        Ok(label)
    }
}

fn create_private(path: &Path) -> Result<PathBuf, StateDirError> {
    file::create_private_dir(path).map_err(unusable(path))?;
    path.canonicalize().map_err(unusable(path))
}

/// A hint for a file that may not be opened: its owner. Often the program was started by hand as
/// another user.
fn owner_hint(path: &Path, error: &io::Error) -> String {
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    let owner = path.metadata().ok().map(|of| of.uid());
    let other = owner.filter(|owner| *owner != rustix::process::geteuid().as_raw());
    match other.filter(|_| denied) {
        Some(owner) => format!(
            "; it belongs to the user with uid {owner}, as after a start as that user: give it to the dispatcher's (chown)"
        ),
        None => String::new(),
    }
}

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> StateDirError {
    let path = path.to_owned();
    move |source| StateDirError::Unusable { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dispatcher_at_a_time_and_the_label_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = StateDir::acquire(&path).unwrap();
        let visitor = StateDir::open_shared(&path).unwrap();
        assert_eq!(visitor.stored_instance_id(), None);
        let label = first.instance_id().unwrap();
        assert_eq!(visitor.stored_instance_id().as_ref(), Some(&label));
        assert!(matches!(
            StateDir::acquire(&path),
            Err(StateDirError::InUse(_))
        ));
        drop(first);
        // A child process of another test holds a copy of the lock until its `exec`.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let second = loop {
            match StateDir::acquire(&path) {
                Err(StateDirError::InUse(_)) if std::time::Instant::now() < until => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                taken => break taken.unwrap(),
            }
        };
        assert_eq!(second.instance_id().unwrap(), label);
    }

    #[test]
    fn root_leaves_nothing_in_another_users_directory() {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "this test needs root");
            eprintln!("SKIPPED: this test needs root, to give a directory to another user");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(4711), None).unwrap();
        let error = StateDir::acquire(dir.path()).unwrap_err();
        assert!(matches!(
            error,
            StateDirError::OwnedByOther { owner: 4711, .. }
        ));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn whose_a_file_is_that_may_not_be_opened_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("label");
        fs::write(&file, "").unwrap();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(owner_hint(&file, &denied()), "");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(4711), None).unwrap();
            let message = unusable(&file)(denied()).to_string();
            assert!(
                message.contains("label") && message.contains("uid 4711"),
                "{message}"
            );
            assert_eq!(owner_hint(&file, &io::ErrorKind::NotFound.into()), "");
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = StateDir::acquire(&file).unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
    }
}
