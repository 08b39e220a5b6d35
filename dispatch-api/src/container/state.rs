//! The state table of containers: permitted transitions, and attributes that may change in each.
//!
//! Pure functions of states, actors and attribute names, without storage.

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

    /// Whether a token holds the container's lock.
    pub fn is_locked_or_running(self) -> bool {
        matches!(self, Locked | Running)
    }
}

/// The role of the calling token for one container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The token that holds the lock.
    LockHolder,
    /// An administrator's token that does not hold the lock.
    Admin,
    /// The container's own token.
    Container,
    /// The same where a program may not decide how its own run ends, or what it cost.
    GuardedContainer,
    /// Any other token.
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

/// Whether this actor may change the state. An unchanged state is always a known transition.
pub fn check_transition(actor: Actor, from: State, to: State) -> Result<()> {
    let known = from == to || TRANSITIONS.contains(&(from, to));
    match actor {
        Actor::User => {
            return Err(ApiError::denied(
                "a container is changed by its dispatcher and by itself only",
            ));
        }
        Actor::Container if from != Running => {
            return Err(ApiError::denied(
                "the token of a container changes it only while it is Running",
            ));
        }
        Actor::GuardedContainer if (from, to) != (Running, Running) => {
            return Err(ApiError::denied(
                "the token of a container does not change its state",
            ));
        }
        _ => {}
    }
    if !known {
        return Err(ApiError::invalid(format!(
            "State cannot change from {} to {}",
            from.as_str(),
            to.as_str()
        )));
    }
    if (from, to) == (Locked, Queued) && actor != Actor::LockHolder {
        return Err(ApiError::denied("locked by a different token"));
    }
    Ok(())
}

/// Attributes that describe the progress of a run, apart from `log`, which only the lock holder
/// writes.
const PROGRESS: &[&str] = &[
    "exit_code",
    "progress",
    "runtime_status",
    "output",
    "output_properties",
    "cost",
    "subrequests_cost",
];

/// Attributes, besides `state`, that this actor may change in a transition from `from` to `to`.
pub fn writable_attributes(actor: Actor, from: State, to: State) -> Vec<&'static str> {
    let parts: &[&[&str]] = match (actor, from, to) {
        (Actor::GuardedContainer, Running, Running) => {
            &[&["progress", "runtime_status", "output", "output_properties"]]
        }
        (Actor::Container, Running, Running) => &[
            PROGRESS,
            &[
                "gateway_address",
                "interactive_session_started",
                "finished_at",
            ],
        ],
        (Actor::Container, Running, Complete | Cancelled) => &[PROGRESS, &["finished_at"]],
        (Actor::User | Actor::GuardedContainer | Actor::Container, ..) => &[],

        (_, Queued, Queued | Locked) | (_, Locked, Queued) => &[&["priority"]],
        (Actor::LockHolder, Locked, Locked) => {
            &[&["priority", "runtime_status", "log", "lock_count"]]
        }
        (Actor::Admin, Locked, Locked) => &[&["priority", "lock_count"]],
        (Actor::LockHolder, Locked, Running) => &[
            PROGRESS,
            &["log", "priority", "gateway_address", "started_at"],
        ],
        (Actor::LockHolder, Running, Running) => &[
            PROGRESS,
            &[
                "log",
                "priority",
                "gateway_address",
                "interactive_session_started",
            ],
        ],
        (Actor::Admin, Locked | Running, Running) => {
            &[&["priority", "gateway_address", "interactive_session_started"]]
        }
        (Actor::LockHolder, Running, Complete | Cancelled) => &[PROGRESS, &["log", "finished_at"]],
        (Actor::Admin, Running, Complete | Cancelled) => &[&["finished_at"]],
        (_, Queued, Cancelled) | (Actor::LockHolder, Locked, Cancelled) => {
            &[&["finished_at", "log", "runtime_status", "cost"]]
        }
        _ => &[],
    };
    parts.concat()
}

/// Rejects the whole request if any attribute may not change. `changes` are (attribute, old, new)
/// without `state`.
pub fn check_attributes(
    actor: Actor,
    from: State,
    to: State,
    changes: &[(&str, String, String)],
) -> Result<()> {
    let allowed = writable_attributes(actor, from, to);
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
    ApiError::reject_all(refused)
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

    /// The matrix as observed on Arvados; rows are `from`, columns `to`, in `State::ALL` order.
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
        let mut guarded = [[403; 5]; 5];
        guarded[2][2] = 200;
        let user = [[403; 5]; 5];
        for (actor, matrix) in [
            (Actor::GuardedContainer, guarded),
            (Actor::LockHolder, holder),
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
        use Actor::{Admin, Container, GuardedContainer, LockHolder, User};
        let cases: [(Actor, State, State, &str, bool); 36] = [
            (GuardedContainer, Running, Running, "output", true),
            (GuardedContainer, Running, Running, "progress", true),
            (GuardedContainer, Running, Running, "cost", false),
            (GuardedContainer, Running, Running, "exit_code", false),
            (GuardedContainer, Running, Running, "gateway_address", false),
            (GuardedContainer, Running, Complete, "output", false),
            (Admin, Queued, Queued, "priority", true),
            (Admin, Queued, Queued, "runtime_status", false),
            (LockHolder, Locked, Locked, "runtime_status", true),
            (LockHolder, Locked, Locked, "log", true),
            (LockHolder, Locked, Locked, "lock_count", true),
            (LockHolder, Locked, Locked, "exit_code", false),
            (Admin, Locked, Locked, "runtime_status", false),
            (Admin, Locked, Locked, "lock_count", true),
            (Container, Locked, Locked, "progress", false),
            (LockHolder, Locked, Running, "log", true),
            (LockHolder, Locked, Running, "gateway_address", true),
            (LockHolder, Locked, Running, "started_at", true),
            (Admin, Locked, Running, "log", false),
            (LockHolder, Running, Running, "exit_code", true),
            (LockHolder, Running, Running, "started_at", false),
            (LockHolder, Running, Running, "lock_count", false),
            (Admin, Running, Running, "gateway_address", true),
            (Admin, Running, Running, "runtime_status", false),
            (Container, Running, Running, "output", true),
            (Container, Running, Running, "log", false),
            (Container, Running, Running, "priority", false),
            (LockHolder, Running, Complete, "output", true),
            (Admin, Running, Complete, "exit_code", false),
            (Admin, Running, Complete, "finished_at", true),
            (Container, Running, Complete, "log", false),
            (LockHolder, Locked, Cancelled, "exit_code", false),
            (LockHolder, Locked, Cancelled, "runtime_status", true),
            (Admin, Locked, Cancelled, "runtime_status", false),
            (Admin, Queued, Cancelled, "runtime_status", true),
            (User, Running, Running, "progress", false),
        ];
        for (actor, from, to, attribute, expected) in cases {
            assert_eq!(
                writable_attributes(actor, from, to).contains(&attribute),
                expected,
                "{actor:?} {from:?} to {to:?}: {attribute}"
            );
        }
        for state in [Complete, Cancelled] {
            assert!(writable_attributes(LockHolder, state, state).is_empty());
        }
    }

    #[test]
    fn a_refusal_names_every_attribute() {
        let changes = [
            ("exit_code", "nil".to_owned(), "0".to_owned()),
            ("runtime_status", "{}".to_owned(), "{}".to_owned()),
            ("cost", "0.0".to_owned(), "1.5".to_owned()),
        ];
        let error = check_attributes(Actor::LockHolder, Locked, Cancelled, &changes).unwrap_err();
        assert_eq!(
            error.messages(),
            ["Exit code cannot be modified in state 'Cancelled' (nil, 0)"]
        );
    }
}
