//! Keep blocks: content-addressed files on disk, and the Keep protocol over them.

pub mod protocol;
pub mod store;
