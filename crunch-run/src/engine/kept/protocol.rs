//! What crunch-run and the keeper say to each other: one JSON value a line, over a socket pair.

use std::collections::BTreeMap;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};

use crate::engine::gpu::GpuAccess;
use crate::engine::{Bind, Exit, Limits, Network, StartError};
use crate::image::ImageConfig;

/// The keeper's first argument. Nothing else is ever in its command line, or in its environment.
pub const KEEPER_ARGUMENT: &str = "__keep-container";

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    Create(Box<Plan>),
    Start,
    Stop { grace_ms: u64 },
    Remove,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum News {
    Created {
        pid: u32,
        /// Absent where this user may make no control group.
        group: Option<crate::cgroup::Cgroup>,
    },
    Failed(StartError),
    Started,
    Exited(Exit),
    /// What could not be removed, in words.
    Removed {
        problems: Vec<String>,
    },
}

/// Everything the keeper needs to know. No `Debug`: the environment may hold tokens.
#[derive(Serialize, Deserialize)]
pub struct Plan {
    pub name: String,
    pub runtime: Runtime,
    /// Without: in a user namespace and without control groups.
    pub privileged: bool,
    /// The name of the control group; no other attempt has the same.
    pub leaf: String,
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
    /// The keeper's own directory, below the attempt's scratch directory; removed in the end.
    pub dir: PathBuf,
    /// Where the writable layer goes if the file system of `dir` cannot carry it.
    pub spare_dir: PathBuf,
    /// The note of this container's existence; removed last.
    pub record: PathBuf,
}

/// What makes the container of the prepared files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Runtime {
    /// libcontainer, in the keeper itself.
    Library,
    /// An OCI runtime by command.
    Oci(crate::engine::oci::Program),
    /// Apptainer or Singularity by command.
    Apptainer(crate::engine::apptainer::Program),
}

impl Runtime {
    /// Whether a process of the container belongs to what runs it, and not to its command.
    pub fn is_own(&self, pid: u32) -> bool {
        match self {
            Self::Library | Self::Oci(_) => false,
            Self::Apptainer(_) => crate::engine::apptainer::is_own(pid),
        }
    }
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
