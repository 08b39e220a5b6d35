//! Why a backup, a restore or a check could not be made. What one finds damaged is no error: it is
//! in the report.

use std::io;
use std::path::{Path, PathBuf};

use crate::db::MigrateError;
use crate::error::ApiError;
use crate::state_dir::StateError;

#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(
        "{path} has no {file}, so it is no state directory of dispatch-api; that of `dispatch up` \
         is the directory `api` in its own"
    )]
    NoState { path: PathBuf, file: &'static str },
    #[error("{0} is neither empty nor a backup; name a backup, or a new directory")]
    NoBackup(PathBuf),
    #[error(
        "{0} is the backup of another server, which has other keys; name that of this server, or a \
         new directory"
    )]
    OtherServer(PathBuf),
    #[error("{0} is a backup; copy it as files, or name the state directory of the server")]
    IsBackup(PathBuf),
    #[error("{0} has no finished backup")]
    Unfinished(PathBuf),
    #[error("{0} is not empty; restore into a new directory, and keep this one until you are sure")]
    NotEmpty(PathBuf),
    #[error("a server, a backup or a restore uses {0}; stop it, or wait for its end")]
    InUse(PathBuf),
    #[error("{inner} is in {outer}; a backup in the state directory would be lost with it")]
    Inside { inner: PathBuf, outer: PathBuf },
    #[error(
        "blocks were deleted faster than they could be copied; run it again, and no \
         `dispatch gc --delete` meanwhile. The backup before this one is unchanged"
    )]
    BlocksVanish,
    #[error("the disk of {0} is full; what was whole there before still is")]
    DiskFull(PathBuf),
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "the database {path} is damaged: {problem}. Nothing was changed; \
         `dispatch-api fsck` lists all that is wrong"
    )]
    Damaged { path: PathBuf, problem: String },
    #[error("cannot read the database {path}: {source}")]
    Database {
        path: PathBuf,
        source: rusqlite::Error,
    },
    #[error(transparent)]
    Layout(MigrateError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error(transparent)]
    Blocks(ApiError),
}

pub type Result<T> = std::result::Result<T, BackupError>;

impl BackupError {
    /// For `map_err`.
    pub fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(path),
            _ => Self::Io { path, source },
        }
    }

    /// For `map_err`.
    pub fn database(path: &Path) -> impl FnOnce(rusqlite::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Database { path, source }
    }

    /// For `map_err`: of writes to the store at `path`.
    pub fn blocks(path: &Path) -> impl FnOnce(ApiError) -> Self {
        let path = path.to_owned();
        move |error| match error {
            ApiError::DiskFull => Self::DiskFull(path),
            other => Self::Blocks(other),
        }
    }

    /// Whether a person must correct the command line (exit status 78).
    pub fn is_usage(&self) -> bool {
        matches!(
            self,
            Self::NoState { .. }
                | Self::NoBackup(_)
                | Self::IsBackup(_)
                | Self::OtherServer(_)
                | Self::Unfinished(_)
                | Self::NotEmpty(_)
                | Self::State(_)
                | Self::Inside { .. }
                | Self::Layout(_)
        )
    }
}
