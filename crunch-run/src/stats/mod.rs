//! Resource statistics of a running container, in the line format that existing tools parse.

mod line;
mod sample;
mod sampler;
mod summary;
mod threshold;

pub use line::{Block, Cpu, Disk, Interval, Memory, Network, process_memory};
pub use sample::Sample;
pub use sampler::{Sampler, Subject};
pub use summary::Summary;
pub use threshold::MemoryThresholds;
