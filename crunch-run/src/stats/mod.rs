//! Resource statistics of a running container, in the line format that existing tools parse.

mod line;
mod threshold;

pub use line::{Block, Cpu, Disk, Interval, Memory, Network, process_memory};
pub use threshold::MemoryThresholds;
