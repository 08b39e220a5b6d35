//! Messages between crunch-run and the shim: one JSON value a line, over a socket pair.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use super::runtime::Runtime;
use crate::gpu::GpuAccess;
use crate::{Bind, Confinement, ContainerUsers, Exit, Limits, Network, StartError};
use node_cache::image::ImageConfig;

/// First argument of the shim. Its command line and environment have nothing else.
pub const SHIM_ARGUMENT: &str = "__keep-container";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    Create(Box<CreateSpec>),
    Start,
    Stop { grace_ms: u64 },
    Remove,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    Created {
        pid: u32,
        /// False where this user may not create control groups.
        has_group: bool,
        users: ContainerUsers,
    },
    Failed(StartError),
    Started,
    Exited(Exit),
    /// What could not be removed, as text.
    Removed {
        problems: Vec<String>,
    },
}

/// Everything the shim needs to create the container. No `Debug`: the environment may hold tokens.
#[derive(Serialize, Deserialize)]
pub struct CreateSpec {
    pub name: String,
    pub runtime: Runtime,
    /// False: in a user namespace.
    pub privileged: bool,
    /// The container of a privileged user gets users of its own, where the node can do that.
    pub user_namespace: bool,
    /// The container gets a control group in one that was delegated to this ordinary user.
    pub delegated: bool,
    /// Name of the control group, unique to the attempt.
    pub cgroup_name: String,
    pub image: ImageConfig,
    /// Lowest first.
    pub layers: Vec<PathBuf>,
    pub command: Vec<String>,
    pub cwd: Option<String>,
    pub environment: BTreeMap<String, String>,
    pub binds: Vec<Bind>,
    pub network: Network,
    pub limits: Limits,
    pub gpus: GpuAccess,
    pub confinement: Confinement,
    /// The shim's directory below the attempt's scratch directory; removed at the end.
    pub dir: PathBuf,
    /// Directory of the writable layer if the file system of `dir` does not support it.
    pub spare_dir: PathBuf,
    /// Directory of what is mounted for a container with users of its own.
    pub mounts_dir: PathBuf,
    /// State file of this container; removed last.
    pub state_file: PathBuf,
}

/// Whether something can be read from the file now, or its other end is closed.
pub fn is_readable(file: &impl AsFd) -> bool {
    is_readable_within(file, Duration::ZERO).unwrap_or(false)
}

/// Waits until something can be read from the file, or its other end is closed. False if that takes
/// longer than `timeout`.
pub fn is_readable_within(file: &impl AsFd, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    Ok(poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&timeout))? > 0)
}

/// Passes the container's stdin, stdout and stderr.
pub fn send_stdio(to: impl AsFd, stdio: [BorrowedFd<'_>; 3]) -> io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !ancillary.push(SendAncillaryMessage::ScmRights(&stdio)) {
        return Err(io::Error::other("no room for three file descriptors"));
    }
    sendmsg(
        to,
        &[IoSlice::new(b"\n")],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?;
    Ok(())
}

/// Takes them. The byte they travel with is an empty line.
pub fn receive_stdio(from: impl AsFd) -> io::Result<[OwnedFd; 3]> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8; 1];
    recvmsg(
        from,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let files: Vec<OwnedFd> = ancillary
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten()
        .collect();
    files
        .try_into()
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "no file descriptors came"))
}
