//! What HTCondor itself says of why a job does not run: of the pages of `condor_q -better-analyze`, what tells something.

use std::time::Duration;

use dispatch_core::command::Command;
use dispatch_core::needs::Needs;
use dispatch_core::world::JobId;

/// Of this job; none where it is not told.
pub async fn of(job: &JobId, patience: Duration) -> Option<String> {
    let command = Command::new("condor_q").patience(patience);
    let answer = command.args(["-better-analyze", &job.0]).succeed().await;
    let text = trimmed(&answer.ok()?.output);
    (!text.is_empty()).then_some(text)
}

/// What HTCondor says of whether a job could run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// There is room for it, and no slot takes it: why.
    Never(String),
    /// Some slot would take it.
    Matches,
    /// It was not told, or there is no room now, so that it cannot be told.
    Unknown,
}

/// Whether any slot could take this job, which asks for `needs`.
pub async fn verdict(job: &str, needs: &Needs, patience: Duration) -> Verdict {
    let command = Command::new("condor_status").patience(patience);
    let free = [
        "-limit",
        "1",
        "-af",
        "Name",
        "-constraint",
        &room_for(needs),
    ];
    match command.args(free).succeed().await {
        Ok(slot) if !slot.output.trim().is_empty() => {}
        _ => return Verdict::Unknown,
    }
    let command = Command::new("condor_q").patience(patience);
    match command.args(["-better-analyze", job]).succeed().await {
        Ok(answer) => judged(&answer.output),
        Err(_) => Verdict::Unknown,
    }
}

/// Slots with so much free.
fn room_for(needs: &Needs) -> String {
    let (memory, disk) = (needs.ram.div_ceil(1 << 20), needs.scratch.div_ceil(1 << 10));
    format!(
        "State == \"Unclaimed\" && DynamicSlot =!= true && Cpus >= {} && Memory >= {memory} && Disk >= {disk} && (GPUs ?: 0) >= {}",
        needs.cpus, needs.gpus
    )
}

/// Where every slot is refused by the job's own conditions: that, and those of them that HTCondor found no slot for. Pure.
fn judged(text: &str) -> Verdict {
    const SUMMARY: &str = "Run analysis summary";
    let first = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let mut lines = text.lines().skip_while(|line| !line.contains(SUMMARY));
    let machines = lines
        .next()
        .and_then(|line| first(line.split(" Of ").nth(1)?));
    let (machines, rejected) = match (machines, lines.next().and_then(first)) {
        (Some(machines @ 1..), Some(rejected)) => (machines, rejected),
        _ => return Verdict::Unknown,
    };
    if rejected < machines {
        return Verdict::Matches;
    }
    let conditions: Vec<&str> = text.lines().filter_map(unmet).collect();
    Verdict::Never(match conditions.is_empty() {
        true => "there is room for it, but no slot meets its requirements".to_owned(),
        false => format!(
            "there is room for it, but no slot meets its requirements; HTCondor finds none with: {}",
            conditions.join("; ")
        ),
    })
}

/// The condition of a row like `[3]   0  TARGET.HasX`, where no slot meets it. Newer releases have a second number: slots
/// that would meet it if they were drained.
fn unmet(line: &str) -> Option<&str> {
    let (_, row) = line.trim().strip_prefix('[')?.split_once(']')?;
    let mut rest = row.trim_start();
    let mut counts = 0;
    while let Some((count, more)) = rest.split_once(char::is_whitespace)
        && let Ok(count) = count.parse::<u64>()
    {
        if count > 0 {
            return None;
        }
        counts += 1;
        rest = more.trim_start();
    }
    let condition = rest.trim_end();
    // `[0] && [5]` is of others that are told by themselves.
    (counts > 0 && !condition.starts_with('[')).then_some(condition)
}

/// The conditions that no slot meets, the hold, the last match, and how many machines there are for it.
fn trimmed(text: &str) -> String {
    const TOLD: [&str; 6] = [
        "Job is ",
        "Hold reason:",
        "No successful match",
        "Last ",
        "Reason for last match failure:",
        "Run analysis summary",
    ];
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim) {
        let row = line.starts_with('[') && line.contains(']');
        let mut words = line.splitn(2, ' ');
        let count = words.next().and_then(|word| word.parse::<u64>().ok());
        if row {
            lines.extend(unmet(line).map(|condition| format!("no slot meets: {condition}")));
        } else if TOLD.iter().any(|words| line.contains(words)) || count.is_some_and(|n| n > 0) {
            // Behind the job's number, which is known.
            let told = line.split_once(":  ").map_or(line, |(_, told)| told);
            lines.push(told.to_owned());
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_where_every_slot_is_refused_is_it_the_jobs_own_doing() {
        let page = |rows: &str, machines: u32, rejected: u32| {
            format!(
                "Step    Matched  Condition\n-----  --------  ---------\n{rows}\n\n\
                 001.000:  Run analysis summary ignoring user priority.  Of {machines} machines,\n\
                       {rejected} are rejected by your job's requirements\n      0 reject your job\n"
            )
        };
        let (one, two) = (
            "[0]           0  TARGET.HasX is true",
            "[0]     0  TARGET.A\n[1]   0  TARGET.B\n[3]   0  [0] && [1]",
        );
        let none = "there is room for it, but no slot meets its requirements";
        let with = |conditions: &str| {
            Verdict::Never(format!("{none}; HTCondor finds none with: {conditions}"))
        };
        #[rustfmt::skip]
        let rows = [
            (page(one, 2, 2), with("TARGET.HasX is true")),
            (page(two, 1, 1), with("TARGET.A; TARGET.B")),
            // As newer releases write it, where a busy slot would do if it were drained.
            (page("[5]   0   0  TARGET.HasX\n[6]   0   3  TARGET.Y\n[7]   0   0  [5] && [6]", 4, 4), with("TARGET.HasX")),
            (page("[1]       never  true", 1, 1), Verdict::Never(none.into())),
            (page(one, 2, 1), Verdict::Matches),
            (page("", 0, 0), Verdict::Unknown),
            (String::new(), Verdict::Unknown),
            ("001.000:  Job is running.".to_owned(), Verdict::Unknown),
        ];
        for (page, expected) in rows {
            assert_eq!(judged(&page), expected, "{page}");
        }
    }

    #[test]
    fn what_tells_something_is_kept() {
        let text = r#"

-- Schedd: pool.example : <127.0.0.1:45591?...
The Requirements expression for job 1.000 is

    (TARGET.Arch == "X86_64") && (TARGET.Cpus >= RequestCpus)

Job 1.000 defines the following attributes:

    RequestCpus = 64

The Requirements expression for job 1.000 reduces to these conditions:

         Slots
Step    Matched  Condition
-----  --------  ---------
[0]           2  TARGET.Arch == "X86_64"
[7]           0  TARGET.Cpus >= RequestCpus

No successful match recorded.
Reason for last match failure: no match found 

001.000:  Run analysis summary ignoring user priority.  Of 1 machines,
      1 are rejected by your job's requirements
      0 are able to run your job

WARNING:  Be advised:
   No machines matched the jobs's constraints
"#;
        assert_eq!(
            trimmed(text),
            "no slot meets: TARGET.Cpus >= RequestCpus\nNo successful match recorded.\n\
             Reason for last match failure: no match found\n\
             Run analysis summary ignoring user priority.  Of 1 machines,\n\
             1 are rejected by your job's requirements"
        );
        let held = "001.001:  Job is held.\n\nHold reason: via condor_hold (by user me)\n";
        assert_eq!(
            trimmed(held),
            "Job is held.\nHold reason: via condor_hold (by user me)"
        );
        assert_eq!(trimmed(""), "");
    }
}
