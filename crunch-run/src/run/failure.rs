//! Why an attempt ended before the record was Running.

use arvados_client::Error;

use crate::broken_node;
use crate::engine::EngineError;
use crate::mounts::MountError;
use crate::verdict::Reason;

#[derive(Debug)]
pub enum Failure {
    /// The record is not this attempt's: nothing is written to it.
    NotOurs(String),
    /// This node or the network is at fault; the container may be tried elsewhere.
    NeverRan(String),
    /// The same, and whatever comes to this node next will fare no better.
    BrokenNode(String),
    /// The request is at fault, and would be anywhere.
    Mistake(Reason),
}

impl Failure {
    /// A call with the attempt's own token failed: without that token's rights nothing is ours.
    pub fn of_call(what: &str, error: &Error) -> Self {
        let text = format!("{what}: {error}");
        if error.is_denied() || error.is_not_found() {
            Self::NotOurs(text)
        } else {
            Self::NeverRan(text)
        }
    }

    /// The update to Running failed.
    pub fn of_announcement(error: &Error) -> Self {
        let text = format!("the record was not set to Running: {error}");
        if error.is_denied() || error.is_not_found() || error.is_refused() || error.is_stale() {
            Self::NotOurs(text)
        } else {
            Self::NeverRan(text)
        }
    }

    pub fn of_mounts(error: &MountError) -> Self {
        if error.is_users_mistake() {
            Self::Mistake(Reason::new(
                error.to_string(),
                "found while the inputs were being fetched",
            ))
        } else {
            Self::NeverRan(format!("the inputs cannot be fetched: {error}"))
        }
    }

    pub fn of_engine(what: &str, error: &EngineError) -> Self {
        if error.is_users() {
            Self::Mistake(Reason::new(error.to_string(), what))
        } else {
            Self::NeverRan(format!("{what}: {error}")).on_this_node()
        }
    }

    /// Of something that this node alone has to do with: its words may be symptoms.
    pub fn on_this_node(self) -> Self {
        match self {
            Self::NeverRan(reason) if broken_node::is_symptom(&reason) => Self::BrokenNode(reason),
            other => other,
        }
    }
}
