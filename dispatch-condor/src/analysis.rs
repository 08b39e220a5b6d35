//! What HTCondor itself says of why a job does not run: `condor_q -better-analyze`, without what is of no use.

use std::time::Duration;

use dispatch_core::command::Command;
use dispatch_core::world::JobId;

/// It writes pages.
const LONGEST: usize = 40;

/// Of this job; none where it is not told.
pub async fn of(job: &JobId, patience: Duration) -> Option<String> {
    let command = Command::new("condor_q").patience(patience);
    let answer = command.args(["-better-analyze", &job.0]).succeed().await;
    let text = trimmed(&answer.ok()?.output);
    (!text.is_empty()).then_some(text)
}

/// Without headers, empty lines, and the requirements that are quoted before they are analysed.
fn trimmed(text: &str) -> String {
    let mut lines = Vec::new();
    let mut quoting = false;
    for line in text.lines().map(str::trim_end) {
        let of_note = !line.is_empty() && !line.starts_with("--");
        if line.contains("Requirements expression for job") {
            quoting = line.ends_with("is");
        }
        if !line.starts_with(' ') && !line.contains("Requirements expression") {
            quoting = false;
        }
        if of_note && !quoting {
            lines.push(line);
        }
    }
    lines.truncate(LONGEST);
    lines.join("\n")
}
