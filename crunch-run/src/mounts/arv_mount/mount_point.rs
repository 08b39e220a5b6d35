//! The directory that arv-mount's tree is at. Whatever becomes of the program, nothing stays mounted there: whoever
//! removes the directories of an attempt must not come into the tree.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{UnmountFlags, unmount};

/// An empty directory; it is gone when this is dropped.
#[derive(Debug)]
pub struct MountPoint(PathBuf);

impl MountPoint {
    /// What an earlier attempt left mounted there is taken away first.
    pub fn make(path: &Path) -> io::Result<Self> {
        detach(path)?;
        match fs::remove_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        fs::DirBuilder::new().mode(0o700).create(path)?;
        Ok(Self(path.to_owned()))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn is_mounted(&self) -> bool {
        is_mounted(&self.0)
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Err(error) = detach(&self.0).and_then(|()| fs::remove_dir(&self.0)) {
            tracing::warn!(
                "{} stays mounted or cannot be removed: {error}",
                self.0.display()
            );
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    let mounts = procfs::process::Process::myself().and_then(|me| me.mountinfo());
    mounts.is_ok_and(|mounts| mounts.0.iter().any(|mount| mount.mount_point == path))
}

/// Takes a tree away at once, even one whose program is gone; who still uses it keeps it until then.
pub fn detach(path: &Path) -> io::Result<()> {
    while is_mounted(path) {
        if rustix::process::geteuid().is_root() {
            unmount(path, UnmountFlags::DETACH)?;
        } else {
            as_user(path)?;
        }
    }
    Ok(())
}

/// An ordinary user has FUSE's own helper for it.
fn as_user(path: &Path) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for program in ["fusermount3", "fusermount"] {
        let ended = Command::new(program)
            .args(["-u", "-z", "--"])
            .arg(path)
            .stdin(Stdio::null())
            .output();
        match ended {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                last = io::Error::other(format!("{program}: {said}"));
            }
            Err(error) => last = io::Error::new(error.kind(), format!("{program}: {error}")),
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_private_and_vanishes() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keep");
        // Left by an earlier attempt.
        fs::create_dir(&path).unwrap();
        let point = MountPoint::make(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!((mode & 0o777, point.is_mounted()), (0o700, false));
        drop(point);
        assert!(!path.exists());
        assert!(is_mounted(Path::new("/proc")));
    }

    #[test]
    fn a_directory_with_something_in_it_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keep");
        fs::create_dir_all(path.join("file")).unwrap();
        assert!(MountPoint::make(&path).is_err());
        assert!(path.join("file").exists());
    }
}
