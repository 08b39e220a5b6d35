//! State of this machine that outlives a process: identity of processes, locks and files.

pub mod allocator;
pub mod file;
pub mod lock;
pub mod private_dir;
mod process;
pub mod trash;

pub use process::{ProcessIdentity, boot_id, live_start_time, node_name, real_uid, start_time};
