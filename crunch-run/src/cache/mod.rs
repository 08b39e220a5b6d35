//! The node's cache: blocks of collections and unpacked images, shared by every crunch-run of one user on this node.
//!
//! The directory is the whole state. `blocks/abc/abc…` is a block under its hash, checked whenever it is read, so that
//! neither a power cut nor somebody's editor can give a container other data than it asked for; `layers/` and `images/`
//! are described in [`crate::image`]. Entries appear by rename, complete. Who fills one holds its lock, which the kernel
//! frees when the holder dies; all others wait for it and find the entry done. What is in use is never evicted: a layer
//! is held by a lock, and a block that is being read stays readable without its name. `servers/` has what API servers said
//! of Keep in the last minutes.

mod blocks;
pub mod command;
mod entries;
mod limits;
mod sweep;

pub use blocks::{Block, BlockCache, Fetch};
pub use limits::{Limits, Share};
pub use sweep::{Swept, sweep, sweep_now_and_then};
