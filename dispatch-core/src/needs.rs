//! What a container takes from a machine, and whether it fits.

use arvados_client::Pdh;
use arvados_client::records::{Container, MountKind};
use serde::Serialize;

/// What one container takes, all of it: with its cache and the executor's own memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// Whole CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub ram: u64,
    /// Bytes of scratch space in its `tmp` mounts; [`Self::disk`] is all of it.
    pub scratch: u64,
    /// Bytes that its image may have: a guess by the size of its manifest.
    pub image: u64,
    /// Bytes of disk for the cache of its inputs.
    pub cache_disk: u64,
    /// How many GPUs.
    pub gpus: u32,
    /// `cuda`, `rocm` or empty.
    pub gpu_stack: String,
    /// What the GPUs must be able to do, where it asks for any.
    pub gpu_model: Option<Box<GpuModel>>,
    /// It may and must run where it can be taken away.
    pub preemptible: bool,
    /// Seconds after which it is stopped; none is no limit.
    pub max_run_time: Option<u64>,
    /// The partitions (queues) it may run in; empty: any.
    pub partitions: Vec<String>,
    /// It waits for containers it asks for.
    pub supervisor: bool,
}

/// What each GPU must be able to do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct GpuModel {
    /// Lowest version of the driver, `X.Y`; empty: any.
    pub driver_version: String,
    /// Compute capabilities or targets that will do.
    pub hardware_target: Vec<String>,
    /// Bytes of its memory.
    pub vram: u64,
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
            supervisor: container.scheduling_parameters.supervisor,
        }
    }

    /// With memory for crunch-run itself (`Containers.ReserveExtraRAM`).
    pub fn and_ram(mut self, reserve: u64) -> Self {
        self.ram = self.ram.saturating_add(reserve);
        self
    }

    /// Bytes of disk in all, on a node that gives it nothing yet: `tmp` mounts, the image packed and, where there is
    /// no room in the mounts, unpacked, and the cache of inputs.
    pub fn disk(&self) -> u64 {
        let image = self.image;
        let scratch = self.scratch.max(image);
        scratch
            .saturating_add(image)
            .saturating_add(self.cache_disk)
    }
}

/// Bytes that an image may have, by its portable data hash: of the manifest's length, 80 bytes are the name of the
/// stream and the file, and each block of 64 MiB has a locator of 42.
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
            let needs = Needs {
                image: image_size(&format!("{hash}{length}")),
                ..Needs::default()
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
            let needs = Needs {
                scratch,
                image,
                cache_disk,
                ..Needs::default()
            };
            assert_eq!(needs.disk(), all);
        }
    }
}
