//! What a container takes from a machine, and whether it fits.

use arvados_client::records::{Container, MountKind};
use serde::Serialize;

/// What one container takes, all of it: with its cache and the executor's own memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Needs {
    /// Whole CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub ram: u64,
    /// Bytes of scratch space.
    pub scratch: u64,
    /// How many GPUs.
    pub gpus: u32,
    /// `cuda`, `rocm` or empty.
    pub gpu_stack: String,
    /// Seconds after which it is stopped; none is no limit.
    pub max_run_time: Option<u64>,
    /// The partitions (queues) it may run in; empty: any.
    pub partitions: Vec<String>,
    /// It waits for containers it asks for.
    pub supervisor: bool,
}

/// Whether a container may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fit {
    /// There is room.
    Now,
    /// There will be: what it waits for, in words for the user.
    Later(String),
    /// Not with this scheduler as it is: why, in words for the user. Another dispatcher may run it.
    Never(String),
}

/// An amount of everything a machine has.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Whole CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub ram: u64,
    /// Bytes of scratch space.
    pub scratch: u64,
    /// GPUs of any kind.
    pub gpus: u32,
}

/// What a scheduler that is one machine has, and what of it is free.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Room {
    /// All of it.
    pub capacity: Amount,
    /// Not reserved.
    pub free: Amount,
}

impl Needs {
    /// What a record asks for.
    pub fn of(container: &Container) -> Self {
        let wants = &container.runtime_constraints;
        let tmp: u64 = container
            .mounts
            .values()
            .filter(|m| m.kind == MountKind::Tmp)
            .fold(0, |sum: u64, m| sum.saturating_add(m.capacity));
        let limit = container.scheduling_parameters.max_run_time;
        Self {
            cpus: wants.vcpus.max(1),
            ram: wants.ram.saturating_add(wants.keep_cache_ram),
            scratch: tmp,
            gpus: wants.gpu.device_count,
            gpu_stack: wants.gpu.stack.clone(),
            max_run_time: (limit > 0).then_some(limit),
            partitions: container.scheduling_parameters.partitions.clone(),
            supervisor: container.scheduling_parameters.supervisor,
        }
    }

    /// With memory for crunch-run itself (`Containers.ReserveExtraRAM`).
    pub fn and_ram(mut self, reserve: u64) -> Self {
        self.ram = self.ram.saturating_add(reserve);
        self
    }
}
