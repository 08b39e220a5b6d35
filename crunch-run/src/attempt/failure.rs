//! Why an attempt ended before the record was Running, and which errors mean what.

use arvados_client::Error;

use crate::inputs::MountError;
use crate::node::broken_node;
use crate::verdict::Reason;
use container_engine::EngineError;

#[derive(Debug)]
pub enum Failure {
    /// The record does not belong to this attempt, so nothing is written to it.
    NotOurs(String),
    /// This node or the network is at fault; another node may run the container.
    NeverRan(String),
    /// The same, and other containers will fail on this node as well.
    BrokenNode(String),
    /// The same, and not even the log can be stored: other nodes may fail as well.
    StorageFailed(String),
    /// The request is at fault on every node.
    UserError(Reason),
}

impl Failure {
    /// A failed call with the attempt token. A refusal means that the record belongs to another
    /// attempt.
    pub fn of_call(what: &str, error: &Error) -> Self {
        let text = format!("{what}: {error}");
        if error.is_denied() || error.is_not_found() {
            Self::NotOurs(text)
        } else {
            Self::NeverRan(text)
        }
    }

    /// A failed update to Running. `still_ours` tells whether the record is still Locked by this
    /// attempt.
    pub fn of_set_running(error: &Error, still_ours: bool) -> Self {
        let text = format!("the record was not set to Running: {error}");
        if error.is_denied() || error.is_not_found() || error.is_stale() {
            Self::NotOurs(text)
        } else if !error.is_refused() {
            Self::NeverRan(text)
        } else if still_ours {
            Self::UserError(Reason::new(
                format!("the API server does not let it run: {error}"),
                "the server refused to set its record to Running although this attempt holds its lock",
            ))
        } else {
            Self::NotOurs(text)
        }
    }

    /// A failed update that cancels the record because of a user error.
    pub fn of_cancellation(error: &Error) -> Self {
        let text = format!("the record was not cancelled: {error}");
        if error.is_denied() || error.is_not_found() || error.is_refused() || error.is_stale() {
            Self::NotOurs(text)
        } else {
            Self::NeverRan(text)
        }
    }

    pub fn of_mounts(error: &MountError) -> Self {
        if error.is_user_error() {
            Self::UserError(Reason::new(
                error.to_string(),
                "found while the inputs were being fetched",
            ))
        } else {
            Self::NeverRan(format!("the inputs cannot be fetched: {error}"))
        }
    }

    pub fn of_engine(what: &str, error: &EngineError) -> Self {
        if error.is_user_error() {
            Self::UserError(Reason::new(error.to_string(), what))
        } else {
            Self::NeverRan(format!("{what}: {error}")).check_node()
        }
    }

    /// Marks the node as broken if the reason has the words of a broken node.
    pub fn check_node(self) -> Self {
        match self {
            Self::NeverRan(reason) if broken_node::is_symptom(&reason) => Self::BrokenNode(reason),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use arvados_client::error::{ApiError, StatusCode};

    use super::*;

    #[test]
    fn only_the_record_says_that_it_is_not_ours() {
        // status, the record is still Locked by this attempt, what follows
        for (status, still_ours, expected) in [
            (401, false, "not ours"),
            (403, false, "not ours"),
            (404, false, "not ours"),
            (412, false, "not ours"),
            (422, false, "not ours"),
            (422, true, "mistake"),
            (500, false, "never ran"),
        ] {
            let error = Error::Api(ApiError {
                status: StatusCode::from_u16(status).unwrap(),
                messages: vec!["undefined method".to_owned()],
                request_id: String::new(),
                retry_after: None,
            });
            let failure = Failure::of_set_running(&error, still_ours);
            let (kind, text) = match failure {
                Failure::NotOurs(text) => ("not ours", text),
                Failure::UserError(reason) => ("mistake", reason.sentence),
                Failure::NeverRan(text) => ("never ran", text),
                Failure::BrokenNode(text) => ("broken node", text),
                Failure::StorageFailed(text) => ("storage failed", text),
            };
            assert_eq!(kind, expected, "{status}");
            assert!(text.contains("undefined method"), "{text}");
        }
    }
}
