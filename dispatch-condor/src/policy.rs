//! What HTCondor may do with a job by itself: the lines of a submit description that follow from crunch-run's exit
//! status. Pure. Attributes: HTCondor manual, "Job ClassAd Attributes".
//!
//! A start that ended with 75 ran nothing and may be followed by one on another machine, a few times. A start of which
//! that is not known (evicted, lost, held, killed) is the last one: whether the container runs again is decided by the
//! API server. Should HTCondor start such a job all the same, crunch-run finds its record Running and ends with 76.

/// crunch-run's exit status for "never ran, may be tried elsewhere".
const NEVER_RAN: i64 = 75;
/// A job that has moved waits so many seconds for another machine; then its container is given back.
const MOVES_WITHIN: u64 = 300;
/// HTCondor may try so often to begin a start that never comes about.
const MOST_TRIES: u32 = 10;
/// A running job whose submit machine is away goes on for so many seconds.
const LEASE: u32 = 2400;

/// A start of this job was not followed by an exit of its own. (An exit with 75 is one.)
const MAY_HAVE_RUN: &str = "(NumJobStarts ?: 0) > (NumJobCompletions ?: 0)";

/// How often a job may be started, the first time included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Starts(pub u32);

impl Starts {
    /// The lines, `requirements` left out. `grace`: seconds between TERM and KILL, for crunch-run to end the container and
    /// to save what there is.
    pub fn lines(self, grace: u64) -> Vec<String> {
        let starts = self.0.max(1);
        // It waits or is held.
        let rests = "(JobStatus == 1 || JobStatus == 5)";
        let moves = format!(
            "JobStatus == 1 && (NumJobStarts ?: 0) > 0 && time() - EnteredCurrentStatus > {MOVES_WITHIN}"
        );
        let tries = format!("(NumJobStarts ?: 0) == 0 && (NumShadowStarts ?: 0) > {MOST_TRIES}");
        vec![
            format!(
                "on_exit_remove = ExitBySignal =!= false || ExitCode =!= {NEVER_RAN} || NumJobStarts >= {starts}"
            ),
            format!("periodic_remove = {rests} && {MAY_HAVE_RUN} || {moves} || {tries}"),
            format!("job_lease_duration = {LEASE}"),
            "kill_sig = SIGTERM".to_owned(),
            "want_graceful_removal = true".to_owned(),
            format!("job_max_vacate_time = {grace}"),
        ]
    }
}

/// Where a job may start: never again after a start that may have run the container, nor on the machine it was on last,
/// nor on those to `avoid`. An admin's own requirements are added to these.
pub fn requirements(avoid: &[String]) -> String {
    let machines = avoid.iter().map(|node| {
        let node = node.replace(['"', '\\'], "");
        format!("TARGET.Machine =!= \"{node}\"")
    });
    let all: Vec<String> = [
        // Not `!(…)`, of which HTCondor's analysis makes nonsense.
        "(NumJobStarts ?: 0) <= (NumJobCompletions ?: 0)".to_owned(),
        // It is `slot1_2@machine`.
        "stringListIMember(TARGET.Machine, LastRemoteHost ?: \"\", \"@\") =!= true".to_owned(),
    ]
    .into_iter()
    .chain(machines)
    .collect();
    format!("requirements = {}", all.join(" && "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_never_ran_stays_in_the_queue() {
        let lines = Starts(3).lines(60);
        let exit =
            "on_exit_remove = ExitBySignal =!= false || ExitCode =!= 75 || NumJobStarts >= 3";
        assert!(lines.iter().any(|line| line == exit), "{lines:?}");
        assert!(Starts(0).lines(60)[0].ends_with("NumJobStarts >= 1"));
    }

    #[test]
    fn machines_to_avoid_are_no_place_for_it() {
        let line = requirements(&["n1.example".into(), "n\"2".into()]);
        let end = r#" && TARGET.Machine =!= "n1.example" && TARGET.Machine =!= "n2""#;
        assert!(line.ends_with(end), "{line}");
        assert!(
            line.starts_with("requirements = (NumJobStarts ?: 0) <= (NumJobCompletions ?: 0) && "),
            "{line}"
        );
    }
}
