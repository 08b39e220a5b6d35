//! Processes of this machine, found by what they were called with.

use std::fs;

use arvados_client::ContainerUuid;
use rustix::process::Pid;

/// The process of a container's crunch-run, if there is one.
pub fn crunch_run_of(container: &ContainerUuid) -> Option<Pid> {
    process_with(|words| {
        words.contains(&container.as_str().as_bytes()) && words[0].ends_with(b"crunch-run")
    })
}

/// Whether it has ended. A zombie has; whoever started it collects it.
pub fn is_gone(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    !stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A script that hears TERM and does nothing of it. One that ignored it would be alone between two sleeps: crunch-run ends
/// a first process at once that TERM cannot reach.
pub fn deaf(seconds: &str) -> String {
    format!("trap : TERM; while :; do sleep {seconds}; done")
}

/// The process that sleeps for this long, if there is one: where the number is a test's own, its script has come there.
pub fn sleeper(seconds: &str) -> Option<Pid> {
    process_with(|words| words.contains(&seconds.as_bytes()) && words[0] == b"sleep")
}

fn process_with(is_meant: impl Fn(&[&[u8]]) -> bool) -> Option<Pid> {
    let pid = fs::read_dir("/proc").unwrap().find_map(|entry| {
        let entry = entry.ok()?;
        let command = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        is_meant(&words).then(|| entry.file_name())
    })?;
    Pid::from_raw(pid.to_str()?.parse().ok()?)
}
