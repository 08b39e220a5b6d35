//! What a run shares with others on its node: job directories, locks, the list of runs, signals.

pub mod broken_node;
pub mod detach;
pub mod job_dir;
pub mod lock_file;
pub mod orphans;
pub mod registry;
pub mod signals;
pub mod trash;
