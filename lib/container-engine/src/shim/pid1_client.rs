//! The init process of a container behind pid 1 of its namespace, which is a child of the shim.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::pid1::{PID1_ARGUMENT, Pid1Config, Pid1Message};
use super::protocol::{is_readable, is_readable_within, send_stdio};
use super::{InitEvent, InitProcess, processes};
use crate::error::cannot_create;
use crate::{ExitStatus, StartError};
use cgroup::Cgroup;

/// Time limit for killed processes to be gone.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

pub struct Pid1Client {
    pid1: Child,
    pid: Pid,
    messages: BufReader<UnixStream>,
    ended: bool,
    largest_process: Option<u64>,
}

impl Pid1Client {
    /// Starts pid 1, which is in `group` before it does anything.
    pub fn spawn(
        config: &Pid1Config,
        stdio: [OwnedFd; 3],
        group: Option<&Cgroup>,
    ) -> Result<Self, StartError> {
        let spawn = || -> io::Result<(Child, UnixStream)> {
            let (mut ours, theirs) = UnixStream::pair()?;
            send_stdio(
                &ours,
                [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()],
            )?;
            let mut config = serde_json::to_vec(config)?;
            config.push(b'\n');
            unshare(CloneFlags::CLONE_NEWPID)?;
            let mut pid1 = Command::new("/proc/self/exe")
                .arg(PID1_ARGUMENT)
                .env_clear()
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            if let Some(group) = group
                && let Err(error) = group.enter(Pid::from_child(&pid1))
            {
                let _ = pid1.kill().and_then(|()| pid1.wait());
                return Err(error);
            }
            // Sent after the start, because it may exceed the socket's buffer.
            ours.write_all(&config)?;
            Ok((pid1, ours))
        };
        let (pid1, messages) = spawn().map_err(|e| cannot_create("pid 1 of its namespace", e))?;
        // Readers of the container's output see its end only when all other copies are closed.
        drop(stdio);
        let mut client = Self {
            // Replaced below; until then, killing it is harmless.
            pid: Pid::from_child(&pid1),
            pid1,
            messages: BufReader::new(messages),
            ended: false,
            largest_process: None,
        };
        match client.next_message() {
            Some(Pid1Message::Created) => {}
            Some(Pid1Message::Failed(reason)) => return Err(StartError::Runtime { reason }),
            _ => {
                return Err(StartError::runtime("pid 1 of its namespace ended early"));
            }
        }
        // If the container is created and started in one step, pid 1 represents it.
        if let Some(pid) = processes::children(client.pid1.id()).first()
            && let Some(pid) = Pid::from_raw(*pid as i32)
        {
            client.pid = pid;
        }
        Ok(client)
    }

    /// The next message of pid 1; `None` when it is gone.
    fn next_message(&mut self) -> Option<Pid1Message> {
        let mut line = String::new();
        self.messages.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    fn has_message(&self) -> bool {
        !self.messages.buffer().is_empty() || is_readable(self.messages.get_ref())
    }
}

impl InitProcess for Pid1Client {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.messages.get_ref().as_fd()]
    }

    fn start(&mut self) -> Result<(), StartError> {
        self.messages
            .get_mut()
            .write_all(b"start\n")
            .map_err(|error| {
                StartError::runtime(format!("pid 1 of its namespace does not answer ({error})"))
            })
    }

    fn poll_events(&mut self) -> Vec<InitEvent> {
        let mut events = Vec::new();
        while !self.ended && self.has_message() {
            events.extend(match self.next_message() {
                Some(Pid1Message::Created) => None,
                Some(Pid1Message::Started) => Some(InitEvent::Started),
                Some(Pid1Message::Failed(reason)) => {
                    Some(InitEvent::Failed(StartError::Runtime { reason }))
                }
                Some(Pid1Message::Ended {
                    status,
                    largest_process,
                }) => {
                    self.ended = true;
                    self.largest_process = largest_process;
                    Some(InitEvent::Ended(status))
                }
                None => {
                    self.ended = true;
                    // Pid 1 was killed, and everything in the container with it.
                    Some(InitEvent::Ended(ExitStatus::Signal(libc::SIGKILL)))
                }
            });
        }
        events
    }

    fn largest_process(&self) -> Option<u64> {
        self.largest_process
    }

    fn kill(&mut self) {
        // The whole namespace ends with pid 1; that is complete once pid 1 can be waited for.
        let _ = self.pid1.kill();
        if let Ok(process) = pidfd_open(Pid::from_child(&self.pid1), PidfdFlags::empty())
            && is_readable_within(&process, KILL_TIMEOUT).unwrap_or(false)
        {
            let _ = self.pid1.wait();
        }
    }
}

impl Drop for Pid1Client {
    fn drop(&mut self) {
        self.kill();
    }
}
