//! Runs one container with an engine, behind a trait of a few methods and plain data.
//!
//! Three engines (`builtin`, `oci`, `apptainer`) share the `shim`, a process per container. Two
//! (`docker`, with Podman) drive a service. `select` finds the engine that works on this node.

pub mod apptainer;
pub mod builtin;
pub mod capabilities;
pub mod command;
mod docker;
mod engine;
mod engine_choice;
mod error;
mod exit;
pub mod gpu;
mod helper;
mod kernel;
pub mod oci;
mod seccomp;
pub mod select;
mod shim;
mod spec;

pub use engine::{
    Container, ContainerSpec, Engine, EngineRef, LimitCover, LimitKind, Recovered, Stdio,
    Unenforced,
};
pub use engine_choice::EngineChoice;
pub use error::{EngineError, StartError};
pub use exit::{Exit, ExitStatus};
pub use helper::run_helper_if_requested;
pub use kernel::kernel_version;
pub use seccomp::{ProfileError, Seccomp};
pub use shim::{ContainerProcesses, RuntimeProcesses, Settings, can_map_owners};
pub use spec::{Bind, Confinement, ContainerUsers, GpuGrant, GpuStack, Limits, Network};
