//! The program of a container's helper processes, as a file that the container cannot change.
//!
//! The first process of a container is this program until it becomes the command. A command such as
//! `/proc/self/exe` runs it once more, with the loader of the image (CVE-2019-5736). The container
//! then has this very file: its root could change mode, owner and content, for every later job of
//! the node. So helpers run from a read-only mount of the file. Without the right to mount they run
//! from a copy that no other process uses.
//!
//! Sources: open_tree(2), mount_setattr(2), proc_pid_exe(5).

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libcontainer::syscall::linux::MountAttr;
use libcontainer::syscall::syscall::SyscallType;
use rustix::fs::{CWD, StatVfsMountFlags, fstatvfs};
use rustix::mount::{OpenTreeFlags, open_tree};

/// The file, open for executing.
#[derive(Debug)]
pub struct ReadOnlyProgram(OwnedFd);

impl ReadOnlyProgram {
    /// Opens `program`. A copy, if there must be one, is a file without a name in the first of
    /// `dirs` that has room and from which programs can be executed.
    pub fn open(program: &Path, dirs: &[PathBuf]) -> io::Result<Self> {
        let mut opened = mounted(program);
        for dir in dirs {
            match opened {
                Ok(file) => return Ok(Self(file)),
                Err(error) => {
                    tracing::debug!(%error, dir = %dir.display(), "copying this program there");
                    opened = copied(program, dir).map(OwnedFd::from);
                }
            }
        }
        opened.map(Self)
    }

    /// Its path for this process and for a child that executes it.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}

/// A mount of this one file, which no directory shows. It lives as long as a process executes it.
fn mounted(program: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(CWD, program, flags)?;
    let attributes = MountAttr {
        attr_set: libc::MOUNT_ATTR_RDONLY | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NODEV,
        attr_clr: 0,
        propagation: libc::MS_PRIVATE,
        userns_fd: 0,
    };
    SyscallType::Linux
        .create_syscall()
        .mount_setattr(
            mount.as_fd(),
            Path::new(""),
            libc::AT_EMPTY_PATH as u32,
            &attributes,
            size_of::<MountAttr>(),
        )
        .map_err(io::Error::other)?;
    Ok(mount)
}

fn copied(program: &Path, dir: &Path) -> io::Result<File> {
    fs::create_dir_all(dir)?;
    let mut copy = tempfile::tempfile_in(dir)?;
    io::copy(&mut File::open(program)?, &mut copy)?;
    copy.set_permissions(Permissions::from_mode(0o500))?;
    if fstatvfs(&copy)?.f_flag.contains(StatVfsMountFlags::NOEXEC) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // A file that is open for writing cannot be executed.
    File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_copy_is_executed_and_is_another_file() {
        let dir = tempfile::tempdir().unwrap();
        let program = Path::new("/bin/true");
        let copy = ReadOnlyProgram(copied(program, &dir.path().join("new")).unwrap().into());
        assert!(Command::new(copy.path()).status().unwrap().success());
        fs::set_permissions(copy.path(), Permissions::from_mode(0o555)).unwrap();
        assert_eq!(fs::read(copy.path()).unwrap(), fs::read(program).unwrap());
        assert_eq!(fs::read_dir(dir.path().join("new")).unwrap().count(), 0);
    }

    #[test]
    fn a_copy_is_made_where_it_can_be() {
        let dir = tempfile::tempdir().unwrap();
        let occupied = dir.path().join("occupied");
        fs::write(&occupied, "").unwrap();
        let missing = Path::new("/bin/no-such-program");
        let dirs = [occupied.clone(), dir.path().join("good")];
        assert!(ReadOnlyProgram::open(missing, &dirs).is_err());
        copied(Path::new("/bin/true"), &occupied).unwrap_err();
        copied(Path::new("/bin/true"), &dirs[1]).unwrap();
    }

    #[test]
    fn a_mount_is_executed_and_cannot_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("true");
        fs::copy("/bin/true", &program).unwrap();
        // Only root may mount.
        let Ok(mount) = mounted(&program) else {
            return;
        };
        let mount = ReadOnlyProgram(mount);
        assert!(Command::new(mount.path()).status().unwrap().success());
        let mode = Permissions::from_mode(0o4777);
        let error = fs::set_permissions(mount.path(), mode).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        assert!(File::options().append(true).open(mount.path()).is_err());
        let found = fs::metadata(&program).unwrap().permissions().mode();
        assert_eq!(found & 0o7000, 0);
    }
}
