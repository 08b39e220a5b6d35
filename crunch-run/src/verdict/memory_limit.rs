//! The reason for a container that was killed because of its memory limit.

use bytesize::ByteSize;
use container_engine::{Exit, ExitStatus};

use super::{Reason, describe_exit};

/// The reason for an out-of-memory kill, with advice.
pub fn memory_limit_reason(exit: &Exit, limit: Option<u64>) -> Option<Reason> {
    if !exit.oom_killed {
        return None;
    }
    let requested = limit;
    let limit = match exit.job_group {
        Some(group) => group.limit,
        None => limit,
    };
    let mut used = match (exit.peak_memory, limit) {
        (Some(peak), Some(limit)) => format!("used {} of {}", size(peak), size(limit)),
        (Some(peak), None) => format!("used {}", size(peak)),
        (None, Some(limit)) => format!("its limit is {}", size(limit)),
        (None, None) => "its memory use is unknown".to_owned(),
    };
    if let (Some(requested), Some(limit)) = (requested, limit)
        && requested < limit
    {
        used += &format!(" ({} requested, the rest for crunch-run)", size(requested));
    }
    let who = match exit.status {
        ExitStatus::Code(0) => "a process of it was killed by its memory limit",
        _ => "killed by its memory limit",
    };
    let bytes = |n: Option<u64>| n.map_or("unknown".to_owned(), |n| format!("{n} bytes"));
    let sentence = format!("{who}: {used}; ask for more (--memory of dispatch, ram of the API)");
    if exit.killed_for_memory {
        let detail = format!(
            "crunch-run measured {} in its processes and killed it: nothing else limits memory here; limit {}; {}",
            bytes(exit.peak_memory),
            bytes(limit),
            describe_exit(exit)
        );
        return Some(Reason::new(sentence, detail));
    }
    Some(Reason::new(
        sentence,
        format!(
            "{} counts {} out-of-memory kill{}; highest use {}, limit {}; {}",
            match exit.job_group {
                Some(_) => "the control group of its job",
                None => "its control group",
            },
            exit.oom_kills,
            if exit.oom_kills == 1 { "" } else { "s" },
            bytes(exit.peak_memory),
            bytes(limit),
            describe_exit(exit)
        ),
    ))
}

fn size(bytes: u64) -> String {
    ByteSize::b(bytes).display().iec().to_string()
}
