//! What is known of the nodes: from `sinfo`, asked for now and then.

use std::time::Duration;

use dispatch_core::command::Command;
use dispatch_core::lately::{Lately, answer};
use dispatch_core::needs::{Fit, Needs};

use crate::capacity::{Asked, Capacity, FORMAT, total_nodes};

/// The nodes.
#[derive(Debug)]
pub struct Nodes {
    asked: Asked,
    known: Lately<Capacity>,
}

impl Nodes {
    /// For jobs that ask for what `asked` says.
    pub fn new(asked: Asked) -> Self {
        Self {
            asked,
            known: Lately::default(),
        }
    }

    /// Whether a container could ever run here. Where nothing is known, nothing is forbidden.
    pub fn fit(&self, needs: &Needs) -> Fit {
        let fit = self.known.read(|capacity| capacity.fit(needs, self.asked));
        fit.unwrap_or(Fit::Now)
    }

    /// A submission failed: what is known may not be true any more.
    pub fn doubt(&self) {
        self.known.doubt();
    }

    /// Asks `sinfo` and `scontrol` again if what is known is old.
    pub async fn look(&self, sinfo: Command, scontrol: Command, patience: Duration) {
        let sinfo = sinfo.args(["--noheader", "--all", "--exact", "--format", FORMAT]);
        let scontrol = scontrol.args(["--all", "--oneliner", "show", "partition"]);
        let asked = async {
            let seen = answer(sinfo, patience, Capacity::parse).await?;
            let all = answer(scontrol, patience, |answer| Some(total_nodes(answer))).await?;
            Ok::<_, String>(seen.of(&all))
        };
        if let Err(said) = self.known.look(asked).await {
            tracing::warn!(
                said,
                "sinfo or scontrol does not tell what nodes there are: what they told in the last hour holds, or else what asks for too much is left to Slurm to refuse"
            );
        }
    }
}
