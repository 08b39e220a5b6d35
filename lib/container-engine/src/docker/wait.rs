//! Waits for the end of a started container: by the kernel's pidfd and the daemon's state.

use std::io;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerState;
use exp_backoff::Backoff;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;

use super::errors;
use super::stdio::StreamCopier;
use crate::{Exit, ExitStatus};
use cgroup::{Cgroup, Processes};

/// Interval between reads of the control group.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Poll interval without a pidfd: then each poll queries the daemon.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between queries of the daemon while a pidfd watches the process.
const DAEMON_POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Time after which a daemon that does not answer, or does not notice an end, counts as broken.
pub const DAEMON_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for the last output after the container's end.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(60);

/// The kernel's view of the container's first process.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    /// Control groups of the container alone.
    pub group: Option<Cgroup>,
}

impl Process {
    /// `id` is the daemon's container id, which is in the names of its groups.
    pub fn of(pid: u32, id: &str) -> Self {
        let group = Cgroup::of_process(pid)
            .ok()
            .map(|group| own_groups(group, id));
        Self {
            pid,
            group: group.filter(|group| !group.dirs().is_empty()),
        }
    }
}

/// Drops the groups that the container shares with others.
fn own_groups(mut group: Cgroup, id: &str) -> Cgroup {
    let is_own = |dir: &std::path::Path| dir.to_string_lossy().contains(id);
    group.v1.retain(|_, dir| is_own(dir));
    group.v2 = group.v2.filter(|dir| is_own(dir));
    group
}

/// Last values read from the group, which is removed soon after the container's end.
#[derive(Debug, Default)]
struct LastUsage {
    oom_kills: u64,
    peak_memory: Option<u64>,
    processes: Processes,
}

impl LastUsage {
    fn refresh(&mut self, group: Option<&Cgroup>) {
        let Some(group) = group else {
            return;
        };
        self.add(&Self {
            oom_kills: group.oom_kills().unwrap_or_default(),
            peak_memory: group.memory_peak(),
            processes: group.process_limit(),
        });
    }

    /// Takes the maximum: all values only grow.
    fn add(&mut self, other: &Self) {
        self.oom_kills = self.oom_kills.max(other.oom_kills);
        self.peak_memory = self.peak_memory.max(other.peak_memory);
        self.processes = self.processes.or(other.processes);
    }
}

pub struct ExitWaiter {
    pub client: Docker,
    pub id: String,
    pub process: Option<Process>,
    pub copier: StreamCopier,
}

impl ExitWaiter {
    /// How the container ended; the error says why that is unknown.
    pub async fn wait(mut self) -> Result<Exit, String> {
        let mut usage = LastUsage::default();
        let process = self.process.take();
        let group = process.as_ref().and_then(|p| p.group.clone());
        let mut ended = process.and_then(|p| watch_process(p.pid, p.group).ok());
        let pause = if ended.is_some() {
            POLL_INTERVAL
        } else {
            FAST_POLL_INTERVAL
        };
        let mut timeout = DaemonTimeout::default();
        let mut is_copied = false;
        let mut last_queried = Instant::now();
        usage.refresh(group.as_ref());
        loop {
            tokio::select! {
                biased;
                last = process_exited(ended.as_mut()) => {
                    usage.add(&last);
                    break;
                }
                copied = self.copier.wait(), if !is_copied => {
                    usage.refresh(group.as_ref());
                    copied.map_err(|why| format!("its output is lost: {why}"))?;
                    is_copied = true;
                    // Either the container closed its streams, or the daemon is gone.
                    let state = self.state().await.map_err(|why| {
                        format!("the connection that carried its output ended while it ran ({why})")
                    })?;
                    if ended.is_none() && state.running != Some(true) {
                        break;
                    }
                }
                () = tokio::time::sleep(pause) => {
                    usage.refresh(group.as_ref());
                    if ended.is_some() && last_queried.elapsed() < DAEMON_POLL_INTERVAL {
                        continue;
                    }
                    last_queried = Instant::now();
                    match timeout.check(self.state().await)? {
                        Some(state) if state.running != Some(true) => break,
                        _ => {}
                    }
                }
            }
        }
        let state = self.final_state(timeout).await?;
        self.copier
            .wait_within(OUTPUT_TIMEOUT)
            .await
            .map_err(|why| format!("its output is not complete: {why}"))?;
        let code = state
            .exit_code
            .ok_or("the daemon does not say how it ended")?;
        let reported = u64::from(state.oom_killed == Some(true));
        let oom_kills = usage.oom_kills.max(reported);
        Ok(Exit {
            // The daemon reports a fatal signal as exit code 128 + its number.
            status: ExitStatus::Code(i32::try_from(code).unwrap_or(i32::MAX)),
            oom_killed: oom_kills > 0,
            killed_for_memory: false,
            oom_kills,
            peak_memory: usage.peak_memory,
            job_group: None,
            largest_process: None,
            processes: usage.processes,
        })
    }

    /// The daemon's state after the end, which it notices a little later than the kernel.
    async fn final_state(&self, mut timeout: DaemonTimeout) -> Result<ContainerState, String> {
        let began = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(2), Duration::from_millis(100));
        loop {
            let state = timeout.check(self.state().await)?;
            match state {
                Some(state) if state.running != Some(true) && state.exit_code.is_some() => {
                    return Ok(state);
                }
                Some(_) if began.elapsed() > DAEMON_TIMEOUT => {
                    return Err(format!(
                        "its process is gone, and the daemon does not notice for {} seconds",
                        DAEMON_TIMEOUT.as_secs()
                    ));
                }
                _ => {}
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    async fn state(&self) -> Result<ContainerState, String> {
        state(&self.client, &self.id).await
    }
}

/// The daemon's state of the container.
pub async fn state(client: &Docker, id: &str) -> Result<ContainerState, String> {
    match client.inspect_container(id, None).await {
        Ok(found) => Ok(found.state.unwrap_or_default()),
        // The container has ended; the exit code follows.
        Err(error) if errors::is_podmans_stopped(&error) => Ok(ContainerState {
            running: Some(false),
            ..ContainerState::default()
        }),
        Err(error) if errors::is_gone(&error) => {
            Err("another process removed the container".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Time since which the daemon does not answer.
#[derive(Debug, Default)]
struct DaemonTimeout {
    since: Option<Instant>,
}

impl DaemonTimeout {
    /// The state, or `None` for a failed query, or an error if queries failed for too long.
    fn check(
        &mut self,
        answer: Result<ContainerState, String>,
    ) -> Result<Option<ContainerState>, String> {
        match answer {
            Ok(state) => {
                self.since = None;
                Ok(Some(state))
            }
            Err(why) => {
                let since = *self.since.get_or_insert_with(Instant::now);
                if since.elapsed() < DAEMON_TIMEOUT {
                    return Ok(None);
                }
                Err(format!(
                    "the daemon does not answer for {} seconds: {why}",
                    DAEMON_TIMEOUT.as_secs()
                ))
            }
        }
    }
}

/// Waits for the process on a thread of its own, which then reads the group before the daemon
/// removes it.
fn watch_process(pid: u32, group: Option<Cgroup>) -> io::Result<oneshot::Receiver<LastUsage>> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(pid.ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?;
    let (exited, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("end".to_owned())
        .spawn(move || {
            let mut watched = [PollFd::new(&process, PollFlags::IN)];
            while let Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
            let mut usage = LastUsage::default();
            usage.refresh(group.as_ref());
            // The receiver is gone if the container was abandoned.
            let _ = exited.send(usage);
        })?;
    Ok(receiver)
}

/// Returns when the process has ended; never without a pidfd.
async fn process_exited(process: Option<&mut oneshot::Receiver<LastUsage>>) -> LastUsage {
    match process {
        Some(process) => process.await.unwrap_or_default(),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_groups_named_by_the_container_are_its_own() {
        let group = Cgroup {
            v1: [
                ("memory", "/sys/fs/cgroup/memory/docker/abc"),
                ("pids", "/sys/fs/cgroup/pids/user.slice"),
            ]
            .map(|(name, dir)| (name.to_owned(), dir.into()))
            .into(),
            v2: Some("/sys/fs/cgroup/unified".into()),
        };
        let own_groups = own_groups(group, "abc");
        assert_eq!(own_groups.v1.keys().collect::<Vec<_>>(), ["memory"]);
        assert_eq!(own_groups.v2, None);
    }
}
