//! Resource statistics of a running container, in the line format that existing tools parse.

mod line;
mod sample;
mod sampler;
mod summary;
mod threshold;
mod tree;

pub use line::{Block, Cpu, Disk, Interval, Memory, Network, process_memory};
pub use sample::Sample;
pub use sampler::{Sampler, Source, Subject};
pub use summary::Summary;
pub use threshold::MemoryThresholds;
pub use tree::Tree;
