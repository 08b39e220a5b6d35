//! What is known of the pool: from `condor_status`, asked for now and then.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dispatch_core::command::Command;
use dispatch_core::needs::{Fit, Needs};

use crate::capacity::{COLUMNS, Capacity, SLOTS};

/// What is known holds for so long.
const HOLDS: Duration = Duration::from_secs(300);
/// What says that a container can never run here, only for so long: machines come and go.
const HOLDS_IN_DOUBT: Duration = Duration::from_secs(30);
/// Jobs are more important.
const PATIENCE: Duration = Duration::from_secs(20);

/// The pool.
#[derive(Debug, Default)]
pub struct Pool {
    known: Mutex<Known>,
    /// What it has today is not all that it can have.
    grows: bool,
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

impl Pool {
    /// One that machines join when jobs wait for them.
    pub fn that_grows() -> Self {
        Self {
            grows: true,
            ..Self::default()
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a container could ever run here. Where nothing is known, nothing is forbidden.
    pub fn fit(&self, needs: &Needs) -> Fit {
        let mut known = self.known();
        let fit = match &known.capacity {
            Some(capacity) if !self.grows => capacity.fit(needs),
            Some(_) | None => Fit::Now,
        };
        known.in_doubt |= matches!(fit, Fit::Never(_));
        fit
    }

    /// Whether a job that one machine cannot run has another to go to.
    pub fn has_others(&self) -> bool {
        let known = self.known();
        let machines = known.capacity.as_ref().map(Capacity::machines);
        self.grows || machines.is_none_or(|machines| machines > 1)
    }

    /// Asks again if what is known is old.
    pub async fn look(&self, patience: Duration) {
        if !self.known().is_due() {
            return;
        }
        let arguments = ["-json", "-attributes", COLUMNS, "-constraint", SLOTS];
        let command = Command::new("condor_status").patience(patience.min(PATIENCE));
        let answer = command.args(arguments).succeed().await;
        let capacity = match &answer {
            Ok(answer) => Capacity::parse(&answer.output),
            Err(_) => None,
        };
        if capacity.is_none() {
            let said = answer.map_or_else(|error| error.to_string(), |answer| answer.complaint);
            tracing::warn!(
                said = said.lines().next(),
                "condor_status shows no slots: what asks for too much is left to HTCondor"
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
    fn what_forbids_something_is_asked_for_sooner() {
        let pool = Pool::default();
        assert!(pool.known().is_due() && pool.has_others());
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        let small = r#"[{"Machine": "n1", "Cpus": 1, "Memory": 1, "Disk": 1}]"#;
        let growing = Pool::that_grows();
        *growing.known() = Known {
            capacity: Capacity::parse(small),
            at: ago(1),
            in_doubt: false,
        };
        let many = Needs {
            cpus: 1000,
            ..Needs::default()
        };
        assert_eq!(growing.fit(&many), Fit::Now);
        assert!(growing.has_others());
        for (seconds, cpus, due) in [(31, 1, false), (301, 1, true), (31, 2, true), (1, 2, false)] {
            *pool.known() = Known {
                capacity: Capacity::parse(small),
                at: ago(seconds),
                in_doubt: false,
            };
            let needs = Needs {
                cpus,
                ..Needs::default()
            };
            assert_eq!(pool.fit(&needs) == Fit::Now, cpus == 1);
            assert_eq!(pool.known().is_due(), due, "{seconds} {cpus}");
            assert!(!pool.has_others());
        }
    }
}
