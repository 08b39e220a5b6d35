//! Finds processes of this machine by their arguments.

use std::fs;

use arvados_client::ContainerUuid;
use rustix::process::Pid;

/// The process of a container's crunch-run, if there is one.
pub fn crunch_run_of(container: &ContainerUuid) -> Option<Pid> {
    process_with(|words| {
        words.contains(&container.as_str().as_bytes()) && words[0].ends_with(b"crunch-run")
    })
}

/// The sbatch that submits a container, if there is one.
pub fn sbatch_of(container: &ContainerUuid) -> Option<Pid> {
    let name = format!("--job-name={container}").into_bytes();
    process_with(|words| words[0].ends_with(b"sbatch") && words.contains(&name.as_slice()))
}

/// Whether the process has ended. A zombie counts as ended.
pub fn is_gone(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    !stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// A script that catches TERM and does nothing. If it ignored TERM, crunch-run would kill it at
/// once, as it does with a first process that has no handler.
pub fn script_ignoring_term(seconds: &str) -> String {
    format!("trap : TERM; while :; do sleep {seconds}; done")
}

/// The process that sleeps for this time. If only this test uses the number, its script has reached
/// the sleep.
pub fn sleep_process(seconds: &str) -> Option<Pid> {
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
