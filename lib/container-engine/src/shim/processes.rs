//! The processes of a container: those of its control group, or else the descendants of its first
//! process.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use cgroup::Cgroup;

pub enum ContainerProcesses<'a> {
    Group(&'a Cgroup),
    /// All are its descendants: orphans of a pid namespace pass to the first process.
    Tree(Pid),
}

impl ContainerProcesses<'_> {
    pub fn processes(&self) -> Vec<u32> {
        match self {
            Self::Group(group) => group.processes(),
            Self::Tree(first) => {
                let mut all = vec![first.as_raw_nonzero().get() as u32];
                let mut next = 0;
                while let Some(parent) = all.get(next) {
                    all.extend(children(*parent));
                    next += 1;
                }
                all
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        signal_all(&self.processes(), signal);
    }

    /// Signals the command's processes. The runtime's own are left out: they would pass the signal
    /// on, perhaps after the command has ended. If there are no others, signals all.
    pub fn signal_command(&self, signal: Signal, is_runtime: impl Fn(u32) -> bool) {
        let all = self.processes();
        let commands: Vec<u32> = all
            .iter()
            .copied()
            .filter(|pid| !is_runtime(*pid))
            .collect();
        signal_all(if commands.is_empty() { &all } else { &commands }, signal);
    }
}

fn signal_all(processes: &[u32], signal: Signal) {
    for pid in processes {
        if let Some(pid) = Pid::from_raw(*pid as i32) {
            // A process that has ended needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

/// Children of a process: the kernel lists them by the thread that started them.
pub fn children(parent: u32) -> Vec<u32> {
    let mut all = Vec::new();
    let threads = fs::read_dir(format!("/proc/{parent}/task"));
    for thread in threads.into_iter().flatten().flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(
            text.split_whitespace()
                .filter_map(|pid| pid.parse::<u32>().ok()),
        );
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_holds_children_of_children() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sh -c 'sleep 1000; :' & read line; wait"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let first = Pid::from_raw(shell.id() as i32).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(300);
        while ContainerProcesses::Tree(first).processes().len() < 3 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        // Only the last process is signalled, and its parent ends with it. The first one is reaped
        // later, when it has read its line.
        let child = ContainerProcesses::Tree(first).processes()[1];
        ContainerProcesses::Tree(first)
            .signal_command(Signal::TERM, |pid| [shell.id(), child].contains(&pid));
        let has_ended = || {
            let stat = fs::read_to_string(format!("/proc/{child}/stat"));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        while !has_ended() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert!(shell.try_wait().unwrap().is_none());
        ContainerProcesses::Tree(first).signal(Signal::KILL);
        shell.wait().unwrap();
        assert_eq!(ContainerProcesses::Tree(first).processes().len(), 1);
    }
}
