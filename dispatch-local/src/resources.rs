//! Amounts of all resources that containers share, added and compared as one vector. Pure.

use std::iter::Sum;

use dispatch_core::model::resources::ResourceRequest;
use serde::{Deserialize, Serialize};
use units::format_size;

/// The software interface of a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuStack {
    /// NVIDIA.
    Cuda,
    /// AMD.
    Rocm,
}

impl GpuStack {
    /// The word of `runtime_constraints.gpu.stack` and `crunch-run --gpu-stack`.
    pub fn as_str(self) -> &'static str {
        match self {
            GpuStack::Cuda => "cuda",
            GpuStack::Rocm => "rocm",
        }
    }

    /// The stack that a container requests; none for an unknown word.
    pub fn requested(needs: &ResourceRequest) -> Option<Self> {
        [GpuStack::Cuda, GpuStack::Rocm]
            .into_iter()
            .find(|stack| stack.as_str() == needs.gpu_stack)
    }
}

/// A kind of resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceKind {
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

impl ResourceKind {
    /// All kinds, in the order of [`ResourceVector`].
    pub const ALL: [ResourceKind; 5] = [
        ResourceKind::Cpus,
        ResourceKind::Ram,
        ResourceKind::Scratch,
        ResourceKind::Cuda,
        ResourceKind::Rocm,
    ];

    /// An amount with its name: `2 CPUs`, `1.5 GiB of memory`.
    pub fn describe(self, amount: u64) -> String {
        let plural = if amount == 1 { "" } else { "s" };
        match self {
            ResourceKind::Cpus => format!("{amount} CPU{plural}"),
            ResourceKind::Ram => format!("{} of memory", format_size(amount)),
            ResourceKind::Scratch => {
                format!("{} of scratch space", format_size(amount))
            }
            ResourceKind::Cuda => format!("{amount} CUDA GPU{plural}"),
            ResourceKind::Rocm => format!("{amount} ROCm GPU{plural}"),
        }
    }

    /// An amount without the name.
    pub fn format_amount(self, amount: u64) -> String {
        match self {
            ResourceKind::Ram | ResourceKind::Scratch => format_size(amount),
            ResourceKind::Cpus | ResourceKind::Cuda | ResourceKind::Rocm => amount.to_string(),
        }
    }
}

/// An amount of each [`ResourceKind`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ResourceVector([u64; 5]);

impl ResourceVector {
    /// A vector of these amounts.
    pub fn new(cpus: u64, ram: u64, scratch: u64, cuda: u64, rocm: u64) -> Self {
        Self([cpus, ram, scratch, cuda, rocm])
    }

    /// The request of a container; the error is the sentence to show if no machine of this type can
    /// satisfy it. One CPU of a workflow runner is not counted: it sleeps while its steps run, and
    /// one of them may need all CPUs.
    pub fn of(needs: &ResourceRequest) -> Result<Self, String> {
        let gpus = u64::from(needs.gpus);
        let (cuda, rocm) = match (gpus, GpuStack::requested(needs)) {
            (0, _) => (0, 0),
            (_, Some(GpuStack::Cuda)) => (gpus, 0),
            (_, Some(GpuStack::Rocm)) => (0, gpus),
            (_, None) => {
                return Err(format!(
                    "it asks for {gpus} GPU(s) of the kind {:?}; the kinds are \"cuda\" and \"rocm\"",
                    needs.gpu_stack
                ));
            }
        };
        Ok(Self::new(
            u64::from(needs.cpus).saturating_sub(needs.supervisor.into()),
            needs.ram,
            needs.scratch,
            cuda,
            rocm,
        ))
    }

    /// The amount of one kind.
    pub fn get(&self, kind: ResourceKind) -> u64 {
        self.0[kind as usize]
    }

    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_add)
    }

    /// The difference, at least zero.
    pub fn minus(self, other: Self) -> Self {
        self.zip_with(other, u64::saturating_sub)
    }

    fn zip_with(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        let mut sum = self;
        for (mine, theirs) in sum.0.iter_mut().zip(other.0) {
            *mine = f(*mine, theirs);
        }
        sum
    }

    /// Whether `available` has enough of everything.
    pub fn fits(&self, available: &ResourceVector) -> bool {
        self.short_of(available).next().is_none()
    }

    /// The kinds of which `available` has too little.
    pub fn short_of(&self, available: &ResourceVector) -> impl Iterator<Item = ResourceKind> {
        let (wanted, there) = (*self, *available);
        ResourceKind::ALL
            .into_iter()
            .filter(move |kind| wanted.get(*kind) > there.get(*kind))
    }
}
impl Sum for ResourceVector {
    fn sum<I: Iterator<Item = Self>>(vectors: I) -> Self {
        vectors.fold(Self::default(), Self::plus)
    }
}
