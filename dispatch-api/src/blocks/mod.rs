//! Keep blocks: content-addressed files on disk, and the Keep protocol over them.

pub mod protocol;
pub mod store;

/// The storage class of every block: there is one kind of store here.
pub const STORAGE_CLASS: &str = "default";
