//! The container's mounts: planned from the record, then staged on this node.
//!
//! [`plan`] finds every mistake that can be found without I/O. [`stage`] creates directories and
//! files in the scratch directory, downloads collections and lists the binds. The [`MountTable`]
//! records what the container sees at which path; the output is captured from it later.

pub mod arv_mount;
mod certificates;
mod collections;
mod download;
mod error;
mod layout;
mod mount_files;
mod mount_table;
mod path;
mod persisted;
mod plan;
mod scratch_files;
mod stage;
mod staged;
mod text_mount;

pub(crate) use collections::fetch as fetch_collections;
pub use error::{MountError, Problem};
pub use mount_table::{MountEntry, MountSource, MountTable};
pub use path::{ContainerPath, PathProblem};
pub use persisted::PersistedMounts;
pub use plan::{Plan, plan};
pub use stage::{Sources, stage};
pub(crate) use staged::ContentAge;
pub use staged::Staged;

/// Progress of a transfer, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    pub done: u64,
    pub total: u64,
}
