//! The keeper: a small single-threaded process that makes one container, watches it, and takes it
//! down when it is told to, or when crunch-run is gone, however that ended.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, setsid, umask};

use super::members::Members;
use super::protocol::{News, Order, Plan, Runtime, receive_stdio};
use super::scene::{self, Made};
use crate::cgroup::{Layout, SharedMemory};
use crate::engine::{Exit, ExitStatus, StartError, apptainer, builtin, oci};

/// How long killed processes may take to be gone. They take longer only when a file system hangs.
const KILL_PATIENCE: Duration = Duration::from_secs(20);
const REMOVE_PATIENCE: Duration = Duration::from_secs(5);
/// How often a container that is being stopped is looked at.
const STOP_LOOK: Duration = Duration::from_millis(20);
/// An order is small, except for one with a large environment.
const MOST_ORDER: usize = 16 << 20;

/// Runs until the container is removed.
pub fn keep() -> io::Result<()> {
    // Signals to crunch-run's process group are for crunch-run to understand.
    let _ = setsid();
    let mut blocked = SigSet::empty();
    for signal in [
        NixSignal::SIGTERM,
        NixSignal::SIGINT,
        NixSignal::SIGHUP,
        NixSignal::SIGQUIT,
        NixSignal::SIGUSR1,
        NixSignal::SIGUSR2,
    ] {
        blocked.add(signal);
    }
    blocked.thread_block()?;
    umask(rustix::fs::Mode::from_raw_mode(0o022));

    // The socket came as stdin; the container's processes must not inherit it.
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;

    let stdio = receive_stdio(&control)?;
    let mut control = Control {
        socket: UnixStream::from(control),
        unread: Vec::new(),
    };
    let Some(Order::Create(plan)) = control.next_order()? else {
        return Ok(());
    };
    let executor = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    // A container of root's has a control group of its own.
    let shared = match plan.privileged {
        true => None,
        false => SharedMemory::of_process(std::process::id(), executor),
    };
    let mut keeper = Keeper {
        plan: *plan,
        executor,
        shared,
        control,
        made: Made::default(),
        first: None,
        stop_by: None,
        told_exit: false,
    };
    let kept = keeper.run(stdio);
    // Whatever happened, nothing stays.
    let problems = keeper.take_down();
    if let Ok(true) = kept {
        keeper.tell(&News::Removed { problems });
    }
    kept.map(drop)
}

struct Control {
    socket: UnixStream,
    unread: Vec<u8>,
}

impl Control {
    /// The next order, or `None` when crunch-run is gone.
    fn next_order(&mut self) -> io::Result<Option<Order>> {
        loop {
            if let Some(order) = self.buffered_order()? {
                return Ok(Some(order));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }

    fn buffered_order(&mut self) -> io::Result<Option<Order>> {
        while let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if line.len() > 1 {
                return Ok(Some(serde_json::from_slice(&line)?));
            }
        }
        Ok(None)
    }

    /// False at the end.
    fn read_more(&mut self) -> io::Result<bool> {
        if self.unread.len() > MOST_ORDER {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "an order is too long",
            ));
        }
        let mut buffer = [0u8; 16 << 10];
        match self.socket.read(&mut buffer) {
            Ok(0) => Ok(false),
            Ok(n) => {
                self.unread.extend_from_slice(&buffer[..n]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// The container's first process, however it was made.
pub trait First {
    /// As the keeper sees it.
    fn pid(&self) -> Pid;

    /// When one of these can be read, there may be something to hear.
    fn files(&self) -> Vec<BorrowedFd<'_>>;

    fn start(&mut self) -> Result<(), StartError>;

    /// What happened since. Never waits.
    fn hear(&mut self) -> Vec<Said>;

    /// Highest resident memory of one process of the container, in bytes, once it has ended.
    fn largest_process(&self) -> Option<u64> {
        None
    }

    /// Kills it and, with its pid namespace, everything in the container.
    fn kill(&mut self);
}

/// What is heard of the first process.
pub enum Said {
    Failed(StartError),
    Started,
    Ended(ExitStatus),
}

struct Keeper {
    plan: Plan,
    /// The crunch-run that started this process.
    executor: u32,
    /// The control group that the container shares with its job.
    shared: Option<SharedMemory>,
    control: Control,
    made: Made,
    first: Option<Box<dyn First>>,
    stop_by: Option<Instant>,
    told_exit: bool,
}

impl Keeper {
    /// True if crunch-run asked for the removal and waits for it.
    fn run(&mut self, stdio: [OwnedFd; 3]) -> io::Result<bool> {
        match self.build(stdio) {
            Ok(first) => {
                let pid = first.pid().as_raw_nonzero().get() as u32;
                self.first = Some(first);
                let group = self.made.groups.as_ref().map(|g| g.outside.clone());
                self.tell(&News::Created { pid, group });
            }
            Err(error) => self.tell(&News::Failed(error)),
        }
        self.watch()
    }

    fn build(&mut self, stdio: [OwnedFd; 3]) -> Result<Box<dyn First>, StartError> {
        let scene = scene::set(&self.plan, &mut self.made)?;
        match &self.plan.runtime {
            Runtime::Library => builtin::build(&self.plan, scene, stdio, &self.made),
            Runtime::Oci(runtime) => oci::build(runtime, &self.plan, scene, stdio, &mut self.made),
            Runtime::Apptainer(program) => {
                apptainer::build(program, &self.plan, &scene, stdio, &self.made)
            }
        }
    }

    fn watch(&mut self) -> io::Result<bool> {
        loop {
            while let Some(order) = self.control.buffered_order()? {
                if matches!(order, Order::Remove) {
                    return Ok(true);
                }
                self.obey(order);
            }
            let ordered = self.wait_for_something()?;
            self.hear();
            self.go_on_stopping();
            if ordered && !self.control.read_more()? {
                return Ok(false);
            }
        }
    }

    /// True if there is an order, or the end of orders.
    fn wait_for_something(&self) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(&self.control.socket, PollFlags::IN)];
        let running = self.first.as_ref().filter(|_| !self.told_exit);
        let files = running.map(|first| first.files()).unwrap_or_default();
        fds.extend(files.iter().map(|file| PollFd::new(file, PollFlags::IN)));
        let timeout = self.stop_by.filter(|_| running.is_some()).map(|by| {
            let left = by.saturating_duration_since(Instant::now()).min(STOP_LOOK);
            Timespec {
                tv_sec: left.as_secs() as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            }
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(!fds[0].revents().is_empty())
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start => self.start(),
            Order::Stop { grace_ms } => self.stop(Duration::from_millis(grace_ms)),
            // The first was obeyed; the last is seen to before.
            Order::Create(_) | Order::Remove => {}
        }
    }

    fn start(&mut self) {
        if let Some(first) = &mut self.first
            && let Err(error) = first.start()
        {
            self.tell(&News::Failed(error));
        }
    }

    fn hear(&mut self) {
        let Some(first) = self.first.as_mut().filter(|_| !self.told_exit) else {
            return;
        };
        for said in first.hear() {
            match said {
                Said::Failed(error) => self.tell(&News::Failed(error)),
                Said::Started => self.tell(&News::Started),
                Said::Ended(status) => self.hear_exit(status),
            }
        }
    }

    fn hear_exit(&mut self, status: ExitStatus) {
        self.told_exit = true;
        let group = self.made.groups.as_ref().map(|g| &g.inside);
        let oom_kills = group.and_then(|g| g.oom_kills()).unwrap_or(0);
        let exit = Exit {
            status,
            oom_killed: oom_kills > 0,
            oom_kills,
            peak_memory: group.and_then(|g| g.memory_peak()),
            job_group: None,
            largest_process: self
                .first
                .as_ref()
                .and_then(|first| first.largest_process()),
            processes: group.map(|g| g.process_limit()).unwrap_or_default(),
        };
        let shared = self.shared.as_ref();
        let exit = exit.with_job_group(shared.and_then(|shared| shared.kills(self.executor)));
        self.tell(&News::Exited(exit));
    }

    fn members(&self) -> Option<Members<'_>> {
        let first = self.first.as_ref()?;
        Some(match &self.made.groups {
            Some(groups) => Members::Group(&groups.inside),
            None => Members::Tree(first.pid()),
        })
    }

    fn stop(&mut self, grace: Duration) {
        if self.told_exit {
            return;
        }
        let by = Instant::now() + grace;
        // A second order can only make it sooner.
        self.stop_by = Some(self.stop_by.map_or(by, |earlier| earlier.min(by)));
        if let Some(members) = self.members()
            && !grace.is_zero()
        {
            members.ask(Signal::TERM, |pid| self.plan.runtime.is_own(pid));
        }
        self.go_on_stopping();
    }

    fn go_on_stopping(&mut self) {
        let (Some(by), Some(members), false) = (self.stop_by, self.members(), self.told_exit)
        else {
            return;
        };
        let Some(pid) = self.first.as_ref().map(|first| first.pid()) else {
            return;
        };
        let alone = || {
            members
                .processes()
                .iter()
                .all(|other| *other as i32 == pid.as_raw_nonzero().get())
        };
        // The first process of a pid namespace never gets a signal it has no handler for, so
        // waiting for it would be in vain. One that only holds the command is about to tell how that ended.
        let holds = self.plan.runtime.is_own(pid.as_raw_nonzero().get() as u32);
        let in_vain = || !holds && alone() && !handles_term(pid);
        if Instant::now() >= by || in_vain() {
            members.signal(Signal::KILL);
            // The kernel takes the rest of the pid namespace along.
            if let Some(first) = &mut self.first {
                first.kill();
            }
        }
    }

    fn tell(&mut self, news: &News) {
        let mut line = serde_json::to_vec(news).unwrap_or_default();
        line.push(b'\n');
        // If crunch-run is gone, the next look at the socket says so.
        let _ = self.control.socket.write_all(&line);
    }

    /// Removes everything there is of the container; the answer is what could not be removed.
    fn take_down(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(first) = &mut self.first
            && !self.told_exit
        {
            first.kill();
        }
        if let Some(groups) = &self.made.groups {
            let ended = groups
                .inside
                .kill(KILL_PATIENCE)
                .and_then(|()| groups.inside.remove(REMOVE_PATIENCE));
            if let Err(error) = ended {
                problems.push(error.to_string());
            }
        }
        // Hardly ever there, and then empty by now.
        if let Ok(layout) = Layout::of_this_process() {
            let _ = layout.named_group(&self.plan.leaf).remove(REMOVE_PATIENCE);
        }
        if let Some(memory) = &self.made.memory {
            // It goes with this process at the latest.
            let _ = unmount(memory, UnmountFlags::DETACH);
        }
        if let Some(rootfs) = &self.made.rootfs {
            if let Err(error) = rootfs.unmount() {
                problems.push(format!("{} stays mounted: {error}", rootfs.path.display()));
            }
            if let Some(dir) = &rootfs.elsewhere {
                problems.extend(remove_dir(dir));
            }
        }
        problems.extend(remove_dir(&self.plan.dir));
        if problems.is_empty() {
            let _ = fs::remove_file(&self.plan.record);
        }
        problems
    }
}

fn remove_dir(dir: &std::path::Path) -> Option<String> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Some(format!(
            "directory {} cannot be removed: {error}",
            dir.display()
        )),
        _ => None,
    }
}

/// By the mask of caught signals in /proc/PID/status.
fn handles_term(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    let mask = status.ok().and_then(|text| {
        let mask = text.lines().find_map(|l| l.strip_prefix("SigCgt:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    mask.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) != 0)
}
