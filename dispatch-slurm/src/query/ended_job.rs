//! The words by which Slurm's commands say that a job has ended. No exit status tells.

/// Whether Slurm has forgotten the job.
pub fn is_unknown_job(message: &str) -> bool {
    message.contains("Invalid job id")
}

/// Whether Slurm has forgotten the job, or knows that it has ended.
pub fn has_ended(message: &str) -> bool {
    let ended = ["already complet", "already finished"];
    is_unknown_job(message) || ended.iter().any(|words| message.contains(words))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_job_is_told_from_a_failure() {
        #[rustfmt::skip]
        let rows = [
            ("scancel: error: Kill job error on job id 7: Invalid job id specified", true, true),
            ("slurm_load_jobs error: Invalid job id specified", true, true),
            ("Job/step already completing or completed", false, true),
            ("Job has already finished", false, true),
            ("Unable to contact slurm controller (connect failure)", false, false),
            ("Access/permission denied", false, false),
        ];
        for (message, unknown, ended) in rows {
            assert_eq!(is_unknown_job(message), unknown, "{message}");
            assert_eq!(has_ended(message), ended, "{message}");
        }
    }
}
