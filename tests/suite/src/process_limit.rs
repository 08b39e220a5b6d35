//! A limit on the processes and threads of one program, by a control group. Needs root and the
//! controller `pids`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::STEP_TIMEOUT;
use crate::stack::wait_for;

/// A group in which no process can start another.
pub struct ProcessLimit {
    group: PathBuf,
}

impl ProcessLimit {
    /// Moves the process into a group where it can start neither a process nor a thread.
    pub fn on(pid: u32) -> Self {
        let parent = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"].map(Path::new);
        let parent = parent
            .into_iter()
            .find(|dir| dir.join("cgroup.procs").exists());
        let parent = parent.expect("control groups with the controller `pids`");
        let group = parent.join(format!("process-limit-{pid}"));
        fs::create_dir(&group).expect("a control group");
        let limit = Self { group };
        limit.write("cgroup.procs", &pid.to_string());
        limit.write("pids.max", "1");
        limit
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.group.join(file);
        fs::write(&path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// Ends the limit. What the process starts from now on stays in the group.
    pub fn lift(&self) {
        self.write("pids.max", "max");
    }
}

impl Drop for ProcessLimit {
    /// The processes go back to where they were.
    fn drop(&mut self) {
        let parent = self.group.parent().expect("a group has a parent");
        wait_for("the group to be empty", STEP_TIMEOUT, || {
            let inside = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
            for pid in inside.lines() {
                // One that has ended meanwhile.
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
            fs::remove_dir(&self.group).ok()
        });
    }
}
