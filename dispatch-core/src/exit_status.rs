//! What crunch-run's exit status says: the contract between executor, schedulers and dispatchers.

/// The container ran; its results are on the node and could not be delivered.
pub const UNDELIVERED: i64 = 77;

/// One sentence.
pub fn sentence(status: i64) -> &'static str {
    match status {
        0 => "crunch-run ended without recording a final state",
        75 => "crunch-run could not start the container there",
        76 => "the container was not this attempt's any more",
        UNDELIVERED => {
            "the container ran, and its results could not be delivered: they are kept on the node, where the job's last words say"
        }
        78 => "crunch-run is not set up rightly on that node",
        128.. => "crunch-run was killed",
        _ => "crunch-run failed without recording a final state",
    }
}

/// Whether these last words of crunch-run say what [`UNDELIVERED`] says, where nobody remembers the status: a scheduler
/// forgets its jobs while the API server is away.
pub fn says_undelivered(last_words: &str) -> bool {
    let kept = last_words.contains("on this node delivers them later");
    // They were to be taken out of a job's directory, and could not be.
    kept && !last_words.contains("end with this job")
}

/// The directory on the node with the results, as crunch-run named it: "`crunch-run resume DIR`".
pub fn results_directory(last_words: &str) -> Option<&str> {
    let (_, named) = last_words.rsplit_once("`crunch-run resume ")?;
    named.split_once('`').map(|(directory, _)| directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_results_are_named() {
        assert!(sentence(77).contains("kept on the node"));
        assert_eq!(sentence(137), "crunch-run was killed");
        assert!(sentence(1).contains("failed"));
        let kept = "u The results are not delivered and stay in /x: no answer. `crunch-run resume /x` on this node delivers them later\n";
        let lost = "crunch-run: the results could not be delivered and end with this job, since they cannot be taken to /y\n";
        assert!(says_undelivered(kept));
        assert_eq!(results_directory(kept), Some("/x"));
        assert_eq!(results_directory(lost), None);
        assert!(!says_undelivered(&format!("{kept}{lost}")));
        assert!(!says_undelivered("u Complete\n"));
    }
}
