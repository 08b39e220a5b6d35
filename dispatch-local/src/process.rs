//! One crunch-run worker by pidfd: a name that is never given to another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A worker process that was there when it was looked at.
#[derive(Debug)]
pub struct Worker {
    pid: u32,
    fd: OwnedFd,
}

impl Worker {
    /// The process `pid` if it is the one that started at `start_time` (clock ticks since boot, field 22 of
    /// `/proc/PID/stat`); none if that one is gone.
    pub fn open(pid: u32, start_time: u64) -> io::Result<Option<Self>> {
        let Some(name) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
            return Ok(None);
        };
        let fd = match pidfd_open(name, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        // Read while the pidfd holds the process: the number cannot have gone to another one in between.
        let same = procfs::process::Process::new(pid as i32)
            .and_then(|process| process.stat())
            .is_ok_and(|stat| stat.starttime == start_time && stat.state != 'Z');
        Ok(same.then_some(Self { pid, fd }))
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a signal; a process that is gone needs none.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A future that resolves when the process has ended.
    pub fn end(&self) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        let fd = self.fd.as_fd().try_clone_to_owned()?;
        // SAFETY: the descriptor is owned, and an OwnedFd names the same open one for as long as it lives.
        #[allow(unsafe_code, reason = "tokio has no safe way to wait for a descriptor")]
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
        Ok(async move {
            let _ = fd.readable().await;
        })
    }
}

/// The kernel's name of this boot: pids and start times of another boot mean nothing.
pub fn boot_id() -> io::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(text.trim().to_owned())
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
        let stat = procfs::process::Process::new(child.id() as i32)
            .and_then(|process| process.stat())
            .unwrap();
        assert!(
            Worker::open(child.id(), stat.starttime + 1)
                .unwrap()
                .is_none()
        );
        let worker = Worker::open(child.id(), stat.starttime).unwrap().unwrap();
        let end = worker.end().unwrap();
        worker.signal(Signal::TERM).unwrap();
        end.await;
        child.wait().unwrap();
        worker.signal(Signal::TERM).unwrap();
        assert!(Worker::open(child.id(), stat.starttime).unwrap().is_none());
    }
}
