//! Has an external runtime make the container, inside the keeper: writes the bundle and starts the holder.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Resource, getrlimit};

use super::holder::{HOLDER_ARGUMENT, Setup, Word};
use super::{Dialect, Program, look};
use crate::cgroup::Cgroup;
use crate::cgroup::enforce::Enforceable;
use crate::engine::kept::protocol::{Plan, send_stdio};
use crate::engine::kept::scene::{Made, Scene, runtime};
use crate::engine::kept::spec::{Facts, Unprivileged, describe};
use crate::engine::kept::{First, Said, groups, members};
use crate::engine::{ExitStatus, StartError};

/// How long killed processes may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(20);

pub fn build(
    program: &Program,
    plan: &Plan,
    mut scene: Scene,
    stdio: [OwnedFd; 3],
    made: &mut Made,
) -> Result<Box<dyn First>, StartError> {
    look::over(&scene)?;
    let nested = !plan.privileged && be_somebody(&mut scene, program.dialect);
    let bundle = plan.dir.join("bundle");
    fs::create_dir(&bundle).map_err(|e| runtime("its description", e))?;
    // The description holds the environment, with its tokens: it never reaches a disk.
    mount("tmpfs", &bundle, "tmpfs", MountFlags::NODEV, c"mode=700")
        .map_err(|e| runtime("a file system in memory", e))?;
    made.memory = Some(bundle.clone());

    let no_group = Cgroup::default();
    let groups = made.groups.as_ref();
    let group_path = groups.map(|_| groups::path_inside(&plan.leaf));
    let spec = describe(&Facts {
        rootfs: &scene.root,
        hostname: &scene.hostname,
        arguments: &scene.arguments,
        environment: &scene.environment,
        cwd: &scene.cwd,
        identity: &scene.identity,
        binds: &scene.binds,
        devices: &plan.gpus.devices,
        limits: &plan.limits,
        quota_above: groups.and_then(|g| g.quota_above),
        enforceable: groups.map_or(Enforceable::NOTHING, |g| g.enforceable),
        group: groups.map_or(&no_group, |g| &g.inside),
        group_path: group_path.as_deref(),
        hard_files: getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20),
        unprivileged: (!plan.privileged).then_some(Unprivileged {
            network: plan.network,
            nested,
        }),
    })
    .map_err(|e| runtime("its description", e))?;
    serde_json::to_vec(&spec)
        .map_err(io::Error::from)
        .and_then(|text| write_private(&bundle.join("config.json"), &text))
        .map_err(|e| runtime("its description", e))?;

    let setup = Setup {
        program: program.clone(),
        bundle,
        name: plan.name.clone(),
        privileged: plan.privileged,
    };
    Ok(Box::new(Held::begin(&setup, stdio)?))
}

/// Makes the image's user somebody who exists in a user namespace with one user. True if that takes
/// another one, inside the first.
fn be_somebody(scene: &mut Scene, dialect: Dialect) -> bool {
    scene.identity.groups.clear();
    let is_root = scene.identity.uid == 0 && scene.identity.gid == 0;
    match dialect {
        Dialect::Crun | Dialect::Other => !is_root,
        Dialect::Runc => {
            scene.identity.uid = 0;
            scene.identity.gid = 0;
            false
        }
    }
}

fn write_private(path: &Path, text: &[u8]) -> io::Result<()> {
    fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)?
        .write_all(text)
}

/// The container's first process, by way of its holder, which is a child of the keeper.
struct Held {
    holder: Child,
    pid: Pid,
    words: BufReader<UnixStream>,
    ended: bool,
}

impl Held {
    fn begin(setup: &Setup, stdio: [OwnedFd; 3]) -> Result<Self, StartError> {
        let spawn = || -> io::Result<(Child, UnixStream)> {
            let (mut ours, theirs) = UnixStream::pair()?;
            send_stdio(
                &ours,
                [stdio[0].as_fd(), stdio[1].as_fd(), stdio[2].as_fd()],
            )?;
            let mut setup = serde_json::to_vec(setup)?;
            setup.push(b'\n');
            ours.write_all(&setup)?;
            unshare(CloneFlags::CLONE_NEWPID)?;
            let holder = Command::new("/proc/self/exe")
                .arg(HOLDER_ARGUMENT)
                .env_clear()
                .stdin(OwnedFd::from(theirs))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()?;
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
        held.pid = members::children(held.holder.id())
            .first()
            .and_then(|pid| Pid::from_raw(*pid as i32))
            .ok_or_else(|| runtime("its first process", "it cannot be seen"))?;
        Ok(held)
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
                Some(Word::Ended(status)) => {
                    self.ended = true;
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
