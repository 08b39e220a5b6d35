//! The mount point of arv-mount. It is always unmounted at the end, so that removing the attempt's
//! directories never reaches into the tree.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use container_engine::command::output_within;
use host_state::file::ignore_missing;
use rustix::mount::{UnmountFlags, unmount};

/// Timeout of FUSE's helper for one unmount.
const UNMOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// An empty directory, removed when dropped.
#[derive(Debug)]
pub struct MountPoint(PathBuf);

impl MountPoint {
    /// Unmounts what an earlier attempt left there.
    pub fn make(path: &Path) -> io::Result<Self> {
        detach(path)?;
        ignore_missing(fs::remove_dir(path))?;
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
                path = %self.0.display(),
                %error,
                "could not unmount or remove the mount point of arv-mount"
            );
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    let mounts = procfs::process::Process::myself().and_then(|me| me.mountinfo());
    mounts.is_ok_and(|mounts| mounts.0.iter().any(|mount| mount.mount_point == path))
}

/// Detaches a mount at once, even if its program is gone. Processes that use it keep it until they
/// end.
pub fn detach(path: &Path) -> io::Result<()> {
    while is_mounted(path) {
        if rustix::process::geteuid().is_root() {
            unmount(path, UnmountFlags::DETACH)?;
        } else {
            fusermount(path)?;
        }
    }
    Ok(())
}

/// Unmounts with FUSE's helper, for ordinary users.
fn fusermount(path: &Path) -> io::Result<()> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for program in ["fusermount3", "fusermount"] {
        let mut command = Command::new(program);
        let ended = output_within(command.args(["-u", "-z", "--"]).arg(path), UNMOUNT_TIMEOUT);
        match ended {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => {
                let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                last = io::Error::other(format!("{program}: {message}"));
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
    fn mount_point_is_private_and_vanishes() {
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
