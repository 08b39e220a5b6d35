//! Tells whether Slurm's commands have answered, for dispatch-slurm and dispatch-overseer. Pure.

use crate::scheduler::command::CommandOutput;

/// The rows of an answer of `squeue`, whose format begins with the job id, or with `@` and the job
/// id. None if squeue has not listed jobs, whatever its exit status: it writes a heading, also
/// without jobs, once slurmctld has answered. A site may print greetings before it.
pub fn squeue_rows(answer: &CommandOutput) -> Option<&str> {
    const NOT_ANSWERED: [&str; 2] = ["slurm_load_jobs error", "contact slurm controller"];
    let fails = |words: &&str| answer.stderr.contains(words);
    let mut rest = answer.stdout.as_str();
    loop {
        let (line, rows) = rest.split_once('\n')?;
        // What is no text may be a damaged row.
        if line.contains('\u{fffd}') || line.starts_with('@') && !line.starts_with("@JOBID") {
            return None;
        }
        if line.trim_start_matches('@').starts_with("JOBID") {
            return (!NOT_ANSWERED.iter().any(fails)).then_some(rows);
        }
        rest = rows;
    }
}

/// Removes the line that Slurm's commands print first with `--clusters`.
pub fn strip_cluster_heading(answer: &str) -> &str {
    match answer.split_once('\n') {
        Some((first, rest)) if first.starts_with("CLUSTER: ") => rest,
        _ => answer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_judged_by_its_heading_and_two_errors_only() {
        let heading = "@JOBID|STATE|COMMENT|NODELIST|NICE|PRIORITY|START_TIME|REASON|NAME\n";
        let harmless = "squeue: error: NodeNames=n1 CPUs=7 match no Sockets, Resetting CPUs.\n";
        let failed = "slurm_load_jobs error: Unable to contact slurm controller\n";
        for (stdout, stderr, expected) in [
            (heading.to_owned(), "", Some("")),
            (heading.to_owned(), harmless, Some("")),
            (
                format!("CLUSTER: east\n{heading}@7|x\n"),
                harmless,
                Some("@7|x\n"),
            ),
            (
                "JOBID|STATE\n7|RUNNING\n".to_owned(),
                "",
                Some("7|RUNNING\n"),
            ),
            (String::new(), "", None),
            (String::new(), failed, None),
            (heading.to_owned(), failed, None),
            (format!("Welcome!\n{heading}@7|x\n"), "", Some("@7|x\n")),
            (format!("\u{fffd}\n{heading}@7|x\n"), "", None),
            (format!("@6|x\n{heading}@7|x\n"), "", None),
            ("Welcome!\n".to_owned(), "", None),
            ("CLUSTER: east\n".to_owned(), "", None),
            ("@7|x\n".to_owned(), "", None),
        ] {
            let answer = CommandOutput {
                status: std::process::ExitStatus::default(),
                stdout,
                stderr: stderr.to_owned(),
            };
            assert_eq!(squeue_rows(&answer), expected, "{answer:?}");
        }
    }
}
