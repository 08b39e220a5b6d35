//! Files of a collection into a directory of this machine: never outside it, never through a link, never over what is
//! there unless that was asked for.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use arvados_client::keep::{FileReader, KeepClient};
use arvados_client::manifest::{Extent, FileTree};
use indicatif::ProgressBar;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt;

use crate::failure::Failure;

/// Writes everything below `tree`'s root into `dir`; gives the number of files.
pub async fn into_dir(
    keep: &KeepClient,
    tree: &FileTree,
    dir: &Path,
    force: bool,
    bar: &ProgressBar,
) -> Result<u64, Failure> {
    std::fs::create_dir_all(dir).map_err(|source| write_failed(dir, source))?;
    let root = File::open(dir).map_err(|source| write_failed(dir, source))?;
    let root = OwnedFd::from(root);
    if !force {
        let taken: Vec<PathBuf> = tree
            .files()
            .map(|(path, _)| dir.join(path))
            .filter(|path| path.symlink_metadata().is_ok())
            .collect();
        if !taken.is_empty() {
            return Err(Failure::WouldOverwrite(taken));
        }
    }
    for path in tree.directories() {
        open_below(&root, dir, path)?;
    }
    let mut files = 0;
    for (path, extents) in tree.files() {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", &path));
        let parent = open_below(&root, dir, parent)?;
        let target = Target {
            parent,
            name,
            shown: dir.join(&path),
        };
        target.fill(keep, extents, force, bar).await?;
        files += 1;
    }
    Ok(files)
}

/// Opens (and makes) the directory `path` below `root`, one part after the other and through no link.
fn open_below(root: &OwnedFd, shown: &Path, path: &str) -> Result<OwnedFd, Failure> {
    let mut shown = shown.to_owned();
    let failed = |shown: &Path, errno: Errno| match errno {
        Errno::LOOP | Errno::NOTDIR => Failure::InTheWay(shown.to_owned()),
        errno => write_failed(shown, errno.into()),
    };
    let mut here = root
        .try_clone()
        .map_err(|source| write_failed(&shown, source))?;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        shown.push(part);
        match rustix::fs::mkdirat(&here, part, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(&shown, errno)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        here = rustix::fs::openat(&here, part, flags, Mode::empty())
            .map_err(|errno| failed(&shown, errno))?;
    }
    Ok(here)
}

/// One file to be written.
struct Target<'a> {
    parent: OwnedFd,
    name: &'a str,
    shown: PathBuf,
}

impl Target<'_> {
    /// Under a name of its own first, so that a broken download never looks like a whole file.
    async fn fill(
        &self,
        keep: &KeepClient,
        extents: &[Extent],
        force: bool,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let temporary = format!(".dispatch-{:016x}.part", fastrand::u64(..));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(
            &self.parent,
            temporary.as_str(),
            flags,
            Mode::from_raw_mode(0o666),
        )
        .map_err(|errno| write_failed(&self.shown, errno.into()))?;
        let written = copy(keep, extents, File::from(file), &self.shown, bar).await;
        let placed = match written {
            Ok(()) => self.place(&temporary, force),
            Err(failure) => Err(failure),
        };
        if placed.is_err() {
            // It is hidden and useless; that it stays is the least of the troubles then.
            let _ = rustix::fs::unlinkat(&self.parent, temporary.as_str(), AtFlags::empty());
        }
        placed
    }

    fn place(&self, temporary: &str, force: bool) -> Result<(), Failure> {
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
            // It came into being while we were writing.
            Err(Errno::EXIST) if !force => Err(Failure::WouldOverwrite(vec![self.shown.clone()])),
            // Not every file system knows how not to replace; a hard link never does.
            Err(Errno::INVAL | Errno::NOSYS) if !force => {
                rustix::fs::linkat(parent, temporary, parent, self.name, AtFlags::empty())
                    .and_then(|()| rustix::fs::unlinkat(parent, temporary, AtFlags::empty()))
                    .map_err(|errno| write_failed(&self.shown, errno.into()))
            }
            Err(Errno::ISDIR | Errno::NOTDIR) => Err(Failure::InTheWay(self.shown.clone())),
            Err(errno) => Err(write_failed(&self.shown, errno.into())),
        }
    }
}

async fn copy(
    keep: &KeepClient,
    extents: &[Extent],
    file: File,
    shown: &Path,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    let mut file = tokio::fs::File::from_std(file);
    let mut reader = FileReader::new(keep.clone(), extents);
    while let Some(chunk) = reader.next_chunk().await? {
        file.write_all(&chunk)
            .await
            .map_err(|source| write_failed(shown, source))?;
        bar.inc(chunk.len() as u64);
    }
    file.flush()
        .await
        .map_err(|source| write_failed(shown, source))
}

fn write_failed(path: &Path, source: std::io::Error) -> Failure {
    Failure::Write {
        path: path.to_owned(),
        source,
    }
}
