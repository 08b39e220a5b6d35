//! The resources of containers and machines. Input: a container record; output: its
//! [`ResourceRequest`] and whether it [`Admission`]s.

use arvados_client::Pdh;
use arvados_client::records::{Container, ContainerState, MountKind};
use serde::Serialize;

use crate::model::owner::{KnownCharge, Owner};

/// Everything that one container uses, including its cache and the memory of crunch-run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ResourceRequest {
    /// Number of whole CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub ram: u64,
    /// Bytes of scratch space in its `tmp` mounts; [`Self::disk`] is the total.
    pub scratch: u64,
    /// Estimated bytes of its image, computed from the length of the image's manifest.
    pub image: u64,
    /// Bytes of disk for the cache of its inputs.
    pub cache_disk: u64,
    /// Number of GPUs.
    pub gpus: u32,
    /// `cuda`, `rocm` or empty.
    pub gpu_stack: String,
    /// Required properties of each GPU, if the container asks for GPUs.
    pub gpu_model: Option<Box<GpuModel>>,
    /// The container must run on preemptible nodes.
    pub preemptible: bool,
    /// Seconds of run time after which the container is stopped; `None` means no limit.
    pub max_run_time: Option<u64>,
    /// Names of the partitions (queues) it may run in; empty means any.
    pub partitions: Vec<String>,
    /// How its job is charged, if that depends on its owner.
    pub charged_to: KnownCharge,
    /// The container is a workflow runner: it waits for containers that it requests.
    pub supervisor: bool,
    /// It was locked before: an earlier attempt gave it back.
    pub tried_before: bool,
}

/// Required properties of one GPU.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct GpuModel {
    /// Lowest accepted driver version, `X.Y`; empty means any.
    pub driver_version: String,
    /// Accepted compute capabilities or targets.
    pub hardware_target: Vec<String>,
    /// Bytes of GPU memory.
    pub vram: u64,
}

/// Whether a container may start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// The container fits now.
    Now,
    /// The container can start later. The text tells the user what it waits for.
    Later(String),
    /// The container can never start with this scheduler as it is. The text tells the user why.
    /// Another dispatcher may run it.
    Never(String),
    /// The container can never start, and no other dispatcher may run it. The text tells the user
    /// why. It is cancelled if nobody but a workflow waits for it.
    Impossible(String),
}

impl Admission {
    /// Why the container can never start here.
    pub fn never(&self) -> Option<&str> {
        match self {
            Self::Now | Self::Later(_) => None,
            Self::Never(why) | Self::Impossible(why) => Some(why),
        }
    }
}

/// An amount of each resource of a machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Resources {
    /// Number of whole CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub ram: u64,
    /// Bytes of scratch space.
    pub scratch: u64,
    /// Number of GPUs of any kind.
    pub gpus: u32,
}

/// Total and free resources of a scheduler that is one machine.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Total resources.
    pub total: Resources,
    /// Resources that are not reserved.
    pub free: Resources,
    /// Resources that other dispatchers of the machine hold, as far as they are known.
    pub others: Resources,
}

impl ResourceRequest {
    /// The request of a container record.
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
            image: image_size(&container.container_image),
            cache_disk: wants.keep_cache_disk,
            gpus: wants.gpu.device_count,
            gpu_stack: wants.gpu.stack.clone(),
            gpu_model: (wants.gpu.device_count > 0).then(|| {
                Box::new(GpuModel {
                    driver_version: wants.gpu.driver_version.clone(),
                    hardware_target: wants.gpu.hardware_target.clone(),
                    vram: wants.gpu.vram,
                })
            }),
            preemptible: container.scheduling_parameters.preemptible,
            max_run_time: (limit > 0).then_some(limit),
            partitions: container.scheduling_parameters.partitions.clone(),
            charged_to: None,
            supervisor: container.scheduling_parameters.supervisor,
            tried_before: container.lock_count
                > u32::from(container.state != ContainerState::Queued),
        }
    }

    /// The same request of a container that was never tried: schedulers accept both or none.
    pub fn untried(&self) -> Self {
        Self {
            tried_before: false,
            ..self.clone()
        }
    }

    /// User and project, if the arguments of its job depend on them.
    pub fn charged_owner(&self) -> Option<&Owner> {
        self.charged_to.as_ref()?.owner.as_deref()
    }

    /// Adds the memory for crunch-run itself (`Containers.ReserveExtraRAM`).
    pub fn with_reserved_ram(mut self, reserve: u64) -> Self {
        self.ram = self.ram.saturating_add(reserve);
        self
    }

    /// Bytes of disk in all, on a node that has nothing of the container yet. The sum of:
    ///
    /// - the `tmp` mounts, or the size of the unpacked image if the mounts are smaller;
    /// - the packed image;
    /// - the cache of inputs.
    pub fn disk(&self) -> u64 {
        let image = self.image;
        let scratch = self.scratch.max(image);
        scratch
            .saturating_add(image)
            .saturating_add(self.cache_disk)
    }
}

/// Estimated bytes of an image, computed from the manifest length in its portable data hash.
///
/// The names of stream and file take 80 bytes of the manifest. Each block of 64 MiB adds a locator
/// of 42 bytes.
fn image_size(image: &str) -> u64 {
    const NAMES: u64 = 80;
    const LOCATOR: u64 = 42;
    const BLOCK: u64 = 64 << 20;
    let Ok(hash) = Pdh::parse(image) else {
        return 0;
    };
    let length = hash
        .as_str()
        .rsplit('+')
        .next()
        .and_then(|n| n.parse().ok());
    let blocks = length.unwrap_or(0u64).saturating_sub(NAMES) / LOCATOR;
    blocks.saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: u64 = 1_000_000_000;

    #[test]
    fn an_image_takes_what_its_manifest_can_name() {
        let hash = "99999999999999999999999999999999";
        for (length, disk) in [
            ("+342", 805_306_368),
            ("+-342", 0),
            ("+34", 0),
            ("+121", 0),
            ("+122", 2 * (64 << 20)),
            ("", 0),
        ] {
            let needs = ResourceRequest {
                image: image_size(&format!("{hash}{length}")),
                ..ResourceRequest::default()
            };
            assert_eq!(needs.disk(), disk, "{length}");
        }
        assert_eq!(image_size("busybox:latest"), 0);
        assert!(image_size(&format!("{hash}+18446744073709551615")) > 1 << 60);
    }

    #[test]
    fn disk_is_mounts_image_and_cache() {
        #[rustfmt::skip]
        let rows = [
            // tmp, image, cache, all
            (48 * GB, 0, 0, 48 * GB),
            (48 * GB, 2 * GB, 0, 50 * GB),
            (GB, 2 * GB, 3 * GB, 7 * GB),
            (u64::MAX, 1, 1, u64::MAX),
        ];
        for (scratch, image, cache_disk, all) in rows {
            let needs = ResourceRequest {
                scratch,
                image,
                cache_disk,
                ..ResourceRequest::default()
            };
            assert_eq!(needs.disk(), all);
        }
    }
}
