//! The files of a state directory and of a backup, and their copies.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use host_state::file::{self, Durability};
use host_state::lock;
use serde::{Deserialize, Serialize};

use super::error::{BackupError, Result};
use crate::blocks::if_present;
use crate::http::authority;
use crate::state_dir::{self, ServerIdentity, StateError};

/// What makes a directory a backup.
pub use crate::state_dir::{BACKUP_FILE, RESTORE_FILE};

const DATABASE: &str = "state.db";
const IDENTITY: &str = "server.json";
const TOKENS: &str = "tokens";

/// Files from before [`BACKUP_FILE`] or [`RESTORE_FILE`] is there.
const FIRST_FILES: [&str; 3] = ["lock", "backup.new", "unfinished-restore.new"];

/// The content of `backup.json`.
#[derive(Debug, Serialize, Deserialize)]
pub struct BackupNote {
    pub cluster_id: String,
    /// When the last backup ended; `None` before the first end.
    pub finished_at: Option<String>,
}

/// A state directory or a backup.
pub struct Files {
    pub dir: PathBuf,
}

impl Files {
    /// A directory that is there.
    pub fn open(dir: &Path) -> Result<Self> {
        let dir = dir.canonicalize().map_err(BackupError::io(dir))?;
        Ok(Self { dir })
    }

    /// Creates the directory if it is missing.
    pub fn create(dir: &Path) -> Result<Self> {
        file::create_private_dir(dir).map_err(BackupError::io(dir))?;
        Self::open(dir)
    }

    /// Takes every right from other users.
    pub fn make_private(&self) -> Result<()> {
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&self.dir, mode).map_err(BackupError::io(&self.dir))
    }

    pub fn database(&self) -> PathBuf {
        self.dir.join(DATABASE)
    }

    pub fn blocks(&self) -> PathBuf {
        self.dir.join("blocks")
    }

    /// Locks the directory against servers, backups and restores. One on a medium that cannot be
    /// written needs no lock.
    pub fn lock(&self) -> Result<Option<File>> {
        let path = self.dir.join("lock");
        match lock::try_exclusive(&path) {
            Ok(Some(lock)) => Ok(Some(lock)),
            Ok(None) => Err(BackupError::InUse(self.dir.clone())),
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(None),
            Err(error) => Err(BackupError::io(&path)(error)),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.dir.join(name).exists()
    }

    /// Whether there is nothing but perhaps what a killed backup or restore began with.
    pub fn is_empty(&self) -> Result<bool> {
        let entries = fs::read_dir(&self.dir).map_err(BackupError::io(&self.dir))?;
        for entry in entries {
            let entry = entry.map_err(BackupError::io(&self.dir))?;
            let name = entry.file_name();
            if !FIRST_FILES.iter().any(|first| name == *first) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The identity of the server. Fails unless the database is there, too, and whole.
    pub fn identity(&self) -> Result<ServerIdentity> {
        if self.has(RESTORE_FILE) {
            let path = self.dir.display().to_string();
            return Err(StateError::UnfinishedRestore(path).into());
        }
        for file in [IDENTITY, DATABASE] {
            if !self.has(file) {
                let path = self.dir.clone();
                return Err(BackupError::NoState { path, file });
            }
        }
        self.read_identity()
    }

    /// Whether the private files here, if there are any, are those of this server.
    pub fn belongs_to(&self, server: &ServerIdentity) -> Result<bool> {
        if !self.has(IDENTITY) {
            return Ok(true);
        }
        let found = self.read_identity()?;
        Ok(found.cluster_id == server.cluster_id
            && found.blob_signing_key == server.blob_signing_key
            && found.attempt_key == server.attempt_key)
    }

    fn read_identity(&self) -> Result<ServerIdentity> {
        Ok(state_dir::read_identity(&self.dir.join(IDENTITY))?)
    }

    pub fn write_note(&self, note: &BackupNote) -> Result<()> {
        let text = serde_json::to_string_pretty(note).unwrap_or_default();
        self.write(BACKUP_FILE, text.as_bytes())
    }

    /// Replaces a file with one that only its owner can read.
    pub fn write(&self, name: &str, content: &[u8]) -> Result<()> {
        let path = self.dir.join(name);
        file::replace(&path, content, Durability::Power).map_err(BackupError::io(&path))
    }

    /// Copies the keys, certificates and tokens of the server from `from`.
    pub fn copy_private_files(&self, from: &Files) -> Result<()> {
        let tokens = self.dir.join(TOKENS);
        file::create_private_dir(&tokens).map_err(BackupError::io(&tokens))?;
        let names = [IDENTITY].iter().chain(authority::FILES);
        let mut names: Vec<String> = names.map(|name| (*name).to_owned()).collect();
        let from_tokens = from.dir.join(TOKENS);
        // Without any, a server makes them anew from its database.
        let entries = if_present(fs::read_dir(&from_tokens));
        let entries = entries.map_err(BackupError::io(&from_tokens))?;
        for entry in entries.into_iter().flatten() {
            let entry = entry.map_err(BackupError::io(&from_tokens))?;
            if entry.path().is_file() {
                names.push(format!("{TOKENS}/{}", entry.file_name().to_string_lossy()));
            }
        }
        for name in names {
            let path = from.dir.join(&name);
            // A server with --tls-cert has no certificates of its own.
            if let Some(content) = if_present(fs::read(&path)).map_err(BackupError::io(&path))? {
                self.write(&name, &content)?;
            }
        }
        sync_dir(&tokens)?;
        self.sync()
    }

    /// Makes renames and removals in this directory survive a power failure.
    pub fn sync(&self) -> Result<()> {
        sync_dir(&self.dir)
    }

    /// Makes all that was written to this file system survive a power failure: also what a killed
    /// backup or restore wrote, and the directories that were created above.
    pub fn sync_all(&self) -> Result<()> {
        let synced = File::open(&self.dir).and_then(|dir| Ok(rustix::fs::syncfs(&dir)?));
        synced.map_err(BackupError::io(&self.dir))
    }
}

fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|dir| dir.sync_all())
        .map_err(BackupError::io(dir))
}
