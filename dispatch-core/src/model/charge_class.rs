//! What a scheduler's limits tell apart: containers that are charged alike.
//!
//! Input: the needs of a container. Output: its [`ChargeClass`], by which rejections and failures
//! are counted, so that the limit of one owner stops no other.

use std::fmt;

use crate::model::owner::KnownOwner;
use crate::model::resources::ResourceRequest;

/// What decides the account, QOS or accounting group of a job.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChargeClass {
    /// Names of the partitions; empty means any.
    pub partitions: Vec<String>,
    /// Whether it may run on machines that can be taken away.
    pub preemptible: bool,
    /// User and project, if the arguments of its job depend on them.
    pub owner: KnownOwner,
}

impl ChargeClass {
    /// The class of a container with these needs.
    pub fn of(needs: &ResourceRequest) -> Self {
        Self {
            partitions: needs.partitions.clone(),
            preemptible: needs.preemptible,
            owner: needs.charged_to.clone(),
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
        match self.owner.as_ref().and_then(|owner| owner.user_label()) {
            Some(user) => write!(f, ", of user {user}"),
            None => Ok(()),
        }
    }
}
