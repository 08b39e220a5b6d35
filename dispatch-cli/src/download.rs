//! Downloads files of a collection into a directory: never outside it, never through a symbolic
//! link, and over existing files only with `force`.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Extent, FileTree};
use indicatif::ProgressBar;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt;

use crate::error::CliError;

/// Writes all files of `tree` into `dir`. Returns the number of files.
pub async fn into_dir(
    keep: &KeepClient,
    tree: &FileTree,
    dir: &Path,
    force: bool,
    bar: &ProgressBar,
) -> Result<u64, CliError> {
    std::fs::create_dir_all(dir).map_err(|source| write_failed(dir, source))?;
    let root = File::open(dir).map_err(|source| write_failed(dir, source))?;
    let root = OwnedFd::from(root);
    if !force {
        let existing: Vec<PathBuf> = tree
            .files()
            .map(|(path, _)| dir.join(path))
            .filter(|path| path.symlink_metadata().is_ok())
            .collect();
        if !existing.is_empty() {
            return Err(CliError::WouldOverwrite(existing));
        }
    }
    for path in tree.directories() {
        open_below(&root, dir, path)?;
    }
    let mut files = 0;
    for (path, extents) in tree.files() {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let parent = open_below(&root, dir, parent)?;
        let target = OutputFile {
            parent,
            name,
            display_path: dir.join(&path),
        };
        target.write(keep, extents, force, bar).await?;
        files += 1;
    }
    Ok(files)
}

/// Opens or creates the directory `path` below `root`, part by part, and follows no symbolic link.
fn open_below(root: &OwnedFd, display_path: &Path, path: &str) -> Result<OwnedFd, CliError> {
    let mut display_path = display_path.to_owned();
    let failed = |display_path: &Path, errno: Errno| match errno {
        Errno::LOOP | Errno::NOTDIR => CliError::InTheWay(display_path.to_owned()),
        errno => write_failed(display_path, errno.into()),
    };
    let mut here = root
        .try_clone()
        .map_err(|source| write_failed(&display_path, source))?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        display_path.push(part);
        match rustix::fs::mkdirat(&here, part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(&display_path, errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        here = rustix::fs::openat(&here, part, flags, Mode::empty())
            .map_err(|errno| failed(&display_path, errno))?;
    }
    Ok(here)
}

/// A file to be written.
struct OutputFile<'a> {
    parent: OwnedFd,
    name: &'a str,
    display_path: PathBuf,
}

impl OutputFile<'_> {
    /// Writes to a temporary name first, so that an interrupted download never looks like a
    /// complete file.
    async fn write(
        &self,
        keep: &KeepClient,
        extents: &[Extent],
        force: bool,
        bar: &ProgressBar,
    ) -> Result<(), CliError> {
        let temporary = format!(".dispatch-{:016x}.part", fastrand::u64(..));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(
            &self.parent,
            temporary.as_str(),
            flags,
            Mode::from_raw_mode(0o666),
        )
        .map_err(|errno| write_failed(&self.display_path, errno.into()))?;
        let written = copy(keep, extents, File::from(file), &self.display_path, bar).await;
        let renamed = match written {
            Ok(()) => self.rename_into_place(&temporary, force),
            Err(failure) => Err(failure),
        };
        if renamed.is_err() {
            // A temporary file that stays is hidden and harmless; the download error matters more.
            let _ = rustix::fs::unlinkat(&self.parent, temporary.as_str(), AtFlags::empty());
        }
        renamed
    }

    fn rename_into_place(&self, temporary: &str, force: bool) -> Result<(), CliError> {
        let parent = self.parent.as_fd();
        let renamed = match force {
            true => rustix::fs::renameat(parent, temporary, parent, self.name),
            false => {
                let flags = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(parent, temporary, parent, self.name, flags)
            }
        };
        match renamed {
            Ok(()) => Ok(()),
            // The file was created during the download.
            Err(Errno::EXIST) if !force => {
                Err(CliError::WouldOverwrite(vec![self.display_path.clone()]))
            }
            // Not every file system supports NOREPLACE; a hard link never replaces a file.
            Err(Errno::INVAL | Errno::NOSYS) if !force => {
                rustix::fs::linkat(parent, temporary, parent, self.name, AtFlags::empty())
                    .and_then(|()| rustix::fs::unlinkat(parent, temporary, AtFlags::empty()))
                    .map_err(|errno| write_failed(&self.display_path, errno.into()))
            }
            Err(Errno::ISDIR | Errno::NOTDIR) => Err(CliError::InTheWay(self.display_path.clone())),
            Err(errno) => Err(write_failed(&self.display_path, errno.into())),
        }
    }
}

async fn copy(
    keep: &KeepClient,
    extents: &[Extent],
    file: File,
    display_path: &Path,
    bar: &ProgressBar,
) -> Result<(), CliError> {
    let mut file = tokio::fs::File::from_std(file);
    let mut reader = FileReader::new(keep.clone(), extents);
    while let Some(chunk) = reader.next_chunk().await? {
        file.write_all(&chunk)
            .await
            .map_err(|source| write_failed(display_path, source))?;
        bar.inc(chunk.len() as u64);
    }
    file.flush()
        .await
        .map_err(|source| write_failed(display_path, source))
}

fn write_failed(path: &Path, source: std::io::Error) -> CliError {
    CliError::Write {
        path: path.to_owned(),
        source,
    }
}
