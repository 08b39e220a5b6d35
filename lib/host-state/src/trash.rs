//! Removal of directories that nobody waits for. A rename moves a directory into the trash beside
//! it, and a thread of low priority removes its files. The next process goes on where a killed one
//! stopped.

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::time::{Duration, Instant};

use fail_points::fail_point;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::file::remove_tree;
use crate::private_dir;

/// Start of a trash's name; the rest is the user.
const PREFIX: &str = "crunch-run.trash.";
/// Lowest priority of a thread. The kernel derives its I/O priority from it.
const LOWEST_PRIORITY: i32 = 19;
/// Number of removals between two calls of `pause`.
const BATCH: u32 = 200;
/// Maximum pause of the background thread, which rests for as long as it works. Otherwise its
/// writes would delay those of the jobs in the journal of the file system.
const MAX_PAUSE: Duration = Duration::from_millis(200);
/// Opens a directory and never a link to one.
const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
/// Depth below which directories move up to the top of the trash. So no path is too long, and a
/// deep tree takes neither stack nor descriptors.
const MAX_DEPTH: u32 = 8;

/// The trash in `parent`. Others may write to `parent`, so each user has a trash of his own.
fn trash_in(parent: &Path) -> PathBuf {
    let user = rustix::process::geteuid().as_raw();
    parent.join(format!("{PREFIX}{user}"))
}

/// Whether a directory with this name is a trash.
pub fn is_trash(name: &str) -> bool {
    name.starts_with(PREFIX)
}

/// Lowers the priority of this thread, for work that nobody waits for.
pub fn lower_priority() {
    // Without it the work is only less polite.
    let _ = rustix::process::setpriority_process(None, LOWEST_PRIORITY);
}

/// Moves a directory into the trash beside it. A missing one is a success. Where that cannot be
/// done, because another user took the name or the directory is a mount point, removes it in place.
pub fn discard(path: &Path) -> io::Result<()> {
    let target = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => {
            let trash = trash_in(parent);
            trash.join(unique_name(&name.to_string_lossy()))
        }
        _ => return remove_tree(path),
    };
    // The thread that empties the trash removes the empty directory.
    for _ in 0..3 {
        if fs::symlink_metadata(path).is_err_and(|e| e.kind() == io::ErrorKind::NotFound) {
            return Ok(());
        }
        if !is_usable(&target)? {
            break;
        }
        match fs::rename(path, &target) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(_) => break,
        }
    }
    remove_tree(path)
}

/// Creates the trash of `target`; false if it is not a directory of this user alone.
fn is_usable(target: &Path) -> io::Result<bool> {
    let Some(trash) = target.parent() else {
        return Ok(false);
    };
    match private_dir::create(trash) {
        Ok(()) => Ok(true),
        // Just removed because it was empty; the caller tries again.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(_) => Ok(false),
    }
}

fn unique_name(name: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let time = std::time::SystemTime::UNIX_EPOCH.elapsed();
    let time = time.map_or(0, |time| time.as_nanos());
    format!("{name}~{}-{time:x}-{count:x}", std::process::id())
}

/// The trash in `parent`, if it is a directory of this user alone. Another user may have made one
/// of this name, where all may write.
fn open_own(parent: &Path) -> io::Result<Option<OwnedFd>> {
    let trash = match rustix::fs::open(trash_in(parent), DIRECTORY, Mode::empty()) {
        Ok(trash) => trash,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::ACCESS) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let facts = rustix::fs::fstat(&trash)?;
    let is_own = facts.st_uid == rustix::process::geteuid().as_raw() && facts.st_mode & 0o077 == 0;
    Ok(is_own.then_some(trash))
}

/// The directories in the trash in `parent`.
pub fn content(parent: &Path) -> Vec<PathBuf> {
    if !open_own(parent).is_ok_and(|trash| trash.is_some()) {
        return Vec::new();
    }
    let entries = fs::read_dir(trash_in(parent)).into_iter().flatten();
    let entries = entries.flatten();
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.map(|entry| entry.path()).collect()
}

/// Whether nothing is in the trash in `parent`.
pub fn is_empty(parent: &Path) -> bool {
    let Ok(Some(trash)) = open_own(parent) else {
        return true;
    };
    names(&trash).map_or(true, |names| names.is_empty())
}

/// Empties the trash in `parent` on this thread. Calls `pause` now and then, which may end the work
/// early. Returns whether nothing is left.
pub fn empty(
    parent: &Path,
    pause: &mut dyn FnMut() -> ControlFlow<()>,
) -> io::Result<ControlFlow<()>> {
    let Some(trash) = open_own(parent)? else {
        return Ok(ControlFlow::Continue(()));
    };
    let mut removal = Removal {
        trash: &trash,
        pause,
        removed: 0,
        first_error: None,
    };
    let ended = loop {
        let before = removal.removed;
        let ended = removal.remove_content(trash.as_fd(), 0);
        if ended.is_break() || removal.first_error.is_some() {
            break ended;
        }
        match rustix::fs::rmdir(trash_in(parent)) {
            // Deep directories moved up, or something came meanwhile.
            Err(Errno::NOTEMPTY) if removal.removed != before => {}
            Err(Errno::NOTEMPTY | Errno::NOTDIR) => break ended,
            removed => {
                removal.note(removed);
                break ended;
            }
        }
    };
    match removal.first_error {
        Some(error) => Err(error.into()),
        None => Ok(ended),
    }
}

/// The names in a directory, without `.` and `..`.
fn names(dir: impl AsFd) -> Result<Vec<(CString, FileType)>, Errno> {
    let mut found = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        if !matches!(entry.file_name().to_bytes(), b"." | b"..") {
            found.push((entry.file_name().to_owned(), entry.file_type()));
        }
    }
    Ok(found)
}

/// Works on open directories and never follows a link: a container that still runs, or another
/// user, may replace a directory by a link at any moment.
struct Removal<'a> {
    trash: &'a OwnedFd,
    pause: &'a mut dyn FnMut() -> ControlFlow<()>,
    removed: u32,
    first_error: Option<Errno>,
}

impl Removal<'_> {
    fn remove_dir(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: u32) -> ControlFlow<()> {
        loop {
            let dir = match open_closed(parent, name) {
                Ok(dir) => dir,
                Err(error) => {
                    self.note(Err(error));
                    return ControlFlow::Continue(());
                }
            };
            let before = self.removed;
            self.remove_content(dir.as_fd(), depth)?;
            let remove = || rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
            match opened_if_denied(parent, remove) {
                // A listing may leave out entries while others are removed.
                Err(Errno::NOTEMPTY) if self.removed != before => {}
                removed => {
                    self.note(removed);
                    return ControlFlow::Continue(());
                }
            }
        }
    }

    fn remove_content(&mut self, dir: BorrowedFd<'_>, depth: u32) -> ControlFlow<()> {
        let found = match names(dir) {
            Ok(found) => found,
            Err(error) => {
                self.note(Err(error));
                return ControlFlow::Continue(());
            }
        };
        for (name, kind) in found {
            if self.removed.is_multiple_of(BATCH) {
                fail_point("trash.removing");
                (self.pause)()?;
            }
            let is_dir = match kind {
                // Some file systems do not tell.
                FileType::Unknown => rustix::fs::statat(dir, &*name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|facts| FileType::from_raw_mode(facts.st_mode).is_dir()),
                kind => kind.is_dir(),
            };
            if !is_dir {
                let remove = || rustix::fs::unlinkat(dir, &*name, AtFlags::empty());
                self.note(opened_if_denied(dir, remove));
            } else if depth < MAX_DEPTH {
                self.remove_dir(dir, &name, depth + 1)?;
            } else {
                // To move a directory, its owner must be able to write to it.
                let opened = open_closed(dir, &name).map(|moved| open_mode(moved.as_fd()));
                let top = unique_name("deep");
                let rename = || rustix::fs::renameat(dir, &*name, self.trash, &*top);
                let moved = opened.and_then(|()| opened_if_denied(dir, rename));
                self.note(moved);
            }
        }
        ControlFlow::Continue(())
    }

    /// Another process may empty the same trash.
    fn note(&mut self, removed: Result<(), Errno>) {
        match removed {
            Ok(()) | Err(Errno::NOENT) => self.removed = self.removed.wrapping_add(1),
            Err(error) => drop(self.first_error.get_or_insert(error)),
        }
    }
}

/// Opens a directory, also one that a container has closed to its owner.
fn open_closed(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd, Errno> {
    let open = |flags| rustix::fs::openat(parent, name, DIRECTORY | flags, Mode::empty());
    match open(OFlags::empty()) {
        Err(Errno::ACCESS) => {
            let closed = open(OFlags::PATH)?;
            open_mode(closed.as_fd());
            open(OFlags::empty())
        }
        opened => opened,
    }
}

/// Tries once more after the directory was opened to its owner: a container may have closed it.
fn opened_if_denied(
    dir: BorrowedFd<'_>,
    mut work: impl FnMut() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match work() {
        Err(Errno::ACCESS) => {
            open_mode(dir);
            work()
        }
        done => done,
    }
}

/// Lets the owner do everything with an open directory.
fn open_mode(dir: BorrowedFd<'_>) {
    // By this name also with a descriptor that is only a path. If it fails, the caller's next try
    // fails too, and says why.
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let _ = rustix::fs::chmod(path, Mode::RWXU);
}

/// A thread that empties the trashes in some directories: at its start, and whenever it is woken.
#[derive(Debug)]
pub struct TrashWorker {
    wake: SyncSender<()>,
}

impl TrashWorker {
    /// Starts the thread. It ends when the worker is dropped, after what it does then.
    pub fn start(parents: Vec<PathBuf>) -> io::Result<Self> {
        let (wake, woken) = sync_channel(1);
        let work = move || {
            lower_priority();
            empty_all(&parents);
            while woken.recv().is_ok() {
                empty_all(&parents);
            }
        };
        std::thread::Builder::new()
            .name("trash".to_owned())
            .spawn(work)?;
        Ok(Self { wake })
    }

    /// Makes the thread look for something new in the trash.
    pub fn wake(&self) {
        // A full channel wakes it as well.
        let _ = self.wake.try_send(());
    }
}

fn empty_all(parents: &[PathBuf]) {
    for parent in parents {
        let mut began = Instant::now();
        let mut rest = || {
            std::thread::sleep(began.elapsed().min(MAX_PAUSE));
            began = Instant::now();
            ControlFlow::Continue(())
        };
        if let Err(error) = empty(parent, &mut rest) {
            tracing::warn!(trash = %trash_in(parent).display(), %error, "could not empty the trash; the next start retries");
        }
    }
}

#[cfg(test)]
mod tests;
