//! Unpacks one layer into a directory that overlayfs can use, and checks that it is the right one.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, Dev, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};
use tar::{Entry, EntryType};

use super::archive::LayerFile;
use super::{Archive, ImageError};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";
/// Only root may set the first.
const OVERLAY_OPAQUE: &str = "trusted.overlay.opaque";
const OVERLAY_OPAQUE_OF_USERS: &str = "user.overlay.opaque";
const COPY_BUFFER: usize = 128 << 10;

/// Unpacks `layer` of the archive into `into`, which must not exist.
pub fn unpack<A: Archive>(
    archive: &mut A,
    label: &str,
    layer: &LayerFile,
    into: &Path,
) -> Result<(), ImageError> {
    let context = Context {
        label,
        layer: &layer.diff_id,
    };
    archive
        .seek(SeekFrom::Start(layer.offset))
        .map_err(|source| ImageError::Read {
            label: label.to_owned(),
            source,
        })?;
    let mut hashed = Hashing {
        inner: decompress(archive.take(layer.size), &context)?,
        hash: Sha256::new(),
    };

    Unpacker::new(into, &context)?.run(&mut tar::Archive::new(&mut hashed))?;

    // What follows the last entry is part of the digest too.
    io::copy(&mut hashed, &mut io::sink()).map_err(|error| context.read_failed(error))?;
    let found = format!(
        "sha256:{}",
        data_encoding::HEXLOWER.encode(&hashed.hash.finalize())
    );
    if found != layer.diff_id {
        return Err(ImageError::DigestMismatch {
            label: label.to_owned(),
            layer: layer.diff_id.clone(),
            found,
        });
    }
    Ok(())
}

struct Context<'a> {
    label: &'a str,
    layer: &'a str,
}

impl Context<'_> {
    /// The archive's fault if its content makes no sense, the transport's otherwise.
    fn read_failed(&self, error: io::Error) -> ImageError {
        use io::ErrorKind as K;
        match error.kind() {
            K::UnexpectedEof | K::InvalidData | K::InvalidInput | K::Other => ImageError::Damaged {
                label: self.label.to_owned(),
                reason: format!("layer {} cannot be unpacked: {error}", self.layer),
            },
            _ => ImageError::Read {
                label: self.label.to_owned(),
                source: error,
            },
        }
    }

    fn unsafe_entry(&self, entry: &Path, reason: impl Into<String>) -> ImageError {
        ImageError::UnsafeEntry {
            label: self.label.to_owned(),
            layer: self.layer.to_owned(),
            entry: entry.display().to_string(),
            reason: reason.into(),
        }
    }
}

/// By content, not by what the manifest calls it: docker-archives do not say.
fn decompress<'a, R: Read + 'a>(
    mut from: R,
    context: &Context<'_>,
) -> Result<Box<dyn Read + 'a>, ImageError> {
    let mut magic = Vec::with_capacity(6);
    from.by_ref()
        .take(6)
        .read_to_end(&mut magic)
        .map_err(|error| context.read_failed(error))?;
    let kind: [u8; 6] = std::array::from_fn(|i| magic.get(i).copied().unwrap_or(0));
    let whole = io::Cursor::new(magic).chain(from);
    let unsupported = |media_type: &str| ImageError::UnsupportedLayer {
        label: context.label.to_owned(),
        media_type: media_type.to_owned(),
    };
    Ok(match kind {
        [0x1f, 0x8b, ..] => Box::new(flate2::read::MultiGzDecoder::new(whole)),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Box::new(
            zstd::stream::read::Decoder::new(whole).map_err(|error| context.read_failed(error))?,
        ),
        [0xfd, b'7', b'z', b'X', b'Z', ..] => return Err(unsupported("xz compression")),
        [b'B', b'Z', b'h', ..] => return Err(unsupported("bzip2 compression")),
        _ => Box::new(whole),
    })
}

struct Hashing<R> {
    inner: R,
    hash: Sha256,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hash.update(&buffer[..n]);
        Ok(n)
    }
}

/// Everything is done relative to open directories and without following links, so that no entry
/// can reach outside of the layer.
struct Unpacker<'a> {
    context: &'a Context<'a>,
    path: PathBuf,
    root: OwnedFd,
    /// The directory of the entry before, which is most often that of the next one too.
    recent: Option<(PathBuf, OwnedFd)>,
    /// Times of directories change while they are filled, so they are set at the end.
    times: Vec<(PathBuf, Timestamps)>,
}

impl<'a> Unpacker<'a> {
    fn new(path: &Path, context: &'a Context<'a>) -> Result<Self, ImageError> {
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
            times: Vec::new(),
        })
    }

    fn run<R: Read>(mut self, tar: &mut tar::Archive<R>) -> Result<(), ImageError> {
        let entries = tar.entries().map_err(|e| self.context.read_failed(e))?;
        for entry in entries {
            let mut entry = entry.map_err(|e| self.context.read_failed(e))?;
            let path = PathBuf::from(OsString::from_vec(entry.path_bytes().into_owned()));
            if let Err(problem) = self.entry(&mut entry, &path) {
                return Err(problem.for_entry(&path, self.context, &self.path));
            }
        }
        let times = std::mem::take(&mut self.times);
        for (path, times) in times.iter().rev() {
            let set = self.directory(path, false).and_then(|dir| {
                rustix::fs::futimens(&dir, times)?;
                Ok(())
            });
            if let Err(problem) = set {
                return Err(problem.for_entry(path, self.context, &self.path));
            }
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, path: &Path) -> Result<(), Problem> {
        let kind = entry.header().entry_type();
        if matches!(kind, EntryType::XGlobalHeader | EntryType::XHeader) {
            return Ok(());
        }
        let inside = relative(path)?;
        let Some(name) = inside.file_name().map(OsStr::to_owned) else {
            // "./": the root itself.
            if kind.is_dir() {
                let root = rustix::io::fcntl_dupfd_cloexec(&self.root, 0)?;
                let xattrs = xattrs(entry)?;
                self.finish(&root, entry, &xattrs)?;
                self.times.push((PathBuf::new(), times(entry)));
            }
            return Ok(());
        };
        if !kind.is_dir()
            && self
                .recent
                .as_ref()
                .is_some_and(|(r, _)| r.starts_with(&inside))
        {
            // It may take that directory's place.
            self.recent = None;
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
                self.times.push((inside, times(entry)));
            }
            EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| {
                    Problem::Refused("is a symbolic link without a target".into())
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
                return Err(Problem::Refused(format!(
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
    ) -> Result<(), Problem> {
        let target = entry
            .link_name_bytes()
            .ok_or_else(|| Problem::Refused("is a hard link without a target".into()))?;
        let target = relative(Path::new(OsStr::from_bytes(&target)))?;
        let missing = || {
            Problem::Refused(format!(
                "is a hard link to \"{}\", which is not in the layer",
                target.display()
            ))
        };
        let target_name = target.file_name().ok_or_else(missing)?;
        let target_dir = self
            .directory(target.parent().unwrap_or(Path::new("")), false)
            .map_err(|problem| match problem {
                Problem::Os(Errno::NOENT) => missing(),
                other => other,
            })?;
        clear(parent, name)?;
        rustix::fs::linkat(&target_dir, target_name, parent, name, AtFlags::empty()).map_err(
            |error| match error {
                Errno::NOENT => missing(),
                other => Problem::Os(other),
            },
        )
    }

    /// Opens a directory of the layer, one component after the other, following no link.
    fn directory(&mut self, path: &Path, create: bool) -> Result<OwnedFd, Problem> {
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
                    return Err(Problem::Refused(format!(
                        "goes through \"{}\", which is not a directory of this layer",
                        part.display()
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
    ) -> Result<(), Problem> {
        let (uid, gid) = owner(entry);
        rustix::fs::fchown(file, Some(uid), Some(gid))?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(mode(entry)))?;
        for (name, value) in xattrs {
            match rustix::fs::fsetxattr(file, name.as_os_str(), value, XattrFlags::empty()) {
                // Where the cache's file system has no such attributes, the image goes without.
                Ok(()) | Err(Errno::NOTSUP | Errno::PERM) => {}
                Err(error) => return Err(error.into()),
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
    ) -> Result<(), Problem> {
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

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::RDONLY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// What can go wrong with one entry, before it is known which.
enum Problem {
    Refused(String),
    Read(io::Error),
    Os(Errno),
    Write(io::Error),
}

impl From<Errno> for Problem {
    fn from(error: Errno) -> Self {
        Self::Os(error)
    }
}

impl Problem {
    fn for_entry(self, entry: &Path, context: &Context<'_>, layer_dir: &Path) -> ImageError {
        let source = match self {
            Self::Refused(reason) => return context.unsafe_entry(entry, reason),
            Self::Read(error) => return context.read_failed(error),
            Self::Os(error) => error.into(),
            Self::Write(error) => error,
        };
        ImageError::Cache {
            path: layer_dir.join(relative(entry).unwrap_or_default()),
            source,
        }
    }
}

/// The path below the layer's root. A leading "/" means that root; ".." is refused.
fn relative(path: &Path) -> Result<PathBuf, Problem> {
    let mut inside = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => inside.push(part),
            Component::CurDir | Component::RootDir => {}
            Component::ParentDir | Component::Prefix(_) => {
                return Err(Problem::Refused(
                    "leads out of the image with \"..\"".into(),
                ));
            }
        }
    }
    Ok(inside)
}

fn set_opaque(dir: &OwnedFd) -> Result<(), Problem> {
    let name = match is_root() {
        true => OVERLAY_OPAQUE,
        false => OVERLAY_OPAQUE_OF_USERS,
    };
    rustix::fs::fsetxattr(dir, name, b"y", XattrFlags::empty()).map_err(|error| {
        Problem::Write(io::Error::other(format!(
            "the file system of the image cache cannot hold {name} ({error})"
        )))
    })
}

/// Hides what lower layers have under `name`. An entry of this same layer stays.
fn whiteout(parent: &OwnedFd, name: &OsStr) -> Result<(), Problem> {
    if matches!(name.as_bytes(), b"" | b"." | b"..") {
        return Err(Problem::Refused("hides no file name".into()));
    }
    // Housekeeping of aufs, which once made layers.
    if name.as_bytes().starts_with(WHITEOUT) {
        return Ok(());
    }
    match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
        Ok(dir) => set_opaque(&dir),
        Err(Errno::NOENT) => node(parent, name, FileType::CharacterDevice, 0),
        Err(_) => Ok(()),
    }
}

fn node(parent: &OwnedFd, name: &OsStr, kind: FileType, device: Dev) -> Result<(), Problem> {
    Ok(rustix::fs::mknodat(
        parent,
        name,
        kind,
        Mode::from_raw_mode(0o600),
        device,
    )?)
}

/// Makes `name` a directory; true if it takes the place of something that hid lower layers.
fn make_directory(parent: &OwnedFd, name: &OsStr) -> Result<bool, Problem> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(false),
        Err(Errno::EXIST) => {
            let stat = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(stat.st_mode).is_dir() {
                return Ok(false);
            }
            rustix::fs::unlinkat(parent, name, AtFlags::empty())?;
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?;
            Ok(true)
        }
        Err(error) => Err(error.into()),
    }
}

/// A later entry of the same name takes the place of an earlier one.
fn clear(parent: &OwnedFd, name: &OsStr) -> Result<(), Problem> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(Errno::ISDIR) => match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY) => Err(Problem::Refused(
                "takes the place of a directory that is not empty".into(),
            )),
            done => Ok(done?),
        },
        Err(error) => Err(error.into()),
    }
}

fn copy(mut from: impl Read, mut to: &File) -> Result<(), Problem> {
    let mut buffer = vec![0u8; COPY_BUFFER];
    loop {
        match from.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => to.write_all(&buffer[..n]).map_err(Problem::Write)?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Problem::Read(error)),
        }
    }
}

/// Overlayfs's own attributes would change what the layer means, so an image cannot bring them.
fn xattrs<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<(OsString, Vec<u8>)>, Problem> {
    let mut found = Vec::new();
    if let Some(extensions) = entry.pax_extensions().map_err(Problem::Read)? {
        for extension in extensions {
            let extension = extension.map_err(Problem::Read)?;
            if let Some(name) = extension.key_bytes().strip_prefix(b"SCHILY.xattr.")
                && !name.starts_with(b"trusted.overlay.")
                && !name.starts_with(b"user.overlay.")
            {
                let name = OsString::from_vec(name.to_vec());
                found.push((name, extension.value_bytes().to_vec()));
            }
        }
    }
    Ok(found)
}

/// An ordinary user's images belong to him: he can give nothing away.
fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn owner<R: Read>(entry: &Entry<'_, R>) -> (Uid, Gid) {
    if !is_root() {
        return (rustix::process::geteuid(), rustix::process::getegid());
    }
    let id = |n: io::Result<u64>| n.ok().and_then(|n| u32::try_from(n).ok()).unwrap_or(0);
    (
        Uid::from_raw(id(entry.header().uid())),
        Gid::from_raw(id(entry.header().gid())),
    )
}

fn mode<R: Read>(entry: &Entry<'_, R>) -> u32 {
    let mode = entry.header().mode().unwrap_or(0o644) & 0o7777;
    match entry.header().entry_type() {
        _ if is_root() => mode,
        // Without these its owner could neither fill it nor remove it.
        EntryType::Directory => mode | 0o700,
        _ => mode | 0o400,
    }
}

fn times<R: Read>(entry: &Entry<'_, R>) -> Timestamps {
    let seconds = entry.header().mtime().unwrap_or(0);
    let time = Timespec {
        tv_sec: i64::try_from(seconds).unwrap_or(0),
        tv_nsec: 0,
    };
    Timestamps {
        last_access: time,
        last_modification: time,
    }
}
