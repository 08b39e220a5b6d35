//! Downloads files of a collection into a directory: never outside it, never through a symbolic
//! link, and over existing files only with `force`.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arvados_client::keep::{BlockLru, BlockSource, FileReader};
use arvados_client::manifest::{Extent, FileTree};
use indicatif::ProgressBar;
use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use tokio::io::AsyncWriteExt;

use crate::error::CliError;

/// Number of blocks in memory: files that share a block are written one after the other.
const BLOCKS_IN_MEMORY: usize = 2;

/// Writes all files of `tree` into `dir`, in the order of their blocks. Returns the number of
/// files.
pub async fn into_dir<S: BlockSource + 'static>(
    source: S,
    tree: &FileTree,
    dir: &Path,
    force: bool,
    bar: &ProgressBar,
) -> Result<u64, CliError> {
    std::fs::create_dir_all(dir).map_err(CliError::write(dir))?;
    let root = OwnedFd::from(File::open(dir).map_err(CliError::write(dir))?);
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
    let blocks = Arc::new(BlockLru::new(source, BLOCKS_IN_MEMORY));
    let mut files: Vec<_> = tree.files().collect();
    files.sort_by_key(|(_, extents)| {
        let first = extents.first();
        first.map(|extent| (extent.locator.hash, extent.offset))
    });
    for (path, extents) in &files {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        let parent = open_below(&root, dir, parent)?;
        let target = OutputFile {
            parent,
            name,
            display_path: dir.join(path),
        };
        target.write(&blocks, extents, force, bar).await?;
    }
    Ok(files.len() as u64)
}

/// Opens or creates the directory `path` below `root`, part by part, and follows no symbolic link.
fn open_below(root: &OwnedFd, display_path: &Path, path: &str) -> Result<OwnedFd, CliError> {
    let mut display_path = display_path.to_owned();
    let failed = |display_path: &Path, errno: Errno| match errno {
        Errno::LOOP | Errno::NOTDIR => CliError::InTheWay(display_path.to_owned()),
        errno => CliError::write(display_path)(errno.into()),
    };
    let mut here = root.try_clone().map_err(CliError::write(&display_path))?;
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
    async fn write<S: BlockSource + 'static>(
        &self,
        blocks: &Arc<BlockLru<S>>,
        extents: &[Extent],
        force: bool,
        bar: &ProgressBar,
    ) -> Result<(), CliError> {
        let temporary = format!(".dispatch-{:016x}.part", fastrand::u64(..));
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o666);
        let file = rustix::fs::openat(&self.parent, temporary.as_str(), flags, mode)
            .map_err(|errno| self.write_failed(errno))?;
        let written = copy(blocks, extents, File::from(file), &self.display_path, bar).await;
        let renamed = written.and_then(|()| self.rename_into_place(&temporary, force));
        if renamed.is_err() {
            // A temporary file that stays is hidden and harmless; the download error matters more.
            let _ = rustix::fs::unlinkat(&self.parent, temporary.as_str(), AtFlags::empty());
        }
        renamed
    }

    fn rename_into_place(&self, temporary: &str, force: bool) -> Result<(), CliError> {
        let parent = self.parent.as_fd();
        let renamed = if force {
            rustix::fs::renameat(parent, temporary, parent, self.name)
        } else {
            let flags = RenameFlags::NOREPLACE;
            rustix::fs::renameat_with(parent, temporary, parent, self.name, flags)
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
                    .map_err(|errno| self.write_failed(errno))
            }
            Err(Errno::ISDIR | Errno::NOTDIR) => Err(CliError::InTheWay(self.display_path.clone())),
            Err(errno) => Err(self.write_failed(errno)),
        }
    }

    fn write_failed(&self, errno: Errno) -> CliError {
        CliError::write(&self.display_path)(errno.into())
    }
}

async fn copy<S: BlockSource + 'static>(
    blocks: &Arc<BlockLru<S>>,
    extents: &[Extent],
    file: File,
    display_path: &Path,
    bar: &ProgressBar,
) -> Result<(), CliError> {
    let failed = CliError::write(display_path);
    let mut file = tokio::fs::File::from_std(file);
    let mut reader = FileReader::new(blocks.clone(), extents);
    while let Some(chunk) = reader.next_chunk().await? {
        file.write_all(&chunk).await.map_err(&failed)?;
        bar.inc(chunk.len() as u64);
    }
    file.flush().await.map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use arvados_client::keep::{BlockStore, KeepError, Locator, MemoryStore};
    use arvados_client::manifest::Manifest;
    use bytes::Bytes;

    use super::*;

    /// A store that counts what it is asked for.
    #[derive(Debug, Default)]
    struct Counting {
        store: MemoryStore,
        asked: AtomicUsize,
    }

    impl BlockSource for Counting {
        async fn get(&self, locator: &Locator) -> Result<Bytes, KeepError> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            self.store.get(locator).await
        }
    }

    #[tokio::test]
    async fn files_that_share_a_block_cost_one_request() {
        let source = Arc::new(Counting::default());
        let mut manifest = ".".to_owned();
        for block in 0..4 {
            let content = format!("block {block}").repeat(100);
            let locator = source.store.put(content.into()).await.unwrap();
            manifest.push_str(&format!(" {locator}"));
        }
        // Names and blocks have different orders.
        for file in 0..400 {
            let (block, at) = (file % 4, file / 4);
            manifest.push_str(&format!(" {}:7:{file:03}", block * 700 + at * 7));
        }
        let tree = Manifest::parse(&format!("{manifest}\n")).unwrap().tree();
        let dir = tempfile::tempdir().unwrap();
        let bar = ProgressBar::hidden();
        let written = into_dir(source.clone(), &tree, dir.path(), false, &bar);
        assert_eq!(written.await.unwrap(), 400);
        for file in 0..400 {
            let read = std::fs::read_to_string(dir.path().join(format!("{file:03}")));
            assert_eq!(read.unwrap(), format!("block {}", file % 4), "{file}");
        }
        assert_eq!(source.asked.load(Ordering::Relaxed), 4);
    }
}
