//! A dispatcher's own directory: one dispatcher at a time, and a name that outlives it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

/// Whose root's files are where a file server takes root for nobody.
const NOBODY: u32 = 65534;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// Another dispatcher.
    #[error("another dispatcher uses the directory {}", .0.display())]
    Taken(PathBuf),
    /// Another user's.
    #[error(
        "the directory {} belongs to the user with uid {owner}: run this as the user of the dispatcher",
        path.display()
    )]
    NotYours {
        /// Which.
        path: PathBuf,
        /// Whose.
        owner: u32,
    },
    /// The file system.
    #[error("cannot use {}: {source}{}", path.display(), whose(path, source))]
    Unusable {
        /// Which file or directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// The directory, held for as long as this value lives.
#[derive(Debug)]
pub struct Home {
    path: PathBuf,
    _lock: Option<File>,
}

impl Home {
    /// Makes it if need be, and takes it. Root does not take another user's: it would leave files there that the
    /// dispatcher then could not open.
    pub fn take(path: &Path) -> Result<Self, HomeError> {
        let path = make(path)?;
        let owner = path.metadata().map_err(unusable(&path))?.uid();
        if rustix::process::geteuid().is_root() && ![0, NOBODY].contains(&owner) {
            return Err(HomeError::NotYours { path, owner });
        }
        let file = path.join("dispatcher.lock");
        let lock = private().open(&file).map_err(unusable(&file))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self {
                path,
                _lock: Some(lock),
            }),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(HomeError::Taken(path)),
            Err(error) => Err(unusable(&path)(error.into())),
        }
    }

    /// To look at, while a dispatcher may use it: as the user whose it is, for to others it says nothing.
    pub fn visit(path: &Path) -> Result<Self, HomeError> {
        let path = path.canonicalize().map_err(unusable(path))?;
        let owner = path.metadata().map_err(unusable(&path))?.uid();
        match owner == rustix::process::geteuid().as_raw() {
            true => Ok(Self { path, _lock: None }),
            false => Err(HomeError::NotYours { path, owner }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `given`, or else `name` in this directory; made if need be.
    pub fn directory(&self, given: Option<PathBuf>, name: &str) -> Result<PathBuf, HomeError> {
        make(&given.unwrap_or_else(|| self.path.join(name)))
    }

    /// [`Self::label`], if a dispatcher was ever here.
    fn known_label(&self) -> Option<String> {
        let label = fs::read_to_string(self.path.join("label")).ok();
        label.filter(|text| text.len() >= 16)
    }

    /// [`Self::label`] for who only looks: before a dispatcher was ever here, a word that is no dispatcher's.
    pub fn shown_label(&self) -> String {
        self.known_label().unwrap_or_else(|| "LABEL".to_owned())
    }

    /// The name by which attempt tokens are known as this dispatcher's: of this directory, not of this process.
    pub fn label(&self) -> Result<String, HomeError> {
        if let Some(label) = self.known_label() {
            return Ok(label);
        }
        let file = self.path.join("label");
        let label = format!("{:016x}", fastrand::u64(..));
        let fresh = self.path.join("label.new");
        let write = || -> io::Result<()> {
            let mut new = private().truncate(true).open(&fresh)?;
            new.write_all(label.as_bytes())?;
            new.sync_all()?;
            fs::rename(&fresh, &file)
        };
        write().map_err(unusable(&fresh))?;
        Ok(label)
    }
}

fn make(path: &Path) -> Result<PathBuf, HomeError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(unusable(path))?;
    path.canonicalize().map_err(unusable(path))
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).mode(0o600);
    options
}

/// Whose a file is that may not be opened: often one of a start as another user, by hand.
fn whose(path: &Path, error: &io::Error) -> String {
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

fn unusable(path: &Path) -> impl FnOnce(io::Error) -> HomeError {
    let path = path.to_owned();
    move |source| HomeError::Unusable { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_dispatcher_at_a_time_and_the_label_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let first = Home::take(&path).unwrap();
        let visitor = Home::visit(&path).unwrap();
        assert_eq!(visitor.known_label(), None);
        let label = first.label().unwrap();
        assert_eq!(visitor.known_label().as_ref(), Some(&label));
        assert!(matches!(Home::take(&path), Err(HomeError::Taken(_))));
        drop(first);
        // What another test starts has a copy of the lock, until it runs.
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let second = loop {
            match Home::take(&path) {
                Err(HomeError::Taken(_)) if std::time::Instant::now() < until => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                taken => break taken.unwrap(),
            }
        };
        assert_eq!(second.label().unwrap(), label);
    }

    #[test]
    fn root_leaves_nothing_in_another_users_directory() {
        if !rustix::process::geteuid().is_root() {
            // Nobody else can make a directory another's.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(dir.path(), Some(4711), None).unwrap();
        let error = Home::take(dir.path()).unwrap_err();
        assert!(matches!(error, HomeError::NotYours { owner: 4711, .. }));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn whose_a_file_is_that_may_not_be_opened_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("label");
        fs::write(&file, "").unwrap();
        let denied = || io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(whose(&file, &denied()), "");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(4711), None).unwrap();
            let told = unusable(&file)(denied()).to_string();
            assert!(
                told.contains("label") && told.contains("uid 4711"),
                "{told}"
            );
            assert_eq!(whose(&file, &io::ErrorKind::NotFound.into()), "");
        }
    }

    #[test]
    fn a_place_that_cannot_be_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Home::take(&file).unwrap_err().to_string();
        assert!(error.contains("file"), "{error}");
    }
}
