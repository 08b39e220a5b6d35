//! Processor time and memory of a process, for benches.

use std::fs;

/// CPU seconds of a process, and of its ended children.
pub fn processor_time(pid: u32) -> (f64, f64) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat
        .rsplit_once(')')
        .expect("a name")
        .1
        .split_whitespace()
        .collect();
    // utime, stime, cutime and cstime are fields 14 to 17 of proc(5); `fields` begins with the
    // third.
    let ticks = |n: usize| fields[n - 3].parse::<f64>().expect("a number");
    let second = rustix::param::clock_ticks_per_second() as f64;
    (
        (ticks(14) + ticks(15)) / second,
        (ticks(16) + ticks(17)) / second,
    )
}

/// Resident memory in MiB.
pub fn resident(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.expect("VmRSS").split_whitespace().nth(1).unwrap();
    kib.parse::<f64>().expect("a number") / 1024.0
}
