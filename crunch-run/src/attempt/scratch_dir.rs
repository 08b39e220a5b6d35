//! The scratch directory of one attempt: inputs, the container's own files and its output.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use host_state::file::create_private_dir;
use host_state::trash;

use super::settings::Settings;
use crate::node::job_dir::JobDir;

/// The scratch directory, discarded with the attempt.
#[derive(Debug)]
pub struct ScratchDir {
    path: PathBuf,
}

impl ScratchDir {
    /// Creates the directory. What earlier attempts at this container left is discarded; none of
    /// them runs any more.
    pub fn create(settings: &Settings, dir: &JobDir) -> io::Result<Self> {
        let Some(parent) = &settings.node.scratch_dir else {
            let path = dir.scratch();
            trash::discard(&path)?;
            create_private_dir(&path)?;
            return Ok(Self { path });
        };
        create_private_dir(parent)?;
        let parent = parent.canonicalize()?;
        let prefix = format!("crunch-run.{}.", settings.uuid);
        for entry in fs::read_dir(&parent)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                trash::discard(&entry.path())?;
            }
        }
        let path = parent.join(format!("{prefix}{:08x}", fastrand::u32(..)));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the directory into the trash.
    pub fn discard(&self) -> io::Result<()> {
        trash::discard(&self.path)
    }
}
