//! A file system with a fault, mounted over a directory. Needs root. The end of the value ends the
//! fault: the directory is there again.

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags};

/// What is wrong with the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountFault {
    /// Nothing more can be written. It has copies of the directory's files, without folders.
    Full,
    /// The directory as it is, read-only.
    ReadOnly,
    /// An empty directory, as below a file system that is not mounted.
    Empty,
    /// The server of the file system is gone: every call fails.
    Dead,
    /// The server of the file system does not answer: every call waits.
    Silent,
}

pub struct FaultyMount {
    dir: PathBuf,
    /// The connection of a server that does not answer.
    server: Option<File>,
}

impl FaultyMount {
    pub fn over(dir: &Path, fault: MountFault) -> Self {
        let mut server = None;
        match fault {
            MountFault::Full => mount_full(dir),
            MountFault::Empty => mount_tmpfs(dir),
            MountFault::ReadOnly => {
                rustix::mount::mount_bind(dir, dir).expect("a bind mount");
                let flags = MountFlags::BIND | MountFlags::RDONLY;
                rustix::mount::mount_remount(dir, flags, "").expect("read-only");
            }
            MountFault::Dead => drop(mount_without_answers(dir)),
            MountFault::Silent => server = Some(mount_without_answers(dir)),
        }
        let dir = dir.to_owned();
        Self { dir, server }
    }
}

fn mount_tmpfs(dir: &Path) {
    let facts = fs::metadata(dir).expect("the directory");
    let options = c"size=1m,mode=700";
    rustix::mount::mount("tmpfs", dir, "tmpfs", MountFlags::empty(), options).expect("a tmpfs");
    // It is its owner's, as what it hides.
    std::os::unix::fs::chown(dir, Some(facts.uid()), Some(facts.gid())).expect("its owner");
}

fn mount_full(dir: &Path) {
    let files = fs::read_dir(dir).expect("the directory").flatten();
    let files: Vec<_> = files
        .filter(|entry| entry.path().is_file())
        .map(|entry| (entry.path(), fs::read(entry.path()).expect("its file")))
        .collect();
    mount_tmpfs(dir);
    for (path, content) in files {
        fs::write(&path, content).expect("a copy");
        fs::set_permissions(&path, Permissions::from_mode(0o666)).expect("its mode");
    }
    let mut filler = File::create(dir.join("filler")).expect("a file");
    while filler.write_all(&[1; 4096]).is_ok() {}
}

/// Mounts a FUSE file system. Its calls wait for as long as the returned file is open.
fn mount_without_answers(dir: &Path) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = device.expect("/dev/fuse");
    let fd = device.as_raw_fd();
    let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
    let options = std::ffi::CString::new(options).expect("no zero byte");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("silent", dir, "fuse", flags, options.as_c_str()).expect("a mount");
    device
}

impl Drop for FaultyMount {
    fn drop(&mut self) {
        // Calls that wait for the server fail now.
        drop(self.server.take());
        let unmounted = rustix::mount::unmount(&self.dir, UnmountFlags::DETACH);
        if let Err(error) = unmounted {
            eprintln!("could not unmount {}: {error}", self.dir.display());
        }
    }
}
