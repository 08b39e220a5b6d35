//! What one attempt has for itself: concrete CPUs and GPUs, and amounts of the rest.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::gpus::Gpu;
use crate::load::{Kind, Load, Stack};
use crate::machine::Machine;

/// A reservation. Written into the job's directory, so that a restarted dispatcher keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// CPUs by number.
    pub cpus: BTreeSet<u32>,
    /// Bytes.
    pub ram: u64,
    /// Bytes.
    pub scratch: u64,
    /// GPUs.
    pub gpus: BTreeSet<Gpu>,
}

impl Reservation {
    /// Room for `load` beside `others`; Err names what there is too little of.
    pub fn make<'a>(
        machine: &Machine,
        others: impl Iterator<Item = &'a Reservation> + Clone,
        load: Load,
    ) -> Result<Self, Vec<Kind>> {
        let used = others
            .clone()
            .fold(Load::default(), |sum, one| sum.plus(one.load()));
        let short: Vec<Kind> = load.short_of(&machine.capacity().minus(used)).collect();
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
            .take(load.get(Kind::Cpus) as usize)
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
        let mut gpus = of(Stack::Cuda, load.get(Kind::Cuda));
        gpus.extend(of(Stack::Rocm, load.get(Kind::Rocm)));
        Ok(Self {
            cpus,
            ram: load.get(Kind::Ram),
            scratch: load.get(Kind::Scratch),
            gpus,
        })
    }

    /// As an amount.
    pub fn load(&self) -> Load {
        let count = |stack| self.gpus.iter().filter(|gpu| gpu.stack == stack).count() as u64;
        Load::new(
            self.cpus.len() as u64,
            self.ram,
            self.scratch,
            count(Stack::Cuda),
            count(Stack::Rocm),
        )
    }

    /// The CPUs as the kernel writes them: `0,2-3`.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        let gpu = |stack, id: &str| Gpu {
            stack,
            id: id.into(),
        };
        Machine {
            cpus: vec![0, 2, 3, 4],
            cpu_quota: 3,
            ram: 100,
            scratch: 100,
            gpus: vec![gpu(Stack::Cuda, "0"), gpu(Stack::Cuda, "1")],
        }
    }

    #[test]
    fn nobody_gets_what_another_has() {
        let machine = machine();
        let first = Reservation::make(&machine, [].iter(), Load::new(2, 60, 0, 1, 0)).unwrap();
        assert_eq!((first.cpu_list().as_str(), first.ram), ("0,2", 60));
        let taken = [first];
        let second =
            Reservation::make(&machine, taken.iter(), Load::new(1, 40, 100, 1, 0)).unwrap();
        assert_eq!(second.cpu_list(), "3");
        assert!(second.gpus.is_disjoint(&taken[0].gpus));
        assert_eq!(second.load(), Load::new(1, 40, 100, 1, 0));
        // The quota is used up, though CPU 4 is nobody's.
        let both = [taken[0].clone(), second];
        let none = Reservation::make(&machine, both.iter(), Load::new(1, 0, 0, 1, 0));
        assert_eq!(none, Err(vec![Kind::Cpus, Kind::Cuda]));
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
