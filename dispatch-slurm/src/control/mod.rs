//! Commands that change submitted jobs: their order, and their end.

pub mod cancel;
pub mod nice;
pub mod reorder;
