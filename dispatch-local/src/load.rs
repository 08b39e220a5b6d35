//! Amounts of everything that containers share, added and compared as one value.

use bytesize::ByteSize;
use dispatch_core::needs::Needs;
use serde::{Deserialize, Serialize};

/// How GPUs are spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stack {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Rocm,
}

impl Stack {
    /// The word in `runtime_constraints.gpu.stack` and in `crunch-run --gpu-stack`.
    pub fn as_str(self) -> &'static str {
        match self {
            Stack::Cuda => "cuda",
            Stack::Rocm => "rocm",
        }
    }

    /// The stack that a container asks for; none for a word we do not know.
    pub fn asked(needs: &Needs) -> Option<Self> {
        [Stack::Cuda, Stack::Rocm]
            .into_iter()
            .find(|stack| stack.as_str() == needs.gpu_stack)
    }
}

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Whole CPUs.
    Cpus,
    /// Bytes of memory.
    Ram,
    /// Bytes of scratch space.
    Scratch,
    /// NVIDIA GPUs.
    Cuda,
    /// AMD GPUs.
    Rocm,
}

impl Kind {
    /// All of them, in the order of [`Load`].
    pub const ALL: [Kind; 5] = [Kind::Cpus, Kind::Ram, Kind::Scratch, Kind::Cuda, Kind::Rocm];

    /// An amount in words: `2 CPUs`, `1.5 GiB of memory`.
    pub fn words(self, amount: u64) -> String {
        let plural = if amount == 1 { "" } else { "s" };
        match self {
            Kind::Cpus => format!("{amount} CPU{plural}"),
            Kind::Ram => format!("{} of memory", ByteSize(amount).display().iec()),
            Kind::Scratch => format!("{} of scratch space", ByteSize(amount).display().iec()),
            Kind::Cuda => format!("{amount} CUDA GPU{plural}"),
            Kind::Rocm => format!("{amount} ROCm GPU{plural}"),
        }
    }

    /// An amount without saying of what.
    pub fn figure(self, amount: u64) -> String {
        match self {
            Kind::Ram | Kind::Scratch => ByteSize(amount).display().iec().to_string(),
            Kind::Cpus | Kind::Cuda | Kind::Rocm => amount.to_string(),
        }
    }
}

/// An amount of each [`Kind`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load([u64; 5]);

impl Load {
    /// From its parts.
    pub fn new(cpus: u64, ram: u64, scratch: u64, cuda: u64, rocm: u64) -> Self {
        Self([cpus, ram, scratch, cuda, rocm])
    }

    /// What a container takes. Err with the sentence to show where no machine of this kind can give it.
    pub fn of(needs: &Needs) -> Result<Self, String> {
        let gpus = u64::from(needs.gpus);
        let (cuda, rocm) = match (gpus, Stack::asked(needs)) {
            (0, _) => (0, 0),
            (_, Some(Stack::Cuda)) => (gpus, 0),
            (_, Some(Stack::Rocm)) => (0, gpus),
            (_, None) => {
                return Err(format!(
                    "it asks for {gpus} GPU(s) of the kind {:?}; the kinds are \"cuda\" and \"rocm\"",
                    needs.gpu_stack
                ));
            }
        };
        Ok(Self::new(
            u64::from(needs.cpus),
            needs.ram,
            needs.scratch,
            cuda,
            rocm,
        ))
    }

    /// How much of one kind.
    pub fn get(&self, kind: Kind) -> u64 {
        self.0[kind as usize]
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// What is left; nothing where more is taken than there is.
    pub fn minus(self, other: Self) -> Self {
        self.each(other, u64::saturating_sub)
    }

    fn each(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let mut sum = self;
        for (mine, theirs) in sum.0.iter_mut().zip(other.0) {
            *mine = f(*mine, theirs);
        }
        sum
    }

    /// Whether there is enough of everything in `room`.
    pub fn fits(&self, room: &Load) -> bool {
        self.short_of(room).next().is_none()
    }

    /// The kinds of which `room` has too little.
    pub fn short_of(&self, room: &Load) -> impl Iterator<Item = Kind> {
        let (wanted, there) = (*self, *room);
        Kind::ALL
            .into_iter()
            .filter(move |kind| wanted.get(*kind) > there.get(*kind))
    }
}
