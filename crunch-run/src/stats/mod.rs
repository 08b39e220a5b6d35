//! Resource statistics of a running container, in the line format that existing tools parse.

mod line;
mod process_tree;
mod sample;
mod sampler;
mod summary;
mod target;
mod threshold;

pub use line::{Block, Cpu, Disk, Interval, Network, memory_line, process_memory};
pub use process_tree::{ProcessTree, TMPFS_MAGIC};
pub use sample::Sample;
pub use sampler::Sampler;
pub use summary::Summary;
pub use target::{SampleTarget, UsageSource};
pub use threshold::MemoryThresholds;
