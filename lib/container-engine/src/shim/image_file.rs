//! Opens files of an image. Its maker decides what is there: who opens a pipe waits for a writer, a
//! device acts when it is opened, and a large file fills the memory. So only regular files are
//! opened, and they are read up to a limit.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use pathrs::Root;
use rustix::fs::{CWD, Mode, OFlags};

/// What is at a path of the node, without opening it: it has metadata, and no content.
pub fn find(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let found = rustix::fs::openat(CWD, path, flags, Mode::empty())?;
    Ok(found.into())
}

/// The same in a root directory. Links lead nowhere outside of it.
pub fn find_in(root: &Root, path: &str) -> Option<File> {
    let found = root.resolve(path).ok()?;
    Some(OwnedFd::from(found).into())
}

/// At most `limit` bytes from the start of what was found. `None` if it is no regular file.
pub fn read(found: &File, limit: u64) -> io::Result<Option<Vec<u8>>> {
    if !found.metadata()?.is_file() {
        return Ok(None);
    }
    let mut content = Vec::new();
    let file = File::open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    file.take(limit).read_to_end(&mut content)?;
    Ok(Some(content))
}
