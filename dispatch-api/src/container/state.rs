//! The state machine of a container as one table: who may go where, and what may be written on the way.
//!
//! Pure: it knows states, actors and attribute names, and nothing of storage.

use crate::error::{ApiError, Result};
use crate::schema::humanise;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Queued,
    Locked,
    Running,
    Complete,
    Cancelled,
}

use State::{Cancelled, Complete, Locked, Queued, Running};

impl State {
    pub const ALL: [State; 5] = [Queued, Locked, Running, Complete, Cancelled];

    pub fn parse(text: &str) -> Option<State> {
        Self::ALL.into_iter().find(|state| state.as_str() == text)
    }

    pub fn as_str(self) -> &'static str {
        match self {
            Queued => "Queued",
            Locked => "Locked",
            Running => "Running",
            Complete => "Complete",
            Cancelled => "Cancelled",
        }
    }

    pub fn is_final(self) -> bool {
        matches!(self, Complete | Cancelled)
    }

    /// Somebody holds the container: a token is its lock owner.
    pub fn is_held(self) -> bool {
        matches!(self, Locked | Running)
    }
}

/// What the calling token is to one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The token that locked it.
    Holder,
    /// An administrator's token that did not.
    Admin,
    /// The token made for the container itself.
    Container,
    /// Anybody else.
    User,
}

pub const TRANSITIONS: [(State, State); 8] = [
    (Queued, Locked),
    (Queued, Cancelled),
    (Locked, Queued),
    (Locked, Running),
    (Locked, Cancelled),
    (Running, Complete),
    (Running, Cancelled),
    (Complete, Cancelled),
];

/// May this actor bring the container from one state to another? Staying is always allowed.
pub fn check_transition(actor: Actor, from: State, to: State) -> Result<()> {
    let known = from == to || TRANSITIONS.contains(&(from, to));
    match actor {
        Actor::User => return Err(ApiError::denied()),
        // The container's own token speaks only about a run.
        Actor::Container if from != Running => return Err(ApiError::denied()),
        _ => {}
    }
    if !known {
        return Err(ApiError::invalid(format!(
            "State cannot change from {} to {}",
            from.as_str(),
            to.as_str()
        )));
    }
    if (from, to) == (Locked, Queued) && actor != Actor::Holder {
        return Err(ApiError::Denied(
            "#<ArvadosModel::PermissionDeniedError: locked by a different token>".into(),
        ));
    }
    Ok(())
}

/// What describes the progress of a run; `log` is told by the holder alone.
const PROGRESS: [&str; 8] = [
    "exit_code",
    "progress",
    "runtime_status",
    "log",
    "output",
    "output_properties",
    "cost",
    "subrequests_cost",
];

/// Attributes, besides `state`, that this actor may change in a request that leads from `from` to `to`.
pub fn writable(actor: Actor, from: State, to: State) -> Vec<&'static str> {
    let progress = || PROGRESS.to_vec();
    let own_progress = || {
        let mut attributes = progress();
        attributes.retain(|name| *name != "log");
        attributes
    };
    match (actor, from, to) {
        (Actor::User, _, _) => vec![],
        (Actor::Container, Running, Running) => {
            let mut attributes = own_progress();
            attributes.extend([
                "gateway_address",
                "interactive_session_started",
                "finished_at",
            ]);
            attributes
        }
        (Actor::Container, Running, Complete | Cancelled) => {
            let mut attributes = own_progress();
            attributes.push("finished_at");
            attributes
        }
        (Actor::Container, _, _) => vec![],

        (_, Queued, Queued) => vec!["priority"],
        (_, Queued, Locked) | (_, Locked, Queued) => vec!["priority"],
        (Actor::Holder, Locked, Locked) => vec!["priority", "runtime_status", "log", "lock_count"],
        (Actor::Admin, Locked, Locked) => vec!["priority", "lock_count"],
        (Actor::Holder, Locked, Running) => {
            let mut attributes = progress();
            attributes.extend(["priority", "gateway_address", "started_at"]);
            attributes
        }
        (Actor::Holder, Running, Running) => {
            let mut attributes = progress();
            attributes.extend(["priority", "gateway_address", "interactive_session_started"]);
            attributes
        }
        (Actor::Admin, Locked | Running, Running) => {
            vec!["priority", "gateway_address", "interactive_session_started"]
        }
        (Actor::Holder, Running, Complete | Cancelled) => {
            let mut attributes = progress();
            attributes.push("finished_at");
            attributes
        }
        (Actor::Admin, Running, Complete | Cancelled) => vec!["finished_at"],
        (_, Queued, Cancelled) | (Actor::Holder, Locked, Cancelled) => {
            vec!["finished_at", "log", "runtime_status", "cost"]
        }
        _ => vec![],
    }
}

/// Refuse the whole request if it changes anything that may not be changed.
/// `changes` are (attribute, old, new), `state` not among them.
pub fn check_attributes(
    actor: Actor,
    from: State,
    to: State,
    changes: &[(&str, String, String)],
) -> Result<()> {
    let allowed = writable(actor, from, to);
    let refused: Vec<String> = changes
        .iter()
        .filter(|(name, _, _)| !allowed.contains(name))
        .map(|(name, old, new)| {
            format!(
                "{} cannot be modified in state '{}' ({old}, {new})",
                humanise(name),
                to.as_str()
            )
        })
        .collect();
    if refused.is_empty() {
        Ok(())
    } else {
        Err(ApiError::Invalid(refused))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(actor: Actor, from: State, to: State) -> u16 {
        match check_transition(actor, from, to) {
            Ok(()) => 200,
            Err(error) => error.status().as_u16(),
        }
    }

    /// The whole matrix as observed on a real server; rows are `from`, columns `to`, in `State::ALL` order.
    #[test]
    fn transition_matrix_by_actor() {
        let admin = [
            [200, 200, 422, 422, 200],
            [403, 200, 200, 422, 200],
            [422, 422, 200, 200, 200],
            [422, 422, 422, 200, 200],
            [422, 422, 422, 422, 200],
        ];
        let mut holder = admin;
        holder[1][0] = 200;
        let mut container = [[403; 5]; 5];
        container[2] = admin[2];
        let user = [[403; 5]; 5];
        for (actor, matrix) in [
            (Actor::Holder, holder),
            (Actor::Admin, admin),
            (Actor::Container, container),
            (Actor::User, user),
        ] {
            for (row, from) in State::ALL.into_iter().enumerate() {
                for (column, to) in State::ALL.into_iter().enumerate() {
                    assert_eq!(
                        status(actor, from, to),
                        matrix[row][column],
                        "{actor:?}: {from:?} to {to:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn attributes_by_actor_and_state() {
        use Actor::{Admin, Container, Holder, User};
        let cases: [(Actor, State, State, &str, bool); 30] = [
            (Admin, Queued, Queued, "priority", true),
            (Admin, Queued, Queued, "runtime_status", false),
            (Holder, Locked, Locked, "runtime_status", true),
            (Holder, Locked, Locked, "log", true),
            (Holder, Locked, Locked, "lock_count", true),
            (Holder, Locked, Locked, "exit_code", false),
            (Admin, Locked, Locked, "runtime_status", false),
            (Admin, Locked, Locked, "lock_count", true),
            (Container, Locked, Locked, "progress", false),
            (Holder, Locked, Running, "log", true),
            (Holder, Locked, Running, "gateway_address", true),
            (Holder, Locked, Running, "started_at", true),
            (Admin, Locked, Running, "log", false),
            (Holder, Running, Running, "exit_code", true),
            (Holder, Running, Running, "started_at", false),
            (Holder, Running, Running, "lock_count", false),
            (Admin, Running, Running, "gateway_address", true),
            (Admin, Running, Running, "runtime_status", false),
            (Container, Running, Running, "output", true),
            (Container, Running, Running, "log", false),
            (Container, Running, Running, "priority", false),
            (Holder, Running, Complete, "output", true),
            (Admin, Running, Complete, "exit_code", false),
            (Admin, Running, Complete, "finished_at", true),
            (Container, Running, Complete, "log", false),
            (Holder, Locked, Cancelled, "exit_code", false),
            (Holder, Locked, Cancelled, "runtime_status", true),
            (Admin, Locked, Cancelled, "runtime_status", false),
            (Admin, Queued, Cancelled, "runtime_status", true),
            (User, Running, Running, "progress", false),
        ];
        for (actor, from, to, attribute, expected) in cases {
            assert_eq!(
                writable(actor, from, to).contains(&attribute),
                expected,
                "{actor:?} {from:?} to {to:?}: {attribute}"
            );
        }
        for state in [Complete, Cancelled] {
            assert!(writable(Holder, state, state).is_empty());
        }
    }

    #[test]
    fn a_refusal_names_every_attribute() {
        let changes = [
            ("exit_code", "nil".to_owned(), "0".to_owned()),
            ("runtime_status", "{}".to_owned(), "{}".to_owned()),
            ("cost", "0.0".to_owned(), "1.5".to_owned()),
        ];
        let error = check_attributes(Actor::Holder, Locked, Cancelled, &changes).unwrap_err();
        assert_eq!(
            error.messages(),
            ["Exit code cannot be modified in state 'Cancelled' (nil, 0)"]
        );
    }
}
