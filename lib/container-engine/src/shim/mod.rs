//! The shim: a small single-threaded process per container. It creates the sandbox (namespaces,
//! control group, root file system), has a runtime create the container in it, watches it, and
//! removes everything on request or when crunch-run is gone.
//!
//! `engine` and `client` run in crunch-run, `server` in the shim, `pid1` in the container's pid
//! namespace. The engines builtin, oci and apptainer share all of it.

pub(crate) mod cgroups;
mod client;
mod command_watch;
mod engine;
pub(crate) mod executable;
mod files_in_root;
mod flatten;
mod id_map;
pub(crate) mod image_file;
mod init_process;
pub(crate) mod limits;
mod mapped_mounts;
pub(crate) mod mount_points;
pub(crate) mod oci_bundle;
pub(crate) mod oci_spec;
pub(crate) mod pid1;
pub(crate) mod pid1_client;
pub(crate) mod precheck;
pub(crate) mod process_spec;
mod processes;
pub(crate) mod protocol;
mod read_only_program;
mod rootfs;
pub(crate) mod runtime;
pub(crate) mod sandbox;
pub(crate) mod server;
pub(crate) mod spec_checks;
mod state_file;
pub(crate) mod user;
pub(crate) mod user_namespace;

pub(crate) use self::engine::can_mount;
pub use self::engine::{Settings, ShimEngine, ShimRuntime};
pub(crate) use self::init_process::{InitEvent, InitProcess};
pub use self::mapped_mounts::can_map_owners;
pub(crate) use self::process_spec::variable;
pub use self::processes::ContainerProcesses;
pub use self::runtime::RuntimeProcesses;
