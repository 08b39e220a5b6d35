//! GPUs of one container: what the scheduler granted, what this node has, and whether both fit what
//! the container asks for.

mod grant;
mod inventory;
pub mod prepare;
mod requirements;

pub use grant::{GpuError, PreparedGpus, grant, granted_ids};
pub use inventory::{GpuInfo, list_gpus};
pub use requirements::{check_requirements, find_gpu};
