//! What is sampled: a container or this program, and the source of its figures.

use std::path::PathBuf;

use super::ProcessTree;
use cgroup::{Cgroup, Scope};
use container_engine::Container;

/// A container or process to sample.
#[derive(Debug)]
pub struct SampleTarget {
    pub source: UsageSource,
    pub pid: Option<u32>,
    pub scratch: PathBuf,
    /// Requested memory in bytes; 0 means no limit.
    pub memory_limit: u64,
    /// Processes whose memory is reported by name.
    pub processes: Vec<(&'static str, u32)>,
}

/// Source of the figures.
#[derive(Debug, Clone)]
pub enum UsageSource {
    Group(Cgroup, Scope),
    /// The processes themselves, if there is no control group.
    Processes(ProcessTree),
}

impl UsageSource {
    /// `None` if the container ended and has no control group of its own.
    pub fn of(container: &dyn Container) -> Option<Self> {
        match container.cgroup() {
            Some(group) => Some(Self::Group(group, Scope::Own)),
            None => Self::processes(container),
        }
    }

    /// The processes of the container; none of a group that it shares with others.
    pub fn pids(&self) -> Vec<u32> {
        match self {
            Self::Group(group, Scope::Own) => group.processes(),
            Self::Group(_, _) => Vec::new(),
            Self::Processes(tree) => tree.processes(),
        }
    }

    /// The processes of a container that runs.
    pub fn processes(container: &dyn Container) -> Option<Self> {
        Some(Self::Processes(ProcessTree::of_container(container)?))
    }
}

impl SampleTarget {
    /// crunch-run and the processes that share its control group.
    pub fn this_program(scratch: PathBuf) -> std::io::Result<Self> {
        let own = std::process::id();
        Ok(Self {
            source: UsageSource::Group(Cgroup::of_process(own)?, Scope::Nearest),
            pid: Some(own),
            scratch,
            memory_limit: 0,
            processes: vec![("crunch-run", own)],
        })
    }
}
