//! The init process that libcontainer created: a child of the shim.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use libcontainer::container::Container;

use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, waitpid};

use crate::error::cannot_create;
use crate::shim::protocol::is_readable;
use crate::shim::{InitEvent, InitProcess};
use crate::{ExitStatus, StartError};

pub struct BuiltinInit {
    pid: Pid,
    pidfd: OwnedFd,
    /// Pipe with the launcher's error; closed without one when the command has started.
    report: Option<OwnedFd>,
    container: Container,
}

impl BuiltinInit {
    pub fn new(container: Container, report: OwnedFd) -> Result<Self, StartError> {
        let pid = container
            .pid()
            .and_then(|pid| Pid::from_raw(pid.as_raw()))
            .ok_or_else(|| cannot_create("its first process", "it has no number"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())
            .map_err(|e| cannot_create("a handle of its first process", e))?;
        Ok(Self {
            pid,
            pidfd,
            report: Some(report),
            container,
        })
    }

    fn exit(&self) -> Option<ExitStatus> {
        match waitpid(Some(self.pid), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => Some(ExitStatus::of(status)),
            Ok(None) | Err(rustix::io::Errno::INTR) => None,
            Err(_) => Some(ExitStatus::Code(255)),
        }
    }
}

impl InitProcess for BuiltinInit {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        let report = self.report.as_ref().map(AsFd::as_fd);
        std::iter::once(self.pidfd.as_fd()).chain(report).collect()
    }

    fn start(&mut self) -> Result<(), StartError> {
        self.container.start().map_err(|error| {
            StartError::runtime(format!("the init process does not answer ({error})"))
        })
    }

    fn poll_events(&mut self) -> Vec<InitEvent> {
        let mut events = Vec::new();
        if let Some(report) = self.report.take_if(|report| is_readable(report)) {
            events.push(match read_report(&report) {
                Some(error) => InitEvent::Failed(error),
                None => InitEvent::Started,
            });
        }
        events.extend(self.exit().map(InitEvent::Ended));
        events
    }

    fn kill(&mut self) {
        // A process that has ended needs no signal.
        let _ = kill_process(self.pid, Signal::KILL);
    }
}

/// The launcher's error, if there is one.
pub fn read_report(report: &impl AsFd) -> Option<StartError> {
    let mut text = Vec::new();
    let mut buffer = [0u8; 4096];
    while let Ok(n) = rustix::io::read(report, &mut buffer) {
        if n == 0 {
            break;
        }
        text.extend_from_slice(&buffer[..n]);
    }
    serde_json::from_slice(&text).ok()
}
