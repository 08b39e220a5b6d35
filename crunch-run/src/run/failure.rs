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

    /// The update to Running failed. `still_ours` is whether the record, read again, is Locked by this attempt.
    pub fn of_announcement(error: &Error, still_ours: bool) -> Self {
        let text = format!("the record was not set to Running: {error}");
        if error.is_denied() || error.is_not_found() || error.is_stale() {
            Self::NotOurs(text)
        } else if !error.is_refused() {
            Self::NeverRan(text)
        } else if still_ours {
            Self::Mistake(Reason::new(
                format!("the API server does not let it run: {error}"),
                "the server refused to set its record to Running although this attempt holds its lock",
            ))
        } else {
            Self::NotOurs(text)
        }
    }

    /// The update that cancels the record for a mistake failed.
    pub fn of_refusal(error: &Error) -> Self {
        let text = format!("the record was not cancelled: {error}");
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
            let failure = Failure::of_announcement(&error, still_ours);
            let (kind, text) = match failure {
                Failure::NotOurs(text) => ("not ours", text),
                Failure::Mistake(reason) => ("mistake", reason.sentence),
                Failure::NeverRan(text) => ("never ran", text),
                Failure::BrokenNode(text) => ("broken node", text),
            };
            assert_eq!(kind, expected, "{status}");
            assert!(text.contains("undefined method"), "{text}");
        }
    }
}
