//! A limit on one directory: which figure of it is limited, and to how much.
//!
//! `attempt/limits_of_record.rs` sets these limits, and that of the container's root with all its
//! `tmp` mounts. `usage_monitor.rs` finds out whether one is exceeded.

use std::path::PathBuf;

use super::disk_usage::{Usage, usage_with};
use super::{LimitExceeded, Resource, UsageLimit};

/// A directory and one limit on it.
#[derive(Debug, Clone)]
pub struct DirectoryLimit {
    pub dir: PathBuf,
    pub measure: Measure,
    pub resource: Resource,
    pub allowed: u64,
}

/// The limited figure of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    Bytes,
    Length,
    Files,
}

impl Measure {
    pub fn of(self, usage: Usage) -> u64 {
        match self {
            Self::Bytes => usage.bytes,
            Self::Length => usage.length,
            Self::Files => usage.files,
        }
    }
}

impl DirectoryLimit {
    /// Returns an error if the limit is exceeded now. `others` count as part of the directory.
    pub fn exceeded(&self, others: &[PathBuf]) -> Option<LimitExceeded> {
        let used = self.measure.of(usage_with(&self.dir, others));
        UsageLimit::new(self.resource.clone(), self.allowed).exceeded(used)
    }
}
