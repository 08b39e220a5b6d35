//! The Arvados configuration file: what dispatchers read of it, by its own names.
//!
//! The file speaks of a whole cluster, so most of it is none of our business and is passed over. What looks like a slip
//! among the keys we do read is warned of; a value of the wrong type is an error that names its place.

mod flags;
mod server;
mod unknown;
mod values;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::Token;
use serde::Deserialize;

use crate::instance_types::{self, InstanceType};

pub use flags::{Flag, Given, Origin, Origins, list, one, parse};
pub use server::variable;
pub use values::SAMPLE;

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file system.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A value, or the whole, is not what it should be.
    #[error("the configuration {} cannot be used: {what}", path.display())]
    Wrong {
        /// Which.
        path: PathBuf,
        /// Where in it, and why.
        what: String,
    },
}

/// One cluster's configuration.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Where it was read.
    pub path: PathBuf,
    /// The cluster's five letters.
    pub id: String,
    /// What it says.
    pub cluster: Cluster,
    /// Keys that are probably slips, in words for the admin.
    pub warnings: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default, rename = "Clusters")]
    clusters: BTreeMap<String, Cluster>,
}

/// `Clusters.ID`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Cluster {
    /// The dispatch token, where no file with one is given.
    #[serde(rename = "SystemRootToken", deserialize_with = "values::token")]
    pub system_root_token: Option<Token>,
    /// Where servers are.
    #[serde(rename = "Services", deserialize_with = "values::or_default")]
    pub services: Services,
    /// Trust.
    #[serde(rename = "TLS", deserialize_with = "values::or_default")]
    pub tls: Tls,
    /// How containers are run.
    #[serde(rename = "Containers", deserialize_with = "values::or_default")]
    pub containers: Containers,
    #[serde(rename = "InstanceTypes", deserialize_with = "values::or_default")]
    instance_types: BTreeMap<String, Kind>,
}

/// `Services`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Services {
    /// The API server.
    #[serde(rename = "Controller", deserialize_with = "values::or_default")]
    pub controller: Service,
}

/// One of them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// As clients reach it.
    #[serde(rename = "ExternalURL")]
    pub external_url: Option<String>,
}

/// `TLS`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Tls {
    /// Accept any certificate.
    #[serde(rename = "Insecure")]
    pub insecure: Option<bool>,
}

/// `Containers`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Containers {
    /// The executor on the nodes.
    pub crunch_run_command: Option<String>,
    /// Its arguments.
    pub crunch_run_arguments_list: Option<Vec<String>>,
    /// What runs containers.
    pub runtime_engine: Option<String>,
    /// Memory beside each container.
    #[serde(rename = "ReserveExtraRAM", deserialize_with = "values::size")]
    pub reserve_extra_ram: Option<u64>,
    /// Between two attempts at one container.
    #[serde(deserialize_with = "values::time")]
    pub min_retry_period: Option<Duration>,
    /// Slurm.
    #[serde(rename = "SLURM", deserialize_with = "values::or_default")]
    pub slurm: Slurm,
    /// Ours: HTCondor.
    #[serde(deserialize_with = "values::or_default")]
    pub condor: Condor,
}

/// `Containers.SLURM`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Slurm {
    /// How far apart jobs' nice values may be.
    pub priority_spread: Option<u64>,
    /// Templates of arguments.
    pub sbatch_arguments_list: Option<Vec<String>>,
    /// More for containers with GPUs.
    #[serde(rename = "SbatchGPUArgumentsList")]
    pub sbatch_gpu_arguments_list: Option<Vec<String>>,
    /// For sbatch and so for the job.
    pub sbatch_environment_variables: Option<BTreeMap<String, String>>,
    /// Ours: which account pays, by partition; `*` is any other.
    #[serde(deserialize_with = "values::per_partition")]
    pub account: BTreeMap<String, String>,
    /// Ours: quality of service, by partition.
    #[serde(rename = "QOS", deserialize_with = "values::per_partition")]
    pub qos: BTreeMap<String, String>,
    /// Ours: reservation, by partition.
    #[serde(deserialize_with = "values::per_partition")]
    pub reservation: BTreeMap<String, String>,
    /// Ours: features of nodes, by partition.
    #[serde(deserialize_with = "values::per_partition")]
    pub constraint: BTreeMap<String, String>,
    /// Ours: which cluster of a federation.
    pub clusters: Option<String>,
}

/// `Containers.Condor`, all of it ours.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Condor {
    /// Templates of lines of a submit description.
    pub submit_lines: Option<Vec<String>>,
    /// More for containers with GPUs.
    #[serde(rename = "GPUSubmitLines")]
    pub gpu_submit_lines: Option<Vec<String>>,
    /// Who pays.
    pub accounting_group: Option<String>,
    /// For whom.
    pub accounting_group_user: Option<String>,
    /// What a job takes of what is counted.
    pub concurrency_limits: Option<String>,
    /// Which machines will do.
    pub requirements: Option<String>,
    /// Which of them are best.
    pub rank: Option<String>,
    /// For the job.
    pub environment_variables: Option<BTreeMap<String, String>>,
    /// crunch-run travels with each job.
    pub transfer_crunch_run: Option<bool>,
    /// Machines join when jobs wait for them.
    pub pool_grows: Option<bool>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Kind {
    #[serde(rename = "VCPUs")]
    vcpus: u32,
    #[serde(rename = "RAM", deserialize_with = "values::size")]
    ram: Option<u64>,
    #[serde(rename = "Scratch", deserialize_with = "values::size")]
    scratch: Option<u64>,
    #[serde(rename = "IncludedScratch", deserialize_with = "values::size")]
    included_scratch: Option<u64>,
    #[serde(rename = "AddedScratch", deserialize_with = "values::size")]
    added_scratch: Option<u64>,
    #[serde(rename = "Price")]
    price: f64,
    #[serde(rename = "Preemptible")]
    preemptible: bool,
    #[serde(rename = "GPU", deserialize_with = "values::or_default")]
    gpu: Gpu,
    /// As older files have it.
    #[serde(rename = "CUDA", deserialize_with = "values::or_default")]
    cuda: Cuda,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Gpu {
    stack: String,
    driver_version: String,
    hardware_target: String,
    device_count: u32,
    #[serde(rename = "VRAM", deserialize_with = "values::size")]
    vram: Option<u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Cuda {
    driver_version: String,
    hardware_capability: String,
    device_count: u32,
}

impl Config {
    /// Reads the file at `path`.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let read = || {
            let text = std::fs::read_to_string(path)?;
            Ok((text, path.metadata()?.permissions().mode()))
        };
        let (text, mode) = read().map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::of(&text).map_err(|what| ConfigError::Wrong {
            path: path.to_owned(),
            what,
        })?;
        if config.cluster.system_root_token.is_some() && mode & 0o004 != 0 {
            config.warnings.push(format!(
                "everybody can read {}, and the SystemRootToken in it: chmod o= it",
                path.display()
            ));
        }
        config.path = path.to_owned();
        Ok(config)
    }

    fn of(text: &str) -> Result<Self, String> {
        let mut warnings = Vec::new();
        let yaml = serde_norway::Deserializer::from_str(text);
        // An error of serde_norway begins with the place.
        let file: File = serde_ignored::deserialize(yaml, |path| {
            warnings.extend(unknown::warning(&unknown::steps(&path)));
        })
        .map_err(|error| error.to_string())?;
        let mut clusters = file.clusters.into_iter();
        let (Some((id, cluster)), None) = (clusters.next(), clusters.next()) else {
            return Err("Clusters: there must be exactly one cluster".to_owned());
        };
        Ok(Self {
            warnings,
            id,
            cluster,
            ..Self::default()
        })
    }

    /// Kinds of nodes.
    pub fn instance_types(&self) -> Vec<InstanceType> {
        let given = self.cluster.instance_types.iter();
        given
            .filter(|(name, _)| *name != values::SAMPLE)
            .map(|(name, kind)| kind.named(name))
            .collect()
    }
}

impl Kind {
    fn named(&self, name: &str) -> InstanceType {
        let parts = [self.included_scratch, self.added_scratch];
        let parts = parts.into_iter().flatten().fold(0, u64::saturating_add);
        let gpu = match self.cuda.device_count {
            0 => instance_types::Gpu {
                stack: self.gpu.stack.clone(),
                driver_version: self.gpu.driver_version.clone(),
                hardware_target: self.gpu.hardware_target.clone(),
                device_count: self.gpu.device_count,
                vram: self.gpu.vram.unwrap_or(0),
            },
            device_count => instance_types::Gpu {
                stack: "cuda".to_owned(),
                driver_version: self.cuda.driver_version.clone(),
                hardware_target: self.cuda.hardware_capability.clone(),
                device_count,
                vram: 0,
            },
        };
        InstanceType {
            name: name.to_owned(),
            cpus: self.vcpus,
            ram: self.ram.unwrap_or(0),
            scratch: self.scratch.unwrap_or(parts),
            price: self.price,
            preemptible: self.preemptible,
            gpu,
        }
    }
}

#[cfg(test)]
mod tests;
