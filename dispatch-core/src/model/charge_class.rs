//! What a scheduler's limits tell apart: containers that are charged alike.
//!
//! Input: the needs of a container. Output: its [`ChargeClass`], by which rejections and failures
//! are counted, so that the limit of one owner stops no other.

use std::fmt;

use crate::model::owner::KnownCharge;
use crate::model::resources::ResourceRequest;

/// What decides the account, QOS or accounting group of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeClass {
    /// Names of the partitions; empty means any.
    pub partitions: Vec<String>,
    /// Whether it may run on machines that can be taken away.
    pub preemptible: bool,
    /// The account, if it depends on the owner.
    pub charge: KnownCharge,
}

impl ChargeClass {
    /// The class of a container with these needs.
    pub fn of(needs: &ResourceRequest) -> Self {
        Self {
            partitions: needs.partitions.clone(),
            preemptible: needs.preemptible,
            charge: needs.charged_to.clone(),
        }
    }
}

impl fmt::Display for ChargeClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.partitions.is_empty() {
            true => f.write_str("without a partition")?,
            false => write!(f, "for partition {}", self.partitions.join(", "))?,
        }
        if self.preemptible {
            f.write_str(", preemptible")?;
        }
        match &self.charge {
            Some(charge) if !charge.account.is_empty() => {
                write!(f, ", charged by {}", charge.account)
            }
            _ => Ok(()),
        }
    }
}
