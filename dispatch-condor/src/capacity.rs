//! What the pool has, and whether a container could ever run on it. Pure.
//!
//! Of a partitionable slot counts what it had before it was divided. Machines that are away are not in the answer of
//! condor_status: what nothing is known of is left to HTCondor.

use std::collections::BTreeSet;

use dispatch_core::needs::{Fit, Needs};
use serde::Deserialize;

/// The slots that are no part of another.
pub const SLOTS: &str = "DynamicSlot =!= true";
/// The columns asked for.
pub const COLUMNS: &str = "Machine,PartitionableSlot,Cpus,Memory,Disk,GPUs,TotalSlotCpus,TotalSlotMemory,TotalSlotDisk,TotalSlotGPUs";

const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// A slot as condor_status shows it.
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

/// A kind of slot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    cpus: u64,
    memory: u64,
    disk: u64,
    gpus: u64,
}

/// All of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capacity {
    kinds: BTreeSet<Kind>,
    machines: usize,
}

type Amount = fn(&Kind) -> u64;

/// The amounts of a slot, and what they are called.
const AMOUNTS: [(Amount, &str); 4] = [
    (|kind| kind.cpus, "CPUs"),
    (|kind| kind.memory, "MiB of memory"),
    (|kind| kind.disk, "KiB of disk"),
    (|kind| kind.gpus, "GPUs"),
];

impl Capacity {
    /// From the answer of condor_status; none if it cannot be read, or says nothing.
    pub fn parse(answer: &str) -> Option<Self> {
        let slots: Vec<Slot> = serde_json::from_str(answer).ok()?;
        let machines: BTreeSet<&str> = slots.iter().map(|slot| slot.machine.as_str()).collect();
        let machines = machines.len();
        let kinds: BTreeSet<Kind> = slots.iter().map(Kind::of).collect();
        (!kinds.is_empty()).then_some(Self { kinds, machines })
    }

    /// How many machines there are.
    pub fn machines(&self) -> usize {
        self.machines
    }

    /// Whether a container could run here if everything were free.
    pub fn fit(&self, needs: &Needs) -> Fit {
        let wants = Kind {
            cpus: needs.cpus.into(),
            memory: needs.ram.div_ceil(MIB),
            disk: needs.disk().div_ceil(KIB),
            gpus: needs.gpus.into(),
        };
        let fits = |kind: &Kind| AMOUNTS.iter().all(|(of, _)| of(&wants) <= of(kind));
        match self.kinds.iter().any(fits) {
            true => Fit::Now,
            false => Fit::Never(self.too_much(&wants)),
        }
    }

    /// What no slot has; or, where each has some of it, what the nearest of them has.
    fn too_much(&self, wants: &Kind) -> String {
        let largest = |of: Amount| self.kinds.iter().map(of).max().unwrap_or(0);
        let beyond: Vec<String> = AMOUNTS
            .iter()
            .filter(|(of, _)| of(wants) > largest(*of))
            .map(|(of, unit)| {
                let (amount, largest) = (of(wants), largest(*of));
                format!("{amount} {unit}, where the most that one slot gives is {largest}")
            })
            .collect();
        if !beyond.is_empty() {
            return format!("it asks for {}", beyond.join("; "));
        }
        let missed = |kind: &&Kind| {
            AMOUNTS
                .iter()
                .filter(|(of, _)| of(wants) > of(kind))
                .count()
        };
        let nearest = self.kinds.iter().min_by_key(missed);
        let list = |kind: &Kind| {
            let asked = AMOUNTS.iter().filter(|(of, _)| of(wants) > 0);
            let each: Vec<String> = asked
                .map(|(of, unit)| format!("{} {unit}", of(kind)))
                .collect();
            each.join(", ")
        };
        format!(
            "no one slot gives all that it asks for ({}); the nearest gives {}",
            list(wants),
            nearest.map(list).unwrap_or_default(),
        )
    }
}

impl Kind {
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
        let pool = Capacity::parse(POOL).unwrap();
        assert_eq!(pool.machines(), 2);
        let needs = Needs {
            cpus: 2,
            ram: 1000 * MIB,
            ..Needs::default()
        };
        #[rustfmt::skip]
        let rows = [
            (needs.clone(), None),
            (Needs { cpus: 8, ..needs.clone() }, None),
            (Needs { cpus: 9, ..needs.clone() }, Some("it asks for 9 CPUs, where the most that one slot gives is 8")),
            (Needs { ram: 8192 * MIB, gpus: 2, scratch: 1_000_000 * KIB, ..needs.clone() }, None),
            (Needs { ram: 8192 * MIB + 1, gpus: 3, ..needs.clone() }, Some("it asks for 8193 MiB of memory, where the most that one slot gives is 8192; 3 GPUs, where the most that one slot gives is 2")),
            (Needs { cpus: 5, gpus: 1, ..needs.clone() }, Some("no one slot gives all that it asks for (5 CPUs, 1000 MiB of memory, 1 GPUs); the nearest gives 4 CPUs, 8192 MiB of memory, 2 GPUs")),
            (Needs { scratch: u64::MAX, ..needs }, Some("it asks for 18014398509481984 KiB of disk, where the most that one slot gives is 2000000")),
        ];
        for (needs, expected) in rows {
            let why = match pool.fit(&needs) {
                Fit::Never(why) => Some(why),
                _ => None,
            };
            assert_eq!(why.as_deref(), expected, "{needs:?}");
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
            assert_eq!(Capacity::parse(answer), None, "{answer:?}");
        }
    }
}
