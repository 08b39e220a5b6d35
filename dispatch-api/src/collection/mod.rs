//! Collections: what their manifests say (pure), and how they are kept.

pub mod content;
pub mod store;
pub mod trash;
