//! Builds a layer's tree from its entries.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Timestamps, XattrFlags};
use rustix::io::Errno;
use tar::{Entry, EntryType};

use super::super::ImageError;
use super::Context;
use super::attributes::{is_root, mode, owner, times, xattrs};
use super::dir_ops::{
    DIRECTORY, OPAQUE, WHITEOUT, clear, copy, make_directory, node, set_opaque, whiteout,
};
use super::entry_names::{relative, shown};
use super::error::EntryError;
use super::free_space::FreeSpaceGuard;
use image_archive::limited_read::ReadBudget;

/// Everything is done relative to open directories and without following links, so that no entry
/// can reach outside of the layer.
pub struct Unpacker<'a> {
    context: &'a Context<'a>,
    path: PathBuf,
    root: OwnedFd,
    /// The directory of the entry before, which is most often that of the next one too.
    recent: Option<(PathBuf, OwnedFd)>,
    /// Times of directories change while they are filled, so they are set at the end.
    times: BTreeMap<PathBuf, Timestamps>,
    free_space: FreeSpaceGuard,
}

impl<'a> Unpacker<'a> {
    pub fn new(path: &Path, context: &'a Context<'a>) -> Result<Self, ImageError> {
        let cache = |error: io::Error| ImageError::Cache {
            path: path.to_owned(),
            source: error,
        };
        fs::create_dir(path).map_err(cache)?;
        let root = rustix::fs::open(path, DIRECTORY, Mode::empty()).map_err(|e| cache(e.into()))?;
        rustix::fs::fchmod(&root, Mode::from_raw_mode(0o755)).map_err(|e| cache(e.into()))?;
        Ok(Self {
            context,
            path: path.to_owned(),
            root,
            recent: None,
            times: BTreeMap::new(),
            free_space: FreeSpaceGuard::new(),
        })
    }

    pub fn run<R: Read>(
        mut self,
        tar: &mut tar::Archive<R>,
        budget: &ReadBudget,
    ) -> Result<(), ImageError> {
        let read_failed = |error| self.context.read_failed(error);
        let mut entries = tar.entries().map_err(read_failed)?;
        loop {
            budget.headers();
            let Some(entry) = entries.next() else {
                break;
            };
            let mut entry = entry.map_err(|e| self.context.read_failed(e))?;
            budget.content();
            let path = PathBuf::from(OsString::from_vec(entry.path_bytes().into_owned()));
            let done = self.entry(&mut entry, &path).and_then(|()| {
                // Content that nobody asked for is not part of the next header.
                io::copy(&mut entry, &mut io::sink()).map_err(EntryError::Read)
            });
            if let Err(error) = done {
                let file = self.path.join(relative(&path).unwrap_or_default());
                return Err(error.for_entry(&path, self.context, file));
            }
        }
        budget.content();
        for (path, times) in std::mem::take(&mut self.times) {
            let set = self.directory(&path, false).and_then(|dir| {
                rustix::fs::futimens(&dir, &times)?;
                Ok(())
            });
            if let Err(error) = set {
                return Err(error.for_entry(&path, self.context, self.path.join(&path)));
            }
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, path: &Path) -> Result<(), EntryError> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            return Ok(());
        }
        let size = match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => entry.size(),
            _ => 0,
        };
        self.free_space.take(&self.root, size)?;
        let inside = relative(path)?;
        let Some(name) = inside.file_name().map(OsStr::to_owned) else {
            // "./": the root itself.
            if kind.is_dir() {
                let root = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
                let xattrs = xattrs(entry)?;
                self.finish(&root, entry, &xattrs)?;
                self.times.insert(PathBuf::new(), times(entry));
            }
            return Ok(());
        };
        if !kind.is_dir() {
            // It may take the place of that directory.
            self.times.remove(&inside);
            if self
                .recent
                .as_ref()
                .is_some_and(|(recent, _)| recent.starts_with(&inside))
            {
                self.recent = None;
            }
        }
        let parent_path = inside.parent().unwrap_or(Path::new("")).to_owned();
        let parent = self.directory(&parent_path, true)?;

        if name.as_bytes() == OPAQUE {
            return set_opaque(&parent);
        }
        if let Some(hidden) = name.as_bytes().strip_prefix(WHITEOUT) {
            return whiteout(&parent, OsStr::from_bytes(hidden));
        }

        let xattrs = xattrs(entry)?;
        match kind {
            EntryType::Directory => {
                let replaced = make_directory(&parent, &name)?;
                let dir = rustix::fs::openat(&parent, &name, DIRECTORY, Mode::empty())?;
                if replaced {
                    set_opaque(&dir)?;
                }
                self.finish(&dir, entry, &xattrs)?;
                self.times.insert(inside, times(entry));
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().filter(|target| !target.is_empty());
                let target = target.ok_or_else(|| {
                    EntryError::Refused("is a symbolic link without a target".into())
                })?;
                clear(&parent, &name)?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), &parent, &name)?;
                self.finish_node(&parent, &name, entry, None)?;
            }
            EntryType::Link => self.hard_link(entry, &parent, &name)?,
            // Device nodes of images are never used, and an ordinary user can make none.
            EntryType::Char | EntryType::Block if !is_root() => clear(&parent, &name)?,
            EntryType::Char | EntryType::Block | EntryType::Fifo => {
                clear(&parent, &name)?;
                let header = entry.header();
                let number = |n: io::Result<Option<u32>>| n.ok().flatten().unwrap_or(0);
                let device = rustix::fs::makedev(
                    number(header.device_major()),
                    number(header.device_minor()),
                );
                let file_type = match kind {
                    EntryType::Char => FileType::CharacterDevice,
                    EntryType::Block => FileType::BlockDevice,
                    _ => FileType::Fifo,
                };
                node(&parent, &name, file_type, device)?;
                let mode = mode(entry);
                self.finish_node(&parent, &name, entry, Some(mode))?;
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                clear(&parent, &name)?;
                let file = File::from(rustix::fs::openat(
                    &parent,
                    &name,
                    OFlags::CREATE
                        | OFlags::EXCL
                        | OFlags::WRONLY
                        | OFlags::NOFOLLOW
                        | OFlags::CLOEXEC,
                    Mode::from_raw_mode(0o600),
                )?);
                copy(&mut *entry, &file)?;
                let fd = OwnedFd::from(file);
                self.finish(&fd, entry, &xattrs)?;
                rustix::fs::futimens(&fd, &times(entry))?;
            }
            other => {
                return Err(EntryError::Refused(format!(
                    "is of a kind that is not supported ({other:?})"
                )));
            }
        }
        Ok(())
    }

    fn hard_link<R: Read>(
        &mut self,
        entry: &Entry<'_, R>,
        parent: &OwnedFd,
        name: &OsStr,
    ) -> Result<(), EntryError> {
        let target = entry
            .link_name_bytes()
            .ok_or_else(|| EntryError::Refused("is a hard link without a target".into()))?;
        let target = relative(Path::new(OsStr::from_bytes(&target)))?;
        let missing = || {
            EntryError::Refused(format!(
                "is a hard link to \"{}\", which is not in the layer",
                shown(&target)
            ))
        };
        let target_name = target.file_name().ok_or_else(missing)?;
        let target_dir = self
            .directory(target.parent().unwrap_or(Path::new("")), false)
            .map_err(|problem| match problem {
                EntryError::Os(Errno::NOENT) => missing(),
                other => other,
            })?;
        clear(parent, name)?;
        rustix::fs::linkat(&target_dir, target_name, parent, name, AtFlags::empty()).map_err(
            |error| match error {
                Errno::NOENT => missing(),
                // What linkat says of a directory.
                Errno::PERM => EntryError::Refused(format!(
                    "is a hard link to \"{}\", which cannot have any",
                    shown(&target)
                )),
                other => other.into(),
            },
        )
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
                    return Err(EntryError::Refused(format!(
                        "goes through \"{}\", which is not a directory of this layer",
                        shown(Path::new(part))
                    )));
                }
                Err(error) => return Err(error.into()),
            };
        }
        self.recent = Some((path.to_owned(), rustix::io::fcntl_dupfd_cloexec(&dir, 0)?));
        Ok(dir)
    }

    /// Owner first: changing it clears setuid and file capabilities.
    fn finish<R: Read>(
        &self,
        file: &OwnedFd,
        entry: &Entry<'_, R>,
        xattrs: &[(OsString, Vec<u8>)],
    ) -> Result<(), EntryError> {
        let (uid, gid) = owner(entry);
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode(entry)))?;
        for (name, value) in xattrs {
            match rustix::fs::fsetxattr(file, name.as_os_str(), value, XattrFlags::empty()) {
                // Where the cache's file system has no such attributes, the image goes without.
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
                Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::IO)) => return Err(error.into()),
                Err(error) => {
                    return Err(EntryError::Refused(format!(
                        "has the extended attribute \"{}\", which cannot be set: {error}",
                        shown(Path::new(name))
                    )));
                }
            }
        }
        Ok(())
    }

    fn finish_node<R: Read>(
        &self,
        parent: &OwnedFd,
        name: &OsStr,
        entry: &Entry<'_, R>,
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
