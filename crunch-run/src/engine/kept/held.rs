//! The container's first process by way of its holder, which is a child of the keeper.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;

use super::holder::{HOLDER_ARGUMENT, Setup, Word};
use super::protocol::send_stdio;
use super::scene::runtime;
use super::{First, Said, members};
use crate::engine::{ExitStatus, StartError};

/// How long killed processes may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(20);

pub struct Held {
    holder: Child,
    pid: Pid,
    words: BufReader<UnixStream>,
    ended: bool,
    largest_process: Option<u64>,
}

impl Held {
    pub fn begin(setup: &Setup, stdio: [OwnedFd; 3]) -> Result<Self, StartError> {
        let spawn = || -> io::Result<(Child, UnixStream)> {
            let (mut ours, theirs) = UnixStream::pair()?;
            send_stdio(
                &ours,
                [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()],
            )?;
            let mut setup = serde_json::to_vec(setup)?;
            setup.push(b'\n');
            unshare(CloneFlags::CLONE_NEWPID)?;
            let holder = Command::new("/proc/self/exe")
                .arg(HOLDER_ARGUMENT)
                .env_clear()
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
            // Only now, as there may be more of it than a socket holds.
            ours.write_all(&setup)?;
            Ok((holder, ours))
        };
        let (holder, words) = spawn().map_err(|e| runtime("its holder", e))?;
        // The readers of the container's output see its end only when nobody else has it open.
        drop(stdio);
        let mut held = Self {
            // Until it is known, so that killing it does no harm.
            pid: Pid::from_child(&holder),
            holder,
            words: BufReader::new(words),
            ended: false,
            largest_process: None,
        };
        match held.word() {
            Some(Word::Created) => {}
            Some(Word::Failed(reason)) => return Err(StartError::Runtime { reason }),
            _ => {
                return Err(StartError::Runtime {
                    reason: "the process it was to live under ended early".to_owned(),
                });
            }
        }
        // Where the container is made and started at once, its holder stands for it.
        if let Some(pid) = members::children(held.holder.id()).first()
            && let Some(pid) = Pid::from_raw(*pid as i32)
        {
            held.pid = pid;
        }
        Ok(held)
    }

    pub fn holder(&self) -> Pid {
        Pid::from_child(&self.holder)
    }

    /// The next thing the holder says; `None` when it is gone.
    fn word(&mut self) -> Option<Word> {
        let mut line = String::new();
        self.words.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    fn has_word(&self) -> bool {
        !self.words.buffer().is_empty() || can_read(self.words.get_ref(), Duration::ZERO)
    }
}

impl First for Held {
    fn pid(&self) -> Pid {
        self.pid
    }

    fn files(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.words.get_ref().as_fd()]
    }

    fn start(&mut self) -> Result<(), StartError> {
        self.words
            .get_mut()
            .write_all(b"start\n")
            .map_err(|error| StartError::Runtime {
                reason: format!("the process it lives under does not answer ({error})"),
            })
    }

    fn hear(&mut self) -> Vec<Said> {
        let mut said = Vec::new();
        while !self.ended && self.has_word() {
            said.extend(match self.word() {
                Some(Word::Created) => None,
                Some(Word::Started) => Some(Said::Started),
                Some(Word::Failed(reason)) => Some(Said::Failed(StartError::Runtime { reason })),
                Some(Word::Ended {
                    status,
                    largest_process,
                }) => {
                    self.ended = true;
                    self.largest_process = largest_process;
                    Some(Said::Ended(status))
                }
                None => {
                    self.ended = true;
                    // Killed, and everything in the container with it.
                    Some(Said::Ended(ExitStatus::Signal(libc::SIGKILL)))
                }
            });
        }
        said
    }

    fn largest_process(&self) -> Option<u64> {
        self.largest_process
    }

    fn kill(&mut self) {
        // Its end is that of its pid namespace, complete when it can be waited for.
        let _ = self.holder.kill();
        let deadline = Instant::now() + KILL_PATIENCE;
        let process = rustix::process::pidfd_open(
            Pid::from_child(&self.holder),
            rustix::process::PidfdFlags::empty(),
        );
        if let Ok(process) = process
            && can_read(&process, deadline.saturating_duration_since(Instant::now()))
        {
            let _ = self.holder.wait();
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.kill();
    }
}

fn can_read(file: &impl AsFd, patience: Duration) -> bool {
    let patience = Timespec {
        tv_sec: patience.as_secs() as i64,
        tv_nsec: i64::from(patience.subsec_nanos()),
    };
    poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&patience)).is_ok_and(|ready| ready > 0)
}
