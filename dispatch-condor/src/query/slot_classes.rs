//! The capacity of the pool's slots, and whether a container could ever run on one of them. Pure.
//!
//! A partitionable slot counts with all it had before it was divided. condor_status does not show
//! machines that are down.

use std::collections::{BTreeMap, BTreeSet};

use dispatch_core::model::resources::{Admission, ResourceRequest};
use dispatch_core::scheduler::class_ads;
use dispatch_core::scheduler::misfit::{Requirement, explain_misfit, is_met};
use serde::Deserialize;

/// Constraint for slots that are not part of another slot.
pub const WHOLE_SLOTS: &str = "DynamicSlot =!= true";
/// Attributes that are queried of slots.
pub const SLOT_ATTRIBUTES: &str = "Machine,PartitionableSlot,Cpus,Memory,Disk,GPUs,TotalSlotCpus,TotalSlotMemory,TotalSlotDisk,TotalSlotGPUs";

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// The ClassAd of a slot.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Slot {
    machine: String,
    partitionable_slot: bool,
    cpus: f64,
    memory: f64,
    disk: f64,
    #[serde(rename = "GPUs")]
    gpus: f64,
    total_slot_cpus: f64,
    total_slot_memory: f64,
    total_slot_disk: f64,
    #[serde(rename = "TotalSlotGPUs")]
    total_slot_gpus: f64,
}

/// The amounts of one or more equal slots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct SlotClass {
    cpus: u64,
    memory: u64,
    disk: u64,
    gpus: u64,
}

/// The classes of slots in the pool, and the number of its machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotClasses {
    /// The machines with a slot of each class.
    classes: BTreeMap<SlotClass, BTreeSet<String>>,
    /// Whether an ad could not be read, so that there may be larger slots.
    has_unreadable: bool,
}

impl SlotClasses {
    /// Parses the answer of condor_status; none if it is malformed or has no slot that can be read.
    pub fn parse(answer: &str) -> Option<Self> {
        let ads = class_ads::parse(answer).ok()?;
        let count = ads.len();
        let slots = ads.into_iter().filter_map(|ad| ad.read::<Slot>().ok());
        let slots: Vec<Slot> = slots.collect();
        let has_unreadable = slots.len() < count;
        let mut classes: BTreeMap<SlotClass, BTreeSet<String>> = BTreeMap::new();
        for slot in slots {
            let class = SlotClass::of(&slot);
            classes.entry(class).or_default().insert(slot.machine);
        }
        (!classes.is_empty()).then_some(Self {
            classes,
            has_unreadable,
        })
    }

    /// The number of machines.
    pub fn machines(&self) -> usize {
        let machines: BTreeSet<&String> = self.classes.values().flatten().collect();
        machines.len()
    }

    /// Whether a container fits a slot of another machine than these, busy or not.
    pub fn fits_beside(&self, needs: &ResourceRequest, machines: &[String]) -> bool {
        let requirements = requirements(needs);
        let mut fitting = (self.classes.iter()).filter(|(class, _)| is_met(&requirements, class));
        fitting.any(|(_, names)| names.iter().any(|name| !machines.contains(name)))
    }

    /// Whether a container could run here if everything were free.
    pub fn fit(&self, needs: &ResourceRequest) -> Admission {
        let requirements = requirements(needs);
        let classes: Vec<&SlotClass> = self.classes.keys().collect();
        if self.has_unreadable || classes.iter().any(|class| is_met(&requirements, class)) {
            return Admission::Now;
        }
        Admission::Never(explain_misfit(&requirements, &classes, |_| String::new()))
    }
}

fn requirements(needs: &ResourceRequest) -> Vec<Requirement<SlotClass>> {
    let requirement = |amount, of: fn(&SlotClass) -> u64, unit| Requirement {
        amount,
        of,
        unit,
        giver: "one slot has",
    };
    let mut all = vec![
        requirement(needs.cpus.into(), |slot| slot.cpus, "CPUs"),
        requirement(needs.ram.div_ceil(MIB), |slot| slot.memory, "MiB of memory"),
        requirement(needs.disk().div_ceil(KIB), |slot| slot.disk, "KiB of disk"),
        requirement(needs.gpus.into(), |slot| slot.gpus, "GPUs"),
    ];
    all.retain(|one| one.amount > 0);
    all
}

impl SlotClass {
    fn of(slot: &Slot) -> Self {
        let amount = |all: f64, whole: f64| match slot.partitionable_slot && all > 0.0 {
            true => all as u64,
            false => whole as u64,
        };
        Self {
            cpus: amount(slot.total_slot_cpus, slot.cpus),
            memory: amount(slot.total_slot_memory, slot.memory),
            disk: amount(slot.total_slot_disk, slot.disk),
            gpus: amount(slot.total_slot_gpus, slot.gpus),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POOL: &str = r#"[
        {"Machine": "n1", "PartitionableSlot": true, "Cpus": 0, "Memory": 128, "Disk": 1.0, "GPUs": 0,
         "TotalSlotCpus": 4, "TotalSlotMemory": 8192, "TotalSlotDisk": 1.0E+06, "TotalSlotGPUs": 2},
        {"Machine": "n2", "Cpus": 8, "Memory": 4096, "Disk": 2000000, "TotalSlotCpus": 8.0},
        {"Machine": "n2", "Cpus": 8, "Memory": 4096, "Disk": 2000000}
    ]"#;

    #[test]
    fn what_no_slot_has_can_never_run() {
        let pool = SlotClasses::parse(POOL).unwrap();
        assert_eq!(pool.machines(), 2);
        let needs = ResourceRequest {
            cpus: 2,
            ram: 1000 * MIB,
            ..ResourceRequest::default()
        };
        #[rustfmt::skip]
        let rows = [
            (needs.clone(), None),
            (ResourceRequest { cpus: 8, ..needs.clone() }, None),
            (ResourceRequest { cpus: 9, ..needs.clone() }, Some("it requests 9 CPUs, but one slot has at most 8")),
            (ResourceRequest { ram: 8192 * MIB, gpus: 2, scratch: 1_000_000 * KIB, ..needs.clone() }, None),
            (ResourceRequest { ram: 8192 * MIB + 1, gpus: 3, ..needs.clone() }, Some("it requests 8193 MiB of memory, but one slot has at most 8192; 3 GPUs, but one slot has at most 2")),
            (ResourceRequest { cpus: 5, gpus: 1, ..needs.clone() }, Some("no node has all that it requests (5 CPUs, 1000 MiB of memory, 1 GPUs); the nearest has 4 CPUs, 8192 MiB of memory, 2 GPUs")),
            (ResourceRequest { scratch: u64::MAX, ..needs }, Some("it requests 18014398509481984 KiB of disk, but one slot has at most 2000000")),
        ];
        for (needs, expected) in rows {
            let why = match pool.fit(&needs) {
                Admission::Never(why) => Some(why),
                _ => None,
            };
            assert_eq!(why.as_deref(), expected, "{needs:?}");
        }
    }

    #[test]
    fn another_machine_must_fit_too() {
        let pool = SlotClasses::parse(POOL).unwrap();
        let needs = |cpus| ResourceRequest {
            cpus,
            ..ResourceRequest::default()
        };
        for (cpus, machines, expected) in [
            (2, &["n1"][..], true),
            (2, &["n2"][..], true),
            (2, &["n1", "n2"][..], false),
            (8, &["n1"][..], true),
            (8, &["n2"][..], false),
            (9, &[][..], false),
        ] {
            let machines: Vec<String> = machines.iter().map(ToString::to_string).collect();
            let found = pool.fits_beside(&needs(cpus), &machines);
            assert_eq!(found, expected, "{cpus} {machines:?}");
        }
    }

    #[test]
    fn a_slot_that_cannot_be_read_may_have_room() {
        let odd = POOL.replacen("\"Cpus\": 8,", "\"Cpus\": \"many\", \"GPUs\": null,", 1);
        let undefined = POOL.replacen("\"Cpus\": 8,", "\"Cpus\": 8, \"GPUs\": null,", 1);
        let large = ResourceRequest {
            cpus: 9,
            ..ResourceRequest::default()
        };
        for (answer, admits) in [(odd, true), (undefined, false)] {
            let fit = SlotClasses::parse(&answer).unwrap().fit(&large);
            assert_eq!(fit == Admission::Now, admits, "{answer}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_capacity() {
        for answer in [
            "",
            "\n",
            "[]",
            "[{\"Cpus\": \"many\"}]",
            "Error: communication error",
        ] {
            assert_eq!(SlotClasses::parse(answer), None, "{answer:?}");
        }
    }
}
