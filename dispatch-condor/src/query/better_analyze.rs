//! Runs `condor_q -better-analyze` for one job, and extracts why the job does not run.

use std::time::Duration;

use dispatch_core::model::resources::ResourceRequest;
use dispatch_core::model::world::JobId;
use dispatch_core::scheduler::command::Command;

/// The relevant lines of HTCondor's analysis of a job; none if there are none.
pub async fn analyze(job: &JobId, timeout: Duration) -> Option<String> {
    let command = Command::new("condor_q").args(["-better-analyze", &job.0]);
    let answer = command.timeout(timeout).run_checked().await;
    let text = relevant_lines(&answer.ok()?.stdout);
    (!text.is_empty()).then_some(text)
}

/// Whether a slot of the pool matches a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MatchVerdict {
    /// Enough is free, but no slot meets the job's requirements: the reason.
    Never(String),
    /// Some slot meets its requirements.
    Matches,
    /// HTCondor gave no answer, or too little is free now to decide.
    Unknown,
}

/// Whether any slot matches this job, which requests `needs`.
pub async fn match_verdict(job: &str, needs: &ResourceRequest, timeout: Duration) -> MatchVerdict {
    let command = Command::new("condor_status").timeout(timeout);
    let free = [
        "-limit",
        "1",
        "-af",
        "Name",
        "-constraint",
        &free_slot_constraint(needs),
    ];
    match command.args(free).run_checked().await {
        Ok(slot) if !slot.stdout.trim().is_empty() => {}
        _ => return MatchVerdict::Unknown,
    }
    let command = Command::new("condor_q").timeout(timeout);
    verdict_of(command.args(["-better-analyze", job])).await
}

/// Whether any slot matches the job of this ad, which is in no queue.
pub async fn of_job_ad(ad: String, timeout: Duration) -> MatchVerdict {
    let command = Command::new("condor_q").timeout(timeout);
    let command = command.args(["-better-analyze", "-jobads", "-"]);
    verdict_of(command.input(ad)).await
}

/// The verdict of an analysis.
async fn verdict_of(analysis: Command) -> MatchVerdict {
    let answer = analysis.run_checked().await;
    answer.map_or(MatchVerdict::Unknown, |answer| {
        parse_verdict(&answer.stdout)
    })
}

/// Constraint for slots that have as much free.
fn free_slot_constraint(needs: &ResourceRequest) -> String {
    let (memory, disk) = (needs.ram.div_ceil(1 << 20), needs.scratch.div_ceil(1 << 10));
    format!(
        "State == \"Unclaimed\" && DynamicSlot =!= true && Cpus >= {} && Memory >= {memory} && Disk >= {disk} && (GPUs ?: 0) >= {}",
        needs.cpus, needs.gpus
    )
}

/// Parses the summary of an analysis. If the job's own requirements reject every slot, the verdict
/// names the conditions that no slot meets. Pure.
fn parse_verdict(text: &str) -> MatchVerdict {
    const SUMMARY: &str = "Run analysis summary";
    let first = |text: &str| text.split_whitespace().next()?.parse::<u64>().ok();
    let mut lines = text.lines().skip_while(|line| !line.contains(SUMMARY));
    let machines = lines
        .next()
        .and_then(|line| first(line.split(" Of ").nth(1)?));
    let (machines, rejected) = match (machines, lines.next().and_then(first)) {
        (Some(machines @ 1..), Some(rejected)) => (machines, rejected),
        _ => return MatchVerdict::Unknown,
    };
    if rejected < machines {
        return MatchVerdict::Matches;
    }
    let conditions: Vec<&str> = text.lines().filter_map(unmet_condition).collect();
    MatchVerdict::Never(match conditions.is_empty() {
        true => "enough is free, but no slot meets its requirements all together; they exclude machines where it could not start".to_owned(),
        false => format!(
            "enough is free, but no slot meets its requirements; HTCondor finds none with: {}",
            conditions.join("; ")
        ),
    })
}

/// The condition of a row like `[3]   0  TARGET.HasX`, if no slot meets it. Newer releases add a
/// second number: the slots that would meet it after draining.
fn unmet_condition(line: &str) -> Option<&str> {
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
    // `[0] && [5]` combines rows that are listed by themselves.
    (counts > 0 && !condition.starts_with('[')).then_some(condition)
}

/// The conditions that no slot meets, the hold, the last match, and the number of machines for the
/// job.
fn relevant_lines(text: &str) -> String {
    const RELEVANT: [&str; 6] = [
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
            lines.extend(
                unmet_condition(line).map(|condition| format!("no slot meets: {condition}")),
            );
        } else if RELEVANT.iter().any(|words| line.contains(words)) || count.is_some_and(|n| n > 0)
        {
            // The text after the job id.
            let text = line.split_once(":  ").map_or(line, |(_, text)| text);
            lines.push(text.to_owned());
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
        let none = "enough is free, but no slot meets its requirements";
        let together = " all together; they exclude machines where it could not start";
        let with = |conditions: &str| {
            MatchVerdict::Never(format!("{none}; HTCondor finds none with: {conditions}"))
        };
        #[rustfmt::skip]
        let rows = [
            (page(one, 2, 2), with("TARGET.HasX is true")),
            (page(two, 1, 1), with("TARGET.A; TARGET.B")),
            // The format of newer releases, where a busy slot would fit if it were drained.
            (page("[5]   0   0  TARGET.HasX\n[6]   0   3  TARGET.Y\n[7]   0   0  [5] && [6]", 4, 4), with("TARGET.HasX")),
            (page("[1]       never  true", 1, 1), MatchVerdict::Never(format!("{none}{together}"))),
            (page(one, 2, 1), MatchVerdict::Matches),
            (page("", 0, 0), MatchVerdict::Unknown),
            (String::new(), MatchVerdict::Unknown),
            ("001.000:  Job is running.".to_owned(), MatchVerdict::Unknown),
        ];
        for (page, expected) in rows {
            assert_eq!(parse_verdict(&page), expected, "{page}");
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
            relevant_lines(text),
            "no slot meets: TARGET.Cpus >= RequestCpus\nNo successful match recorded.\n\
             Reason for last match failure: no match found\n\
             Run analysis summary ignoring user priority.  Of 1 machines,\n\
             1 are rejected by your job's requirements"
        );
        let held = "001.001:  Job is held.\n\nHold reason: via condor_hold (by user me)\n";
        assert_eq!(
            relevant_lines(held),
            "Job is held.\nHold reason: via condor_hold (by user me)"
        );
        assert_eq!(relevant_lines(""), "");
    }
}
