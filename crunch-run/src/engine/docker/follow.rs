//! Follows a started container to its end, by the kernel's word and the daemon's.

use std::io;
use std::time::{Duration, Instant};

use bollard::Docker;
use bollard::models::ContainerState;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::oneshot;

use super::messages;
use super::stdio::Carrier;
use crate::cgroup::{Cgroup, Processes};
use crate::engine::{Exit, ExitStatus};

/// Between two looks while all is well.
const LOOK: Duration = Duration::from_secs(1);
/// The same, where the kernel does not tell us of the end.
const SOON: Duration = Duration::from_millis(100);
/// Between two questions to the daemon, with the kernel watching the process.
const ASK: Duration = Duration::from_secs(10);
/// How long the daemon may not answer, or not notice an end, before it is broken.
pub const DAEMON_PATIENCE: Duration = Duration::from_secs(60);
/// How long the last output may take after the container's end.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(60);

/// The container's first process as the kernel knows it.
#[derive(Debug, Clone)]
pub struct Process {
    pub pid: u32,
    /// Only such groups as are the container's own.
    pub group: Option<Cgroup>,
}

impl Process {
    /// `id` is the daemon's for the container: its groups are named by it.
    pub fn of(pid: u32, id: &str) -> Self {
        let group = Cgroup::of_process(pid).ok().map(|group| own(group, id));
        Self {
            pid,
            group: group.filter(|group| !group.dirs().is_empty()),
        }
    }
}

/// Without the groups that the container shares with others, as where a runtime may not make its own.
fn own(mut group: Cgroup, id: &str) -> Cgroup {
    let is_own = |dir: &std::path::Path| dir.to_string_lossy().contains(id);
    group.v1.retain(|_, dir| is_own(dir));
    group.v2 = group.v2.filter(|dir| is_own(dir));
    group
}

/// What was last seen of the group, which is gone soon after the container's end.
#[derive(Debug, Default)]
struct Accounts {
    oom_kills: u64,
    peak_memory: Option<u64>,
    processes: Processes,
}

impl Accounts {
    fn look(&mut self, group: Option<&Cgroup>) {
        let Some(group) = group else {
            return;
        };
        self.add(&Self {
            oom_kills: group.oom_kills().unwrap_or_default(),
            peak_memory: group.memory_peak(),
            processes: group.process_limit(),
        });
    }

    /// All of them only ever grow.
    fn add(&mut self, other: &Self) {
        self.oom_kills = self.oom_kills.max(other.oom_kills);
        self.peak_memory = self.peak_memory.max(other.peak_memory);
        self.processes = self.processes.or(other.processes);
    }
}

pub struct Follower {
    pub client: Docker,
    pub id: String,
    pub process: Option<Process>,
    pub carrier: Carrier,
}

impl Follower {
    /// How it ended; the error says why nobody knows.
    pub async fn follow(mut self) -> Result<Exit, String> {
        let mut accounts = Accounts::default();
        let process = self.process.take();
        let group = process.as_ref().and_then(|p| p.group.clone());
        let mut ended = process.and_then(|p| watch(p.pid, p.group).ok());
        let pause = if ended.is_some() { LOOK } else { SOON };
        let mut silence = Silence::default();
        let mut is_carried = false;
        let mut last_asked = Instant::now();
        accounts.look(group.as_ref());
        loop {
            tokio::select! {
                biased;
                last = kernel_says(ended.as_mut()) => {
                    accounts.add(&last);
                    break;
                }
                carried = self.carrier.finished(), if !is_carried => {
                    accounts.look(group.as_ref());
                    carried.map_err(|why| format!("its output is lost: {why}"))?;
                    is_carried = true;
                    // Either the container closed its streams, or the daemon is gone.
                    let state = self.state().await.map_err(|why| {
                        format!("the connection that carried its output ended while it ran ({why})")
                    })?;
                    if ended.is_none() && state.running != Some(true) {
                        break;
                    }
                }
                () = tokio::time::sleep(pause) => {
                    accounts.look(group.as_ref());
                    if ended.is_some() && last_asked.elapsed() < ASK {
                        continue;
                    }
                    last_asked = Instant::now();
                    match silence.judge(self.state().await)? {
                        Some(state) if state.running != Some(true) => break,
                        _ => {}
                    }
                }
            }
        }
        let state = self.final_state(silence).await?;
        self.carrier
            .finished_within(OUTPUT_PATIENCE)
            .await
            .map_err(|why| format!("its output is not complete: {why}"))?;
        let code = state
            .exit_code
            .ok_or("the daemon does not say how it ended")?;
        let said = u64::from(state.oom_killed == Some(true));
        let oom_kills = accounts.oom_kills.max(said);
        Ok(Exit {
            // The daemon does not tell a signal from an exit with 128 and its number.
            status: ExitStatus::Code(i32::try_from(code).unwrap_or(i32::MAX)),
            oom_killed: oom_kills > 0,
            oom_kills,
            peak_memory: accounts.peak_memory,
            job_group: None,
            largest_process: None,
            processes: accounts.processes,
        })
    }

    /// The daemon hears of an end a little later than we do.
    async fn final_state(&self, mut silence: Silence) -> Result<ContainerState, String> {
        let began = Instant::now();
        let mut pause = Duration::from_millis(2);
        loop {
            let state = silence.judge(self.state().await)?;
            match state {
                Some(state) if state.running != Some(true) && state.exit_code.is_some() => {
                    return Ok(state);
                }
                Some(_) if began.elapsed() > DAEMON_PATIENCE => {
                    return Err(format!(
                        "its process is gone, and the daemon does not notice for {} seconds",
                        DAEMON_PATIENCE.as_secs()
                    ));
                }
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    async fn state(&self) -> Result<ContainerState, String> {
        state(&self.client, &self.id).await
    }
}

/// What the daemon says of the container.
pub async fn state(client: &Docker, id: &str) -> Result<ContainerState, String> {
    match client.inspect_container(id, None).await {
        Ok(found) => Ok(found.state.unwrap_or_default()),
        // The end was seen, and how it ended comes next.
        Err(error) if messages::is_podmans_stopped(&error) => Ok(ContainerState {
            running: Some(false),
            ..ContainerState::default()
        }),
        Err(error) if messages::is_gone(&error) => {
            Err("somebody else removed the container".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Since when the daemon does not answer.
#[derive(Debug, Default)]
struct Silence {
    since: Option<Instant>,
}

impl Silence {
    /// The state, nothing for now, or that the daemon has been silent for too long.
    fn judge(
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
                if since.elapsed() < DAEMON_PATIENCE {
                    return Ok(None);
                }
                Err(format!(
                    "the daemon does not answer for {} seconds: {why}",
                    DAEMON_PATIENCE.as_secs()
                ))
            }
        }
    }
}

/// Waits for the process on a thread of its own, which reads the group at once: soon the daemon removes it.
fn watch(pid: u32, group: Option<Cgroup>) -> io::Result<oneshot::Receiver<Accounts>> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let process = pidfd_open(pid.ok_or(io::ErrorKind::InvalidInput)?, PidfdFlags::empty())?;
    let (tell, told) = oneshot::channel();
    std::thread::Builder::new()
        .name("end".to_owned())
        .spawn(move || {
            let mut watched = [PollFd::new(&process, PollFlags::IN)];
            while let Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
            let mut accounts = Accounts::default();
            accounts.look(group.as_ref());
            // Nobody listens any more when the container was given up.
            let _ = tell.send(accounts);
        })?;
    Ok(told)
}

/// Returns when the process has ended, and never where the kernel does not say.
async fn kernel_says(process: Option<&mut oneshot::Receiver<Accounts>>) -> Accounts {
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
        let own = own(group, "abc");
        assert_eq!(own.v1.keys().collect::<Vec<_>>(), ["memory"]);
        assert_eq!(own.v2, None);
    }
}
