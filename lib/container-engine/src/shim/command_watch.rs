//! Notices whether a program that runs a container from beginning to end has started the command.
//!
//! Input: the file of the command's program, and the process of the launching program. Output: an
//! error if the launching program failed before. Its exit code alone does not tell: Apptainer ends
//! with 255 if it cannot make the container, and a command may end with 255, too.
//!
//! The kernel opens the file when the command is executed, and inotify(7) reports that.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify;
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus, pidfd_open, waitid};

/// Exit code of Apptainer and Singularity after an error of their own.
const LAUNCH_FAILED: i32 = 255;
/// Time after which the command counts as started. The launching program may take long to set up a
/// container, and other ends are its command's.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A watch on the program of a command that was not started yet.
pub struct CommandWatch(OwnedFd);

impl CommandWatch {
    pub fn new(file: &Path) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watch = inotify::init(flags)?;
        inotify::add_watch(&watch, file, inotify::WatchFlags::OPEN)?;
        Ok(Self(watch))
    }

    /// Waits until the command starts, the launching process ends, or time is up. Returns an error
    /// if that process certainly ended before, with its own exit code for errors. A fault of the
    /// watch, or a kernel or filter that does not allow it, is no sign that nothing runs.
    pub fn confirm_start(self, launcher: Pid) -> io::Result<()> {
        match self.launch_failed(launcher) {
            Ok(true) => Err(io::Error::other(
                "the engine could not make the container on this node (exit code 255); its message is in stderr.txt",
            )),
            Ok(false) | Err(_) => Ok(()),
        }
    }

    fn launch_failed(&self, launcher: Pid) -> io::Result<bool> {
        let process = pidfd_open(launcher, PidfdFlags::empty())?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut files = [
                PollFd::new(&self.0, PollFlags::IN),
                PollFd::new(&process, PollFlags::IN),
            ];
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            match poll(&mut files, Some(&timeout)) {
                Ok(0) => return Ok(false),
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let has_ended = files[1].revents().contains(PollFlags::IN);
            if self.was_opened() {
                return Ok(false);
            }
            if has_ended {
                return Ok(exit_code(launcher)? == Some(LAUNCH_FAILED));
            }
        }
    }

    fn was_opened(&self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); 512];
        let mut events = inotify::Reader::new(&self.0, &mut buffer);
        events.next().is_ok()
    }
}

/// The exit code of a child that has ended. It can still be waited for.
fn exit_code(child: Pid) -> io::Result<Option<i32>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    let status: Option<WaitIdStatus> = waitid(WaitId::Pid(child), options)?;
    Ok(status.and_then(|status| status.exit_status()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// Runs `launcher` in a shell, in a directory with the script `command`.
    fn confirm(launcher: &str) -> Result<(), String> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("command");
        fs::write(&file, "#!/bin/sh\nexit 255\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        let watch = CommandWatch::new(&file).unwrap();
        let mut shell = Command::new("/bin/sh");
        let mut child = shell
            .args(["-c", launcher])
            .current_dir(dir.path())
            .spawn()
            .unwrap();
        let confirmed = watch.confirm_start(Pid::from_child(&child));
        // Its status is not lost.
        child.wait().unwrap();
        confirmed.map_err(|error| error.to_string())
    }

    /// A kernel without pidfds, or a filter, answers with an error like this.
    #[test]
    fn a_watch_that_fails_is_no_sign_that_nothing_runs() {
        let watch = CommandWatch::new(Path::new("/bin/sh")).unwrap();
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        assert!(pidfd_open(nobody, PidfdFlags::empty()).is_err());
        assert!(watch.confirm_start(nobody).is_ok());
    }

    #[test]
    fn only_a_launcher_that_fails_by_itself_did_not_start_the_command() {
        for (launcher, is_started) in [
            ("exec ./command", true),
            ("./command; exit 255", true),
            ("test -x ./command; exit 255", false),
            ("exit 1", true),
            ("kill -9 $$", true),
        ] {
            let confirmed = confirm(launcher);
            assert_eq!(confirmed.is_ok(), is_started, "{launcher}: {confirmed:?}");
        }
    }
}
