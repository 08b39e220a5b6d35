//! The node cache: blocks of collections and unpacked images, shared by all crunch-run processes of
//! one user on this node.
//!
//! The directory is the whole state:
//! - `blocks/abc/abc…` is a block under its hash, verified at each read;
//! - `layers/` and `images/` are described in [`image`];
//! - `servers/` has what API servers reported about Keep in the last minutes.
//!
//! Entries appear complete, by rename. The process that fills an entry holds its lock, which the
//! kernel frees when the process dies. Other processes wait for the lock and find the entry
//! complete. Entries in use are never evicted: a layer is locked, and an open block stays readable
//! after removal.

mod blocks;
pub mod entries;
mod eviction;
mod gc;
pub mod image;

pub use blocks::{Block, BlockCache, Fetch};
pub use eviction::{Limits, SizeOrPercent};
pub use gc::{GcStats, collect, collect_if_due, remove};
