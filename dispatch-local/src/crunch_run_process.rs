//! A crunch-run worker, identified by a pidfd, which never refers to another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A worker process that was alive when it was opened.
#[derive(Debug)]
pub struct CrunchRunProcess {
    pid: u32,
    fd: OwnedFd,
}

impl CrunchRunProcess {
    /// Opens process `pid` if it started at `start_time` (clock ticks since boot, field 22 of
    /// `/proc/PID/stat`). None if that process is gone.
    pub fn open(pid: u32, start_time: u64) -> io::Result<Option<Self>> {
        let Some(name) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        let fd = match pidfd_open(name, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // The pidfd pins the process, so the pid cannot belong to another one here.
        let same = host_state::live_start_time(pid) == Some(start_time);
        Ok(same.then_some(Self { pid, fd }))
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; succeeds if the process is gone.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A future that resolves when the process has exited.
    pub fn exited(&self) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is owned, and an OwnedFd names the same open one for as long as it
        // lives.
        #[allow(unsafe_code, reason = "tokio has no safe way to wait for a descriptor")]
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(async move {
            let _ = fd.readable().await;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_worker_is_its_start_time_too_and_its_end_is_heard() {
        let mut child = std::process::Command::new("sleep")
            .arg("1000")
            .spawn()
            .unwrap();
        let start_time = host_state::start_time(child.id()).unwrap();
        let open = |start_time| CrunchRunProcess::open(child.id(), start_time).unwrap();
        assert!(open(start_time + 1).is_none());
        let worker = open(start_time).unwrap();
        let end = worker.exited().unwrap();
        worker.signal(Signal::TERM).unwrap();
        end.await;
        child.wait().unwrap();
        worker.signal(Signal::TERM).unwrap();
        assert!(
            CrunchRunProcess::open(child.id(), start_time)
                .unwrap()
                .is_none()
        );
    }
}
