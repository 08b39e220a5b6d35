//! The processes of a container: those of its control group, or else the descendants of its first process.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::cgroup::Cgroup;

pub enum Members<'a> {
    Group(&'a Cgroup),
    /// All are its descendants: orphans of a pid namespace pass to the first process.
    Tree(Pid),
}

impl Members<'_> {
    pub fn processes(&self) -> Vec<u32> {
        match self {
            Self::Group(group) => group.processes(),
            Self::Tree(first) => {
                let mut all = vec![first.as_raw_nonzero().get() as u32];
                let mut seen = 0;
                while let Some(parent) = all.get(seen) {
                    all.extend(children(*parent));
                    seen += 1;
                }
                all
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        send(&self.processes(), signal);
    }

    /// To those alone that `is_runtimes` does not know for the runtime's own, which would pass the signal on, to a command
    /// that may be gone by then. To all, where there are no others.
    pub fn ask(&self, signal: Signal, is_runtimes: impl Fn(u32) -> bool) {
        let all = self.processes();
        let commands: Vec<u32> = all
            .iter()
            .copied()
            .filter(|pid| !is_runtimes(*pid))
            .collect();
        send(if commands.is_empty() { &all } else { &commands }, signal);
    }
}

fn send(processes: &[u32], signal: Signal) {
    for pid in processes {
        if let Some(pid) = Pid::from_raw(*pid as i32) {
            // One that is gone by now needs no signal.
            let _ = kill_process(pid, signal);
        }
    }
}

/// As the kernel lists them, for each thread those that it started.
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
        while Members::Tree(first).processes().len() < 3 {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        // Only the last of them is asked, and with it its parent ends. The first does not collect that as long as it waits
        // for its line.
        let child = Members::Tree(first).processes()[1];
        Members::Tree(first).ask(Signal::TERM, |pid| [shell.id(), child].contains(&pid));
        let has_ended = || {
            let stat = fs::read_to_string(format!("/proc/{child}/stat"));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        while !has_ended() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert!(shell.try_wait().unwrap().is_none());
        Members::Tree(first).signal(Signal::KILL);
        shell.wait().unwrap();
        assert_eq!(Members::Tree(first).processes().len(), 1);
    }
}
