//! A disk of a few MiB that a test can fill. Needs root.

use std::ffi::CStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// A small file system; unmounted on drop.
pub struct Disk {
    path: PathBuf,
    // Removed after the unmounting.
    _dir: Option<tempfile::TempDir>,
}

impl Disk {
    pub fn new(mib: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Self::over(dir.path(), mib);
        disk._dir = Some(dir);
        disk
    }

    /// A disk without free space.
    pub fn without_room() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut disk = Self::mounted(dir.path(), "nr_inodes=1,mode=0700");
        disk._dir = Some(dir);
        disk
    }

    /// Mounted over a directory, whose content is hidden meanwhile.
    pub fn over(path: &Path, mib: u64) -> Self {
        Self::mounted(path, &format!("size={mib}m,mode=0700"))
    }

    fn mounted(path: &Path, options: &str) -> Self {
        let options = std::ffi::CString::new(options).unwrap();
        let options: &CStr = &options;
        rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), options).unwrap();
        Self {
            path: path.to_owned(),
            _dir: None,
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk except for `but` bytes.
    pub fn fill(&self, but: u64) {
        let mut file = fs::File::create(self.filler()).unwrap();
        let some = [7u8; 4096];
        while file.write_all(&some).is_ok() {}
        let size = file.metadata().unwrap().len();
        file.set_len(size.saturating_sub(but)).unwrap();
    }

    pub fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    pub fn free(&self) -> u64 {
        let found = rustix::fs::statvfs(&self.path).unwrap();
        found.f_bavail * found.f_frsize
    }

    fn filler(&self) -> PathBuf {
        self.path.join("filler")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = rustix::mount::unmount(&self.path, UnmountFlags::DETACH) {
            eprintln!("{} is still mounted: {error}", self.path.display());
        }
    }
}
