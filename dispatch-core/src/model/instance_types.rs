//! The instance types of the configuration (`InstanceTypes`), and the choice of the cheapest one
//! that satisfies a container's request. No I/O.

use crate::model::resources::{Admission, ResourceRequest};

/// Maximum share of an instance type's memory for containers, in percent. The operating system uses
/// the rest.
const USABLE_RAM_PERCENT: u128 = 95;
const MIB: u64 = 1 << 20;

/// One instance type.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct InstanceType {
    /// Name of the type.
    pub name: String,
    /// Number of CPUs.
    pub cpus: u32,
    /// Bytes of memory.
    pub ram: u64,
    /// Bytes of scratch space.
    pub scratch: u64,
    /// Price of one hour, in any currency.
    pub price: f64,
    /// The provider may take the node away.
    pub preemptible: bool,
    /// Its GPUs, if any.
    pub gpu: Gpu,
}

/// The GPUs of an instance type.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gpu {
    /// `cuda` or `rocm`.
    pub stack: String,
    /// Driver version, `X.Y`.
    pub driver_version: String,
    /// Compute capability `X.Y`, or the target's name.
    pub hardware_target: String,
    /// Number of GPUs.
    pub device_count: u32,
    /// Bytes of memory of each GPU.
    pub vram: u64,
}

/// The error of a container that requests more than every instance type has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("none of the {types} instance types in the configuration has all it asks for: {wanted}")]
pub struct NoInstanceTypeFits {
    types: usize,
    wanted: String,
}

/// The cheapest type that satisfies `needs`. Of equally cheap ones, the one with more memory.
pub fn cheapest<'a>(
    types: &'a [InstanceType],
    needs: &ResourceRequest,
) -> Result<&'a InstanceType, NoInstanceTypeFits> {
    let suitable = types.iter().filter(|kind| kind.satisfies(needs));
    let best = suitable.min_by(|a, b| a.price.total_cmp(&b.price).then(b.ram.cmp(&a.ram)));
    best.ok_or_else(|| NoInstanceTypeFits {
        types: types.len(),
        wanted: wanted(needs),
    })
}

/// Name of the cheapest type that satisfies `needs`. Empty if no instance types are configured.
pub fn name_for<'a>(
    types: &'a [InstanceType],
    needs: &ResourceRequest,
) -> Result<&'a str, NoInstanceTypeFits> {
    match types.is_empty() {
        true => Ok(""),
        false => cheapest(types, needs).map(|kind| kind.name.as_str()),
    }
}

/// Whether any instance type satisfies `needs`, for a scheduler that queues jobs that do not fit
/// now.
pub fn fit(types: &[InstanceType], needs: &ResourceRequest) -> Admission {
    match name_for(types, needs) {
        Ok(_) => Admission::Now,
        Err(none) => Admission::Never(none.to_string()),
    }
}

impl InstanceType {
    fn satisfies(&self, needs: &ResourceRequest) -> bool {
        let ram = u128::from(needs.ram) * 100 / USABLE_RAM_PERCENT;
        self.cpus >= needs.cpus
            && u128::from(self.ram) >= ram
            && self.scratch >= needs.disk()
            && self.preemptible == needs.preemptible
            && (needs.gpus == 0 || self.gpu.satisfies(needs))
    }
}

impl Gpu {
    fn satisfies(&self, needs: &ResourceRequest) -> bool {
        let model = needs.gpu_model.as_deref().cloned().unwrap_or_default();
        let driver = match model.driver_version.as_str() {
            "" => true,
            least => is_at_least(&self.driver_version, least),
        };
        let targets = &model.hardware_target;
        let hardware = match (needs.gpu_stack.as_str(), &targets[..]) {
            // A single capability is the minimum. Several are a list of accepted ones.
            ("cuda", [least]) => is_at_least(&self.hardware_target, least),
            ("cuda" | "rocm", _) => targets.contains(&self.hardware_target),
            _ => false,
        };
        self.stack == needs.gpu_stack
            && self.device_count >= needs.gpus
            && self.vram >= model.vram
            && driver
            && hardware
    }
}

fn wanted(needs: &ResourceRequest) -> String {
    let mut all = format!(
        "{} CPUs, {} MiB of memory (at most {USABLE_RAM_PERCENT} % of a node's), {} MiB of disk",
        needs.cpus,
        needs.ram.div_ceil(MIB),
        needs.disk().div_ceil(MIB)
    );
    if needs.gpus > 0 {
        let (count, stack) = (needs.gpus, &needs.gpu_stack);
        all += &format!(", {count} GPUs of the stack {stack:?}");
    }
    if needs.preemptible {
        all += ", preemptible";
    }
    all
}

/// Whether `version` is at least `least`, both `X.Y`. False if either is not a version.
fn is_at_least(version: &str, least: &str) -> bool {
    match (parse(version), parse(least)) {
        (Some(version), Some(least)) => version >= least,
        _ => false,
    }
}

fn parse(version: &str) -> Option<(u32, u32)> {
    let (major, minor) = version.split_once('.').unwrap_or((version, "0"));
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::resources::GpuModel;

    fn kind(name: &str, ram: u64, cpus: u32, price: f64) -> InstanceType {
        InstanceType {
            name: name.into(),
            cpus,
            ram,
            price,
            ..InstanceType::default()
        }
    }

    fn plain() -> Vec<InstanceType> {
        vec![
            kind("a1.tiny", 128_000_000, 1, 0.02),
            kind("a1.small", 256_000_000, 2, 0.04),
            kind("a1.large", 1_024_000_000, 8, 0.16),
            kind("a1.medium", 512_000_000, 4, 0.08),
        ]
    }

    fn name(types: &[InstanceType], needs: &ResourceRequest) -> Option<String> {
        Some(cheapest(types, needs).ok()?.name.clone())
    }

    #[test]
    fn a_part_of_the_memory_is_the_systems() {
        let with = |ram, cpus| ResourceRequest {
            ram,
            cpus,
            ..ResourceRequest::default()
        };
        for (ram, cpus, expected) in [
            (250_000_000, 2, Some("a1.medium")),
            (243_000_000, 2, Some("a1.small")),
            (1, 3, Some("a1.medium")),
            (973_000_000, 8, None),
            (972_800_000, 8, Some("a1.large")),
            (u64::MAX, 1, None),
        ] {
            let found = name(&plain(), &with(ram, cpus));
            assert_eq!(found.as_deref(), expected, "{ram} {cpus}");
        }
        let error = cheapest(&plain()[..1], &with(250_000_000, 2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "none of the 1 instance types in the configuration has all it asks for: 2 CPUs, 239 MiB of memory (at most 95 % of a node's), 0 MiB of disk"
        );
    }

    #[test]
    fn of_equally_cheap_ones_the_larger_and_preemptible_ones_only_for_those_who_ask() {
        let mut types = plain();
        types.push(kind("b.small", 300_000_000, 2, 0.04));
        types.push(InstanceType {
            preemptible: true,
            ..kind("spot", 1_024_000_000, 8, 0.01)
        });
        let mut needs = ResourceRequest {
            cpus: 2,
            ram: 1,
            ..ResourceRequest::default()
        };
        assert_eq!(name(&types, &needs).as_deref(), Some("b.small"));
        needs.preemptible = true;
        assert_eq!(name(&types, &needs).as_deref(), Some("spot"));
        needs.scratch = 1;
        assert_eq!(name(&types, &needs), None);
    }

    #[test]
    fn gpus_suit_by_stack_number_driver_hardware_and_memory() {
        type Row = (
            &'static str,
            &'static str,
            &'static str,
            &'static [&'static str],
            u32,
            u64,
            bool,
        );
        #[rustfmt::skip]
        let rows: [Row; 16] = [
            // type's stack, driver, hardware; wanted targets, count, memory; suits
            ("cuda", "11.0", "9.0", &["9.0"], 1, 0, true),
            ("cuda", "11.10", "9.0", &["8.6"], 2, 8, true),
            ("cuda", "11.0", "9.0", &["8.0", "8.6"], 1, 0, false),
            ("cuda", "11.0", "8.6", &["8.0", "8.6"], 1, 0, true),
            ("cuda", "11.0", "8.6", &["9.0"], 1, 0, false),
            ("cuda", "11.0", "8.6", &[], 1, 0, false),
            ("cuda", "10.9", "9.0", &["9.0"], 1, 0, false),
            ("cuda", "12.0.12", "9.0", &["9.0"], 1, 0, false),
            ("cuda", "11.0", "9.0.1", &["9.0"], 1, 0, false),
            ("cuda", "11.0", "9.0", &["9.0"], 3, 0, false),
            ("cuda", "11.0", "9.0", &["9.0"], 1, 9, false),
            ("rocm", "11.0", "gfx1100", &["gfx1100"], 1, 0, true),
            ("rocm", "11.0", "gfx1100", &["gfx1101", "gfx1100"], 1, 0, true),
            ("rocm", "11.0", "gfx1100", &["gfx1101"], 1, 0, false),
            ("rocm", "11.0", "9.0", &["8.0"], 1, 0, false),
            ("other", "11.0", "9.0", &["9.0"], 1, 0, false),
        ];
        for (n, (stack, driver, hardware, targets, gpus, vram, suits)) in
            rows.into_iter().enumerate()
        {
            let gpu = Gpu {
                stack: stack.into(),
                driver_version: driver.into(),
                hardware_target: hardware.into(),
                device_count: 2,
                vram: 8,
            };
            let needs = ResourceRequest {
                gpus,
                gpu_stack: stack.into(),
                gpu_model: Some(Box::new(GpuModel {
                    driver_version: "11.0".into(),
                    hardware_target: targets.iter().map(|t| (*t).to_owned()).collect(),
                    vram,
                })),
                ..ResourceRequest::default()
            };
            let types = [InstanceType {
                gpu,
                ..InstanceType::default()
            }];
            assert_eq!(cheapest(&types, &needs).is_ok(), suits, "row {n}");
            let other = ResourceRequest {
                gpu_stack: "none".into(),
                ..needs
            };
            assert!(cheapest(&types, &other).is_err(), "row {n}");
        }
    }
}
