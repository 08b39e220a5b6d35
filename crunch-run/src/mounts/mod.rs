//! The container's mounts: planned without touching anything, then put in place on this node.
//!
//! [`plan`] reads the record and decides; it finds every mistake that can be found without asking
//! anybody. [`stage`] makes directories and files in the attempt's scratch directory, fetches
//! collections into it and says what is to be bound where. What the container will see at which
//! path stays known as a [`View`], from which the output is captured later.

pub mod arv_mount;
mod certificates;
mod collections;
mod content;
mod download;
mod error;
mod layout;
mod noted;
mod path;
mod place;
mod plan;
mod stage;
mod view;

pub(crate) use collections::fetch as fetch_collections;
pub use error::{MountError, Problem};
pub use noted::NotedMounts;
pub use path::{ContainerPath, PathProblem};
pub use plan::{Plan, plan};
pub(crate) use stage::Contents;
pub use stage::{Sources, Staged, stage};
pub use view::{Seen, Source, View};

/// How far a transfer is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}
