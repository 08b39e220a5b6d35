//! The user namespace of one of root's containers. A helper process creates it, since a process
//! cannot leave one that it entered; the shim keeps it by its descriptor.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::SigSet;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CapabilitySets, capabilities, set_capabilities};

use super::id_map::IdMap;

/// First argument of the helper.
pub const USER_NAMESPACE_ARGUMENT: &str = "__user-namespace";

#[derive(Debug)]
pub struct UserNamespace {
    pub map: IdMap,
    file: File,
}

/// The helper: creates the namespace, says so by one byte, and waits until its input ends.
pub fn run() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    SigSet::empty().thread_set_mask()?;
    unshare(CloneFlags::CLONE_NEWUSER)?;
    rustix::io::write(rustix::stdio::stdout(), b"\n")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

impl UserNamespace {
    pub fn create(map: IdMap) -> io::Result<Self> {
        let mut helper = Command::new("/proc/self/exe")
            .arg(USER_NAMESPACE_ARGUMENT)
            .env_clear()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let created = Self::of(&mut helper, map);
        // It ends with its input.
        drop(helper.stdin.take());
        helper.wait()?;
        created
    }

    fn of(helper: &mut Child, map: IdMap) -> io::Result<Self> {
        let mut word = [0; 1];
        let output = helper.stdout.as_mut();
        output
            .ok_or(io::ErrorKind::BrokenPipe)?
            .read_exact(&mut word)
            .map_err(|_| io::Error::other("the kernel allows no user namespace"))?;
        let process = PathBuf::from(format!("/proc/{}", helper.id()));
        for name in ["uid_map", "gid_map"] {
            fs::write(process.join(name), map.text())?;
        }
        Ok(Self {
            map,
            file: File::open(process.join("ns/user"))?,
        })
    }

    /// A path of the namespace for this process and its children.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.file.as_raw_fd()).into()
    }
}

impl AsFd for UserNamespace {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// While it lives, files that this process makes belong to another user.
#[derive(Debug)]
pub struct OwnerOfNewFiles(CapabilitySets);

impl OwnerOfNewFiles {
    pub fn new(id: u32) -> io::Result<Self> {
        let guard = Self(capabilities(None)?);
        setfsgid(Gid::from_raw(id));
        setfsuid(Uid::from_raw(id));
        // The kernel takes those for files with the user (capabilities(7)).
        set_capabilities(None, guard.0)?;
        Ok(guard)
    }
}

impl Drop for OwnerOfNewFiles {
    fn drop(&mut self) {
        setfsuid(Uid::from_raw(0));
        setfsgid(Gid::from_raw(0));
        let _ = set_capabilities(None, self.0);
    }
}
