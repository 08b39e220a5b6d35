//! What is known of the pool: from `condor_status`, asked for now and then.

use std::time::Duration;

use dispatch_core::command::Command;
use dispatch_core::lately::{Lately, answer};
use dispatch_core::needs::{Fit, Needs};

use crate::capacity::{COLUMNS, Capacity, SLOTS};

/// The pool.
#[derive(Debug, Default)]
pub struct Pool {
    known: Lately<Capacity>,
    /// What it has today is not all that it can have.
    grows: bool,
}

impl Pool {
    /// One that machines join when jobs wait for them, or not.
    pub fn new(grows: bool) -> Self {
        Self {
            grows,
            known: Lately::default(),
        }
    }

    /// Whether a container could ever run here. Where nothing is known, nothing is forbidden.
    pub fn fit(&self, needs: &Needs) -> Fit {
        if self.grows {
            return Fit::Now;
        }
        let fit = self.known.read(|capacity| capacity.fit(needs));
        let fit = fit.unwrap_or(Fit::Now);
        // Machines come and go: what forbids something is soon asked for again.
        if matches!(fit, Fit::Never(_)) {
            self.known.doubt();
        }
        fit
    }

    /// Whether a job that one machine cannot run has another to go to.
    pub fn has_others(&self) -> bool {
        let machines = self.known.read(Capacity::machines);
        self.grows || machines.is_none_or(|machines| machines > 1)
    }

    /// Asks again if what is known is old.
    pub async fn look(&self, patience: Duration) {
        let arguments = ["-json", "-attributes", COLUMNS, "-constraint", SLOTS];
        let command = Command::new("condor_status").args(arguments);
        self.ask(command, patience).await;
    }

    async fn ask(&self, command: Command, patience: Duration) {
        let asked = answer(command, patience, Capacity::parse);
        if let Err(said) = self.known.look(asked).await {
            tracing::warn!(
                said,
                "condor_status shows no slots: those of the last hour are taken to be there, or else what asks for too much is left to HTCondor"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_no_slot_has_is_refused_unless_the_pool_grows() {
        let small = r#"[{"Machine": "n1", "Cpus": 1, "Memory": 1, "Disk": 1}]"#;
        for (grows, known, cpus, fits, others) in [
            (false, false, 9, true, true),
            (false, true, 1, true, false),
            (false, true, 9, false, false),
            (true, true, 9, true, true),
        ] {
            let pool = Pool::new(grows);
            if known {
                let command = Command::new("echo").args([small]);
                pool.ask(command, Duration::from_secs(60)).await;
            }
            let needs = Needs {
                cpus,
                ..Needs::default()
            };
            let told = (pool.fit(&needs) == Fit::Now, pool.has_others());
            assert_eq!(told, (fits, others), "{grows} {known} {cpus}");
        }
    }
}
