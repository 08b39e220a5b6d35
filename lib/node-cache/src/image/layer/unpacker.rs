//! Builds a layer's tree from its entries. `free_space.rs` stops an image that would fill the disk.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};

use image_archive::layer::{EntryKind, LayerEntry, LayerStream, refusal};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;

use super::super::ImageError;
use super::attributes::{is_root, mode, owner, times};
use super::dir_ops::{DIRECTORY, clear, copy_runs, make_directory, node, set_opaque, whiteout};
use super::error::EntryError;
use super::free_space::FreeSpaceGuard;

/// Everything is done relative to open directories and without following links, so that no entry
/// can reach outside of the layer.
pub struct Unpacker {
    path: PathBuf,
    root: OwnedFd,
    /// The directory of the entry before, which is most often that of the next one too.
    recent: Option<(PathBuf, OwnedFd)>,
    /// Times of directories change while they are filled, so they are set at the end.
    times: BTreeMap<PathBuf, Timestamps>,
    free_space: FreeSpaceGuard,
}

impl Unpacker {
    pub fn new(path: &Path) -> Result<Self, ImageError> {
        let cache = |error: io::Error| ImageError::Cache {
            path: path.to_owned(),
            source: error,
        };
        fs::create_dir(path).map_err(cache)?;
        let root = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|e| cache(e.into()))?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755)).map_err(|e| cache(e.into()))?;
        Ok(Self {
            path: path.to_owned(),
            root,
            recent: None,
            times: BTreeMap::new(),
            free_space: FreeSpaceGuard::new(),
        })
    }

    pub fn run(mut self, layer: &mut LayerStream<'_>) -> Result<(), ImageError> {
        while let Some(entry) = layer.next_entry()? {
            if let Err(error) = self.entry(&entry, layer) {
                return Err(error.for_entry(layer, self.path.join(&entry.path)));
            }
        }
        for (path, times) in std::mem::take(&mut self.times) {
            let set = self.directory(&path, false).and_then(|dir| {
                rustix::fs::futimens(&dir, &times)?;
                Ok(())
            });
            if let Err(error) = set {
                return Err(error.for_entry(layer, self.path.join(&path)));
            }
        }
        Ok(())
    }

    fn entry(&mut self, entry: &LayerEntry, layer: &mut LayerStream<'_>) -> Result<(), EntryError> {
        let size = match &entry.kind {
            EntryKind::Ignored => return Ok(()),
            EntryKind::File { size, .. } => *size,
            _ => 0,
        };
        self.free_space.take(&self.root, size)?;
        let is_dir = matches!(entry.kind, EntryKind::Directory);
        let Some(name) = entry.path.file_name() else {
            // Of what may be called "./", only a directory is not ignored: the root itself.
            let root = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
            self.finish(&root, entry)?;
            self.times.insert(PathBuf::new(), times(entry));
            return Ok(());
        };
        if !is_dir {
            // It may take the place of that directory.
            self.times.remove(&entry.path);
            if self
                .recent
                .as_ref()
                .is_some_and(|(recent, _)| recent.starts_with(&entry.path))
            {
                self.recent = None;
            }
        }
        let parent = self.directory(entry.path.parent().unwrap_or(Path::new("")), true)?;
        match &entry.kind {
            EntryKind::Ignored => {}
            EntryKind::Opaque => set_opaque(&parent)?,
            EntryKind::Whiteout(hidden) => whiteout(&parent, hidden)?,
            EntryKind::Directory => {
                let replaced = make_directory(&parent, name)?;
                let dir = rustix::fs::openat(&parent, name, DIRECTORY, Mode::empty())?;
                if replaced {
                    set_opaque(&dir)?;
                }
                self.finish(&dir, entry)?;
                self.times.insert(entry.path.clone(), times(entry));
            }
            EntryKind::Symlink(target) => {
                clear(&parent, name)?;
                rustix::fs::symlinkat(target, &parent, name)?;
                self.finish_node(&parent, name, entry, None)?;
            }
            EntryKind::HardLink(target) => self.hard_link(target, &parent, name)?,
            // Device nodes of images are never used, and an ordinary user can make none.
            EntryKind::CharDevice(..) | EntryKind::BlockDevice(..) if !is_root() => {
                clear(&parent, name)?;
            }
            EntryKind::CharDevice(major, minor) => {
                self.node(&parent, entry, FileType::CharacterDevice, (*major, *minor))?;
            }
            EntryKind::BlockDevice(major, minor) => {
                self.node(&parent, entry, FileType::BlockDevice, (*major, *minor))?;
            }
            EntryKind::Fifo => self.node(&parent, entry, FileType::Fifo, (0, 0))?,
            EntryKind::File { size, runs } => {
                clear(&parent, name)?;
                let file = File::from(rustix::fs::openat(
                    &parent,
                    name,
                    OFlags::CREATE
                        | OFlags::EXCL
                        | OFlags::WRONLY
                        | OFlags::NOFOLLOW
                        | OFlags::CLOEXEC,
                    Mode::from_raw_mode(0o600),
                )?);
                copy_runs(layer, &file, *size, runs)?;
                let fd = OwnedFd::from(file);
                self.finish(&fd, entry)?;
                rustix::fs::futimens(&fd, &times(entry))?;
            }
        }
        Ok(())
    }

    fn node(
        &self,
        parent: &OwnedFd,
        entry: &LayerEntry,
        kind: FileType,
        (major, minor): (u32, u32),
    ) -> Result<(), EntryError> {
        let name = entry.path.file_name().unwrap_or_default();
        clear(parent, name)?;
        node(parent, name, kind, rustix::fs::makedev(major, minor))?;
        self.finish_node(parent, name, entry, Some(mode(entry)))
    }

    fn hard_link(
        &mut self,
        target: &Path,
        parent: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), EntryError> {
        let missing = || EntryError::Refused(refusal::link_target_missing(target));
        let target_name = target.file_name().ok_or_else(missing)?;
        let target_dir = self
            .directory(target.parent().unwrap_or(Path::new("")), false)
            .map_err(|problem| match problem {
                EntryError::Os(Errno::NOENT) => missing(),
                other => other,
            })?;
        let not_found = |error| match error {
            Errno::NOENT => missing(),
            other => other.into(),
        };
        let stat = rustix::fs::statat(&target_dir, target_name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(not_found)?;
        if FileType::from_raw_mode(stat.st_mode).is_dir() {
            return Err(EntryError::Refused(refusal::link_to_directory(target)));
        }
        clear(parent, name)?;
        rustix::fs::linkat(&target_dir, target_name, parent, name, AtFlags::empty())
            .map_err(not_found)
    }

    /// Opens a directory of the layer, one component after the other, following no link.
    fn directory(&mut self, path: &Path, create: bool) -> Result<OwnedFd, EntryError> {
        if let Some((recent, dir)) = &self.recent
            && recent == path
        {
            return Ok(rustix::io::fcntl_dupfd_cloexec(dir, 0)?);
        }
        let mut dir = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
        for part in path.components() {
            let Component::Normal(part) = part else {
                continue;
            };
            dir = match rustix::fs::openat(&dir, part, DIRECTORY, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT) if create => {
                    rustix::fs::mkdirat(&dir, part, Mode::from_raw_mode(0o755))?;
                    rustix::fs::openat(&dir, part, DIRECTORY, Mode::empty())?
                }
                // What openat says of a link, or of a file, when a directory is asked for.
                Err(Errno::LOOP | Errno::NOTDIR) => {
                    return Err(EntryError::Refused(refusal::through(Path::new(part))));
                }
                Err(error) => return Err(error.into()),
            };
        }
        self.recent = Some((path.to_owned(), rustix::io::fcntl_dupfd_cloexec(&dir, 0)?));
        Ok(dir)
    }

    /// Owner first: changing it clears setuid and file capabilities.
    fn finish(&self, file: &OwnedFd, entry: &LayerEntry) -> Result<(), EntryError> {
        let (uid, gid) = owner(entry);
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode(entry)))?;
        for (name, value) in &entry.xattrs {
            match rustix::fs::fsetxattr(file, name.as_os_str(), value, XattrFlags::empty()) {
                // Where the cache's file system has no such attributes, the image goes without.
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(error.into()),
                Err(error) => {
                    let name = name.to_string_lossy();
                    return Err(EntryError::Refused(format!(
                        "has the extended attribute {name:?}, which cannot be set: {error}"
                    )));
                }
            }
        }
        Ok(())
    }

    fn finish_node(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        entry: &LayerEntry,
        mode: Option<u32>,
    ) -> Result<(), EntryError> {
        let (uid, gid) = owner(entry);
        rustix::fs::chownat(
            parent,
            name,
            Some(uid),
            Some(gid),
            AtFlags::SYMLINK_NOFOLLOW,
        )?;
        if let Some(mode) = mode {
            rustix::fs::chmodat(parent, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        }
        rustix::fs::utimensat(parent, name, &times(entry), AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(())
    }
}
