//! What HTCondor itself says of why a job does not run: of the pages of `condor_q -better-analyze`, what tells something.

use std::time::Duration;

use dispatch_core::command::Command;
use dispatch_core::world::JobId;

/// Of this job; none where it is not told.
pub async fn of(job: &JobId, patience: Duration) -> Option<String> {
    let command = Command::new("condor_q").patience(patience);
    let answer = command.args(["-better-analyze", &job.0]).succeed().await;
    let text = trimmed(&answer.ok()?.output);
    (!text.is_empty()).then_some(text)
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
        let row = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let mut words = line.splitn(2, ' ');
        let count = words.next().and_then(|word| word.parse::<u64>().ok());
        if let Some((_, row)) = row {
            if let Some(condition) = row.trim().strip_prefix("0 ") {
                lines.push(format!("no slot meets: {}", condition.trim()));
            }
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
