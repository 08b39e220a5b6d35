//! What a scheduler's limits tell apart: containers that are charged alike.
//!
//! Input: the needs of a container. Output: its [`ChargeClass`], by which rejections are counted,
//! so that the limit of one account stops no other, and its [`UserClass`]: a site may also refuse
//! the jobs of one user, whom each job names.

use std::fmt;

use arvados_client::UserUuid;

use crate::model::owner::{KnownCharge, Owner};
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

/// The containers of one user in a class.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UserClass {
    /// How they are charged.
    pub charged: ChargeClass,
    /// The user; none if the scheduler does not see users.
    pub user: Option<UserUuid>,
}

impl UserClass {
    /// The class of a container with these needs.
    pub fn of(needs: &ResourceRequest) -> Self {
        Self {
            charged: ChargeClass::of(needs),
            user: needs.charged_owner().and_then(|owner| owner.user.clone()),
        }
    }
}

impl fmt::Display for UserClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.charged.fmt(f)?;
        let charge = self.charged.charge.as_ref();
        let owner = charge.and_then(|charge| charge.owner.as_deref());
        match owner.and_then(Owner::user_label) {
            Some(user) => write!(f, ", of user {user}"),
            None => Ok(()),
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
