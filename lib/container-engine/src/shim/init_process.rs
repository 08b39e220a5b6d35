//! The container's init process as the shim drives it: start, events, kill. Each engine has an
//! implementation of its own.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::process::Pid;

use super::protocol::CreateSpec;
use super::sandbox::{CreatedResources, Sandbox};
use crate::{ExitStatus, StartError};

/// Creates the init process, inside the sandbox and with these three files, without starting the
/// command.
pub type BuildInit = fn(
    &CreateSpec,
    Sandbox,
    [OwnedFd; 3],
    &mut CreatedResources,
) -> Result<Box<dyn InitProcess>, StartError>;

/// The container's init process.
pub trait InitProcess {
    /// The pid in the shim's pid namespace.
    fn pid(&self) -> Pid;

    /// Files of which one becomes readable when `poll_events` has something to return.
    fn files(&self) -> Vec<BorrowedFd<'_>>;

    fn start(&mut self) -> Result<(), StartError>;

    /// Events since the last call. Never blocks.
    fn poll_events(&mut self) -> Vec<InitEvent>;

    /// Highest resident memory of one process of the container, in bytes. Known only after the end.
    fn largest_process(&self) -> Option<u64> {
        None
    }

    /// Kills it and, with its pid namespace, every process of the container.
    fn kill(&mut self);
}

/// A change of the init process.
pub enum InitEvent {
    Failed(StartError),
    Started,
    Ended(ExitStatus),
}
