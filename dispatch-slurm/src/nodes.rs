//! What is known of the nodes: from `sinfo`, asked for now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dispatch_core::command::Command;
use dispatch_core::needs::{Fit, Needs};

use crate::capacity::{Asked, Capacity, FORMAT};

/// What is known holds for so long.
const HOLDS: Duration = Duration::from_secs(300);
/// If a submission failed since then, only for so long.
const HOLDS_IN_DOUBT: Duration = Duration::from_secs(30);
/// Jobs are more important.
const PATIENCE: Duration = Duration::from_secs(20);

/// The nodes.
#[derive(Debug)]
pub struct Nodes {
    asked: Asked,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    capacity: Option<Capacity>,
    at: Option<Instant>,
    in_doubt: bool,
}

impl Known {
    fn is_due(&self) -> bool {
        let holds = match self.in_doubt {
            true => HOLDS_IN_DOUBT,
            false => HOLDS,
        };
        self.at.is_none_or(|at| at.elapsed() >= holds)
    }
}

impl Nodes {
    /// For jobs that ask for what `asked` says.
    pub fn new(asked: Asked) -> Self {
        Self {
            asked,
            known: Mutex::default(),
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a container could ever run here. Where nothing is known, nothing is forbidden.
    pub fn fit(&self, needs: &Needs) -> Fit {
        match &self.known().capacity {
            Some(capacity) => capacity.fit(needs, self.asked),
            None => Fit::Now,
        }
    }

    /// A submission failed: what is known may not be true any more.
    pub fn doubt(&self) {
        self.known().in_doubt = true;
    }

    /// Asks `sinfo` again if what is known is old.
    pub async fn look(&self, sinfo: Command, patience: Duration) {
        if !self.known().is_due() {
            return;
        }
        let arguments = ["--noheader", "--all", "--exact", "--format", FORMAT];
        let sinfo = sinfo.patience(patience.min(PATIENCE));
        let answer = sinfo.args(arguments).succeed().await;
        let capacity = match &answer {
            Ok(answer) => Capacity::parse(&answer.output),
            Err(_) => None,
        };
        if capacity.is_none() {
            let said = answer.map_or_else(|error| error.to_string(), |answer| answer.output);
            tracing::warn!(
                said = said.lines().next(),
                "sinfo does not tell what nodes there are: what asks for too much is left to Slurm to refuse"
            );
        }
        *self.known() = Known {
            capacity,
            at: Some(Instant::now()),
            in_doubt: false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_submission_brings_the_next_look_forward() {
        let nodes = Nodes::new(Asked::by(&[], &[]));
        assert!(nodes.known().is_due());
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        for (seconds, in_doubt, due) in [
            (31, false, false),
            (301, false, true),
            (31, true, true),
            (1, true, false),
        ] {
            *nodes.known() = Known {
                at: ago(seconds),
                ..Known::default()
            };
            if in_doubt {
                nodes.doubt();
            }
            assert_eq!(nodes.known().is_due(), due, "{seconds} {in_doubt}");
        }
        assert_eq!(nodes.fit(&Needs::default()), Fit::Now);
    }
}
