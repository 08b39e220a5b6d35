//! Collections: their manifests (pure functions), and their changes in a transaction.

pub mod content;
pub mod replace_files;
pub mod replace_segments;
pub mod store;
