//! The resources reserved for one attempt: numbered CPUs and GPUs, amounts of memory and scratch
//! space.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::gpu_discovery::{self, Gpu};
use crate::machine::Machine;
use crate::resources::{GpuStack, ResourceKind, ResourceVector};

/// A reservation, stored in the job directory, so that a restarted dispatcher keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Numbers of CPUs.
    pub cpus: BTreeSet<u32>,
    /// Memory in bytes.
    pub ram: u64,
    /// Scratch space in bytes.
    pub scratch: u64,
    pub gpus: BTreeSet<Gpu>,
}

impl Reservation {
    /// Reserves `load` beside `others`. The error has the kinds of which too little is free.
    pub fn allocate<'a>(
        machine: &Machine,
        others: impl Iterator<Item = &'a Reservation> + Clone,
        load: ResourceVector,
    ) -> Result<Self, Vec<ResourceKind>> {
        let used = others.clone().map(Reservation::resources).sum();
        let short: Vec<ResourceKind> = load.short_of(&machine.capacity().minus(used)).collect();
        if !short.is_empty() {
            return Err(short);
        }
        let cpus_taken: BTreeSet<u32> = others.clone().flat_map(|r| &r.cpus).copied().collect();
        let gpus_taken: BTreeSet<&Gpu> = others.flat_map(|r| &r.gpus).collect();
        let cpus: BTreeSet<u32> = machine
            .cpus
            .iter()
            .copied()
            .filter(|cpu| !cpus_taken.contains(cpu))
            .take(load.get(ResourceKind::Cpus) as usize)
            .collect();
        let of = |stack, count: u64| {
            machine
                .gpus
                .iter()
                .filter(move |gpu| gpu.stack == stack)
                .filter(|gpu| !gpus_taken.contains(gpu))
                .take(count as usize)
                .cloned()
                .collect::<BTreeSet<Gpu>>()
        };
        let mut gpus = of(GpuStack::Cuda, load.get(ResourceKind::Cuda));
        gpus.extend(of(GpuStack::Rocm, load.get(ResourceKind::Rocm)));
        Ok(Self {
            cpus,
            ram: load.get(ResourceKind::Ram),
            scratch: load.get(ResourceKind::Scratch),
            gpus,
        })
    }

    /// The reserved amounts.
    pub fn resources(&self) -> ResourceVector {
        let [cuda, rocm] = gpu_discovery::count(&self.gpus);
        ResourceVector::new(self.cpus.len() as u64, self.ram, self.scratch, cuda, rocm)
    }

    /// The CPUs in the kernel's list format: `0,2-3`.
    pub fn cpu_list(&self) -> String {
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for cpu in &self.cpus {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == *cpu => *last = *cpu,
                _ => ranges.push((*cpu, *cpu)),
            }
        }
        let words: Vec<String> = ranges
            .into_iter()
            .map(|(first, last)| match first == last {
                true => first.to_string(),
                false => format!("{first}-{last}"),
            })
            .collect();
        words.join(",")
    }
}

/// What is left of the machine beside the jobs of other dispatchers on it. They may use other CPUs
/// and memory than those that the caps leave here.
pub fn machine_beside<'a>(
    machine: &Machine,
    others: impl Iterator<Item = &'a Reservation> + Clone,
) -> Machine {
    let mut all = others.clone();
    let is_free = |cpu: &&u32| others.clone().all(|other| !other.cpus.contains(*cpu));
    let cpus: Vec<u32> = machine.cpus.iter().filter(is_free).copied().collect();
    let ram = all.try_fold(0u64, |sum, other| sum.checked_add(other.ram));
    let ram = ram.unwrap_or(u64::MAX);
    let is_free = |gpu: &&Gpu| others.clone().all(|other| !other.gpus.contains(*gpu));
    Machine {
        cpu_quota: machine.cpu_quota.min(cpus.len() as u32),
        cpus,
        ram: machine.ram.min(machine.total_ram.saturating_sub(ram)),
        gpus: machine.gpus.iter().filter(is_free).cloned().collect(),
        ..machine.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_take_what_the_caps_do_not_leave_here_first() {
        // 4 CPUs and 200 bytes, of which 3 and 100 may be used here.
        let machine = machine();
        let theirs = |cpus: &[u32], ram| Reservation {
            cpus: cpus.iter().copied().collect(),
            ram,
            gpus: [machine.gpus[0].clone()].into(),
            ..Reservation::default()
        };
        for (others, cpus, ram, gpus) in [
            (vec![], 3, 100, 2),
            (vec![theirs(&[4], 100)], 3, 100, 1),
            (vec![theirs(&[0, 2], 150)], 2, 50, 1),
            (vec![theirs(&[0, 2], 150), theirs(&[3, 9], 60)], 1, 0, 1),
            (
                vec![theirs(&[0, 2, 3, 4], u64::MAX), theirs(&[], 1)],
                0,
                0,
                1,
            ),
        ] {
            let left = machine_beside(&machine, others.iter());
            let expected = ResourceVector::new(cpus, ram, 100, gpus, 0);
            assert_eq!(left.capacity(), expected, "{others:?}");
        }
    }

    fn machine() -> Machine {
        let gpu = |stack, id: &str| Gpu {
            stack,
            id: id.into(),
        };
        Machine {
            cpus: vec![0, 2, 3, 4],
            cpu_quota: 3,
            ram: 100,
            total_ram: 200,
            scratch: 100,
            scratch_disk: 200,
            gpus: vec![gpu(GpuStack::Cuda, "0"), gpu(GpuStack::Cuda, "1")],
        }
    }

    #[test]
    fn nobody_gets_what_another_has() {
        let machine = machine();
        let first = Reservation::allocate(&machine, [].iter(), ResourceVector::new(2, 60, 0, 1, 0))
            .unwrap();
        assert_eq!((first.cpu_list().as_str(), first.ram), ("0,2", 60));
        let taken = [first];
        let second = Reservation::allocate(
            &machine,
            taken.iter(),
            ResourceVector::new(1, 40, 100, 1, 0),
        )
        .unwrap();
        assert_eq!(second.cpu_list(), "3");
        assert!(second.gpus.is_disjoint(&taken[0].gpus));
        assert_eq!(second.resources(), ResourceVector::new(1, 40, 100, 1, 0));
        // The quota is used up, although CPU 4 is free.
        let both = [taken[0].clone(), second];
        let none = Reservation::allocate(&machine, both.iter(), ResourceVector::new(1, 0, 0, 1, 0));
        assert_eq!(none, Err(vec![ResourceKind::Cpus, ResourceKind::Cuda]));
    }

    #[test]
    fn cpu_lists_join_neighbours() {
        for (cpus, list) in [
            (vec![], ""),
            (vec![5], "5"),
            (vec![0, 1, 2, 4, 6, 7], "0-2,4,6-7"),
        ] {
            let reservation = Reservation {
                cpus: cpus.into_iter().collect(),
                ..Reservation::default()
            };
            assert_eq!(reservation.cpu_list(), list);
        }
    }
}
