//! The shim process: creates one container, watches it, and removes it on request or when
//! crunch-run is gone for any reason.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use host_state::file::remove_tree;
use host_state::trash;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, setsid, umask};

use super::cgroups;
use super::init_process::{BuildInit, InitEvent, InitProcess};
use super::processes::ContainerProcesses;
use super::protocol::{CreateSpec, Event, Request, receive_stdio};
use super::sandbox::{self, CreatedResources};
use crate::error::cannot_create;
use crate::{Exit, ExitStatus, StartError};
use cgroup::{Layout, SharedMemory};

/// Time limit for killed processes to end. Only a hanging file system takes longer.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);
const REMOVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval between checks of a container that is being stopped.
const STOP_POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum size of a request. Only a large environment makes a request large.
const MAX_REQUEST_BYTES: usize = 16 << 20;

/// Runs until the container is removed.
pub fn run(build_init: BuildInit) -> io::Result<()> {
    // crunch-run handles the signals of its process group; the shim leaves the group.
    let _ = setsid();
    let blocked: SigSet = [
        NixSignal::SIGTERM,
        NixSignal::SIGINT,
        NixSignal::SIGHUP,
        NixSignal::SIGQUIT,
        NixSignal::SIGUSR1,
        NixSignal::SIGUSR2,
    ]
    .into_iter()
    .collect();
    blocked.thread_block()?;
    umask(rustix::fs::Mode::from_raw_mode(0o022));

    // The socket is passed as stdin; the container's processes must not inherit it.
    let control = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = fs::File::options()
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
    let Some(Request::Create(spec)) = control.next_request()? else {
        return Ok(());
    };
    let executor = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get() as u32);
    let shared = match spec.privileged || spec.delegated {
        true => None,
        false => SharedMemory::of_process(std::process::id(), executor),
    };
    let mut shim = Shim {
        spec: *spec,
        build_init,
        executor,
        shared,
        control,
        created: CreatedResources::default(),
        init: None,
        stop_by: None,
        exit_reported: false,
    };
    let outcome = shim.run(stdio);
    // Everything is removed after errors, too.
    let problems = shim.tear_down();
    if let Ok(true) = outcome {
        shim.send(&Event::Removed { problems });
    }
    outcome.map(drop)
}

struct Control {
    socket: UnixStream,
    unread: Vec<u8>,
}

impl Control {
    /// The next request, or `None` when crunch-run is gone.
    fn next_request(&mut self) -> io::Result<Option<Request>> {
        loop {
            if let Some(request) = self.buffered_request()? {
                return Ok(Some(request));
            }
            if !self.read_more()? {
                return Ok(None);
            }
        }
    }

    fn buffered_request(&mut self) -> io::Result<Option<Request>> {
        while let Some(end) = self.unread.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.unread.drain(..=end).collect();
            if line.len() > 1 {
                return Ok(Some(serde_json::from_slice(&line)?));
            }
        }
        Ok(None)
    }

    /// False at the end of the stream.
    fn read_more(&mut self) -> io::Result<bool> {
        if self.unread.len() > MAX_REQUEST_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a request is too long",
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

struct Shim {
    build_init: BuildInit,
    spec: CreateSpec,
    /// The crunch-run that started this process.
    executor: u32,
    /// The control group that the container shares with its job, unless it has one of its own.
    shared: Option<SharedMemory>,
    control: Control,
    created: CreatedResources,
    init: Option<Box<dyn InitProcess>>,
    stop_by: Option<Instant>,
    exit_reported: bool,
}

/// Time to wait for the end of a container that was asked to stop, and is killed at `by`. Never 0:
/// the end of one that was killed takes a moment, too.
fn wait_while_stopping(by: Instant, now: Instant) -> Duration {
    match by.saturating_duration_since(now) {
        Duration::ZERO => STOP_POLL_INTERVAL,
        left => left.min(STOP_POLL_INTERVAL),
    }
}

impl Shim {
    /// True if crunch-run requested the removal and waits for it.
    fn run(&mut self, stdio: [OwnedFd; 3]) -> io::Result<bool> {
        match self.build(stdio) {
            Ok(init) => {
                let pid = init.pid().as_raw_nonzero().get() as u32;
                self.init = Some(init);
                let has_group = self.created.groups.is_some();
                let users = self.created.users.clone();
                self.send(&Event::Created {
                    pid,
                    has_group,
                    users,
                });
            }
            Err(error) => self.send(&Event::Failed(error)),
        }
        self.watch()
    }

    fn build(&mut self, stdio: [OwnedFd; 3]) -> Result<Box<dyn InitProcess>, StartError> {
        let sandbox = sandbox::create(&self.spec, &mut self.created)?;
        sandbox
            .give_pipes(&stdio)
            .map_err(|e| cannot_create("the owner of its streams", e))?;
        let init = (self.build_init)(&self.spec, sandbox, stdio, &mut self.created)?;
        if let Some(groups) = &self.created.groups {
            cgroups::deny_tun(groups).map_err(|e| cannot_create("its list of devices", e))?;
        }
        Ok(init)
    }

    fn watch(&mut self) -> io::Result<bool> {
        loop {
            while let Some(request) = self.control.buffered_request()? {
                if matches!(request, Request::Remove) {
                    return Ok(true);
                }
                self.handle(request);
            }
            let has_request = self.wait_for_input()?;
            self.poll_init();
            self.continue_stop();
            if has_request && !self.control.read_more()? {
                return Ok(false);
            }
        }
    }

    /// True if the socket has a request or its end.
    fn wait_for_input(&self) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(&self.control.socket, PollFlags::IN)];
        let running = self.init.as_ref().filter(|_| !self.exit_reported);
        let files = running.map(|init| init.files()).unwrap_or_default();
        fds.extend(files.iter().map(|file| PollFd::new(file, PollFlags::IN)));
        let timeout = self.stop_by.filter(|_| running.is_some()).map(|by| {
            let left = wait_while_stopping(by, Instant::now());
            Timespec::try_from(left).unwrap_or_default()
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(!fds[0].revents().is_empty())
    }

    fn handle(&mut self, request: Request) {
        match request {
            Request::Start => self.start(),
            Request::Stop { grace_ms } => self.stop(Duration::from_millis(grace_ms)),
            // Create was handled before; `watch` handles Remove.
            Request::Create(_) | Request::Remove => {}
        }
    }

    fn start(&mut self) {
        if let Some(init) = &mut self.init
            && let Err(error) = init.start()
        {
            self.send(&Event::Failed(error));
        }
    }

    fn poll_init(&mut self) {
        let Some(init) = self.init.as_mut().filter(|_| !self.exit_reported) else {
            return;
        };
        for event in init.poll_events() {
            match event {
                InitEvent::Failed(error) => self.send(&Event::Failed(error)),
                InitEvent::Started => self.send(&Event::Started),
                InitEvent::Ended(status) => self.report_exit(status),
            }
        }
    }

    fn report_exit(&mut self, status: ExitStatus) {
        self.exit_reported = true;
        let group = self.created.groups.as_ref().map(|g| &g.inside);
        let oom_kills = group.and_then(|g| g.oom_kills()).unwrap_or(0);
        let largest_process = self.init.as_ref().and_then(|init| init.largest_process());
        let exit = Exit {
            status,
            oom_killed: oom_kills > 0,
            killed_for_memory: false,
            oom_kills,
            peak_memory: group.and_then(|g| g.memory_peak()),
            job_group: None,
            largest_process: largest_process
                .and_then(|bytes| self.spec.runtime.memory_of_command(bytes)),
            processes: group.map(|g| g.process_limit()).unwrap_or_default(),
        };
        let shared = self.shared.as_ref();
        let exit = exit.with_job_group(shared.and_then(|shared| shared.kills(self.executor)));
        self.send(&Event::Exited(exit));
    }

    fn processes(&self) -> Option<ContainerProcesses<'_>> {
        let init = self.init.as_ref()?;
        Some(match &self.created.groups {
            Some(groups) => ContainerProcesses::Group(&groups.inside),
            None => ContainerProcesses::Tree(init.pid()),
        })
    }

    fn stop(&mut self, grace: Duration) {
        if self.exit_reported {
            return;
        }
        let by = Instant::now() + grace;
        // A second request can only shorten the grace.
        self.stop_by = Some(self.stop_by.map_or(by, |earlier| earlier.min(by)));
        if let Some(processes) = self.processes()
            && !grace.is_zero()
        {
            processes.signal_command(Signal::TERM, |pid| self.spec.runtime.is_own(pid));
        }
        self.continue_stop();
    }

    fn continue_stop(&mut self) {
        let (Some(by), Some(processes), false) =
            (self.stop_by, self.processes(), self.exit_reported)
        else {
            return;
        };
        let Some(pid) = self.init.as_ref().map(|init| init.pid()) else {
            return;
        };
        let alone = || {
            processes
                .processes()
                .iter()
                .all(|other| *other as i32 == pid.as_raw_nonzero().get())
        };
        // The kernel drops a signal to the init process of a pid namespace unless it has a handler,
        // so waiting would be useless. A runtime's own process is about to report the exit.
        let is_runtime = self.spec.runtime.is_own(pid.as_raw_nonzero().get() as u32);
        let is_ignored = || !is_runtime && alone() && ignores_term(pid);
        if Instant::now() >= by || is_ignored() {
            processes.signal(Signal::KILL);
            // The kernel kills the rest of the pid namespace.
            if let Some(init) = &mut self.init {
                init.kill();
            }
        }
    }

    fn send(&mut self, event: &Event) {
        let mut line = serde_json::to_vec(event).unwrap_or_default();
        line.push(b'\n');
        // If crunch-run is gone, the next read of the socket shows it.
        let _ = self.control.socket.write_all(&line);
    }

    /// Removes everything of the container; returns what could not be removed.
    fn tear_down(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        if let Some(init) = &mut self.init
            && !self.exit_reported
        {
            init.kill();
        }
        if let Some(groups) = &self.created.groups {
            let ended = groups
                .inside
                .kill(KILL_TIMEOUT)
                .and_then(|()| groups.inside.remove(REMOVE_TIMEOUT));
            if let Err(error) = ended {
                problems.push(error.to_string());
            }
        }
        // Rarely present, and empty by now.
        if let Ok(layout) = Layout::of_this_process() {
            let _ = layout
                .named_group(&self.spec.cgroup_name)
                .remove(REMOVE_TIMEOUT);
        }
        if let Some(memory) = &self.created.memory {
            // Otherwise the mount ends with this process.
            let _ = unmount(memory, UnmountFlags::DETACH);
        }
        if let Some(rootfs) = &self.created.rootfs {
            if let Err(error) = rootfs.unmount() {
                problems.push(format!("{} stays mounted: {error}", rootfs.path.display()));
            }
            if let Some(mapped) = &self.created.mapped
                && let Err(error) = mapped.unmount()
            {
                let dir = self.spec.mounts_dir.display();
                problems.push(format!("{dir} stays mounted: {error}"));
            }
            if let Some(dir) = &rootfs.elsewhere {
                problems.extend(not_removed(dir, remove_tree(dir)));
            }
        }
        // Only root of the user namespace can remove what an unprivileged container closed.
        let removed = match self.spec.privileged {
            true => trash::discard(&self.spec.dir),
            false => remove_tree(&self.spec.dir),
        };
        problems.extend(not_removed(&self.spec.dir, removed));
        if problems.is_empty() {
            let _ = fs::remove_file(&self.spec.state_file);
        }
        problems
    }
}

fn not_removed(dir: &std::path::Path, removed: io::Result<()>) -> Option<String> {
    let error = removed.err()?;
    let dir = dir.display();
    Some(format!("directory {dir} cannot be removed: {error}"))
}

/// Whether a process lives on after TERM and does not notice it, by its /proc/PID/status. A process
/// that has ended ignores nothing: its end is about to be reported.
fn ignores_term(pid: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero()));
    status.is_ok_and(|status| is_alive_without_term_handler(&status))
}

fn is_alive_without_term_handler(status: &str) -> bool {
    let field = |name| status.lines().find_map(|line| line.strip_prefix(name));
    let is_alive = field("State:").is_some_and(|state| !state.trim().starts_with(['Z', 'X']));
    let caught = field("SigCgt:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    is_alive && caught.is_some_and(|mask| mask & (1 << (Signal::TERM.as_raw() - 1)) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_killed_container_is_waited_for_without_spinning() {
        let now = Instant::now();
        let ms = Duration::from_millis;
        for (by, expected) in [(now + ms(5), ms(5)), (now + ms(500), ms(20)), (now, ms(20))] {
            assert_eq!(wait_while_stopping(by, now), expected);
        }
        assert_eq!(wait_while_stopping(now, now + ms(500)), ms(20));
    }

    #[test]
    fn only_a_living_process_without_a_handler_ignores_term() {
        for (status, ignores) in [
            ("State:\tS (sleeping)\nSigCgt:\t0000000000000000\n", true),
            ("State:\tR (running)\nSigCgt:\t0000000000000002\n", true),
            ("State:\tS (sleeping)\nSigCgt:\t0000000000004000\n", false),
            ("State:\tZ (zombie)\nSigCgt:\t0000000000000000\n", false),
            ("State:\tX (dead)\nSigCgt:\t0000000000000000\n", false),
            ("State:\tS (sleeping)\n", false),
            ("", false),
        ] {
            assert_eq!(is_alive_without_term_handler(status), ignores, "{status}");
        }
        let nobody = Pid::from_raw(i32::MAX).unwrap();
        assert!(!ignores_term(nobody));
    }
}
