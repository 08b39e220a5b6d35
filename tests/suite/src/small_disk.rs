//! A small file system for tests of a full disk. Input: a directory and a size. Output: a tmpfs
//! there.

use std::path::PathBuf;
use std::process::Command;

/// A file system of its own at a directory; unmounted when dropped.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts a file system of this size at `dir`, which must not exist.
    pub fn mount(dir: PathBuf, mebibytes: u64) -> Self {
        std::fs::create_dir(&dir).unwrap();
        let size = format!("size={mebibytes}m");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &size, "small-disk"])
            .arg(&dir)
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(dir)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(unmounted.unwrap().success());
    }
}
