//! Reads the Arvados configuration file. Input: a YAML file; output: a [`Config`] with the keys
//! that dispatchers use, under the file's own names, and warnings.
//!
//! The file describes a whole cluster, so most keys are ignored. Probable typos near the keys in
//! use give a warning. A value of the wrong type is an error that names its path.

mod flags;
mod server;
mod values;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::Token;
use serde::Deserialize;

use crate::model::instance_types::{self, InstanceType};

pub use flags::{FileDefault, Flag, Origin, ValueSources, list, one, parse};
pub use server::variable;
pub use values::SAMPLE;

/// The reason for which the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: io::Error,
    },
    /// A value, or the whole file, has the wrong form.
    #[error("the configuration {} cannot be used: {what}", path.display())]
    Wrong {
        /// Path of the file.
        path: PathBuf,
        /// The place in the file and the reason.
        what: String,
    },
}

/// One cluster's configuration.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Path of the file.
    pub path: PathBuf,
    /// Cluster id (five letters).
    pub id: String,
    /// Settings of the cluster.
    pub cluster: Cluster,
    /// Warnings for the admin about keys that are probably typos.
    pub warnings: Vec<String>,
    /// A warning if everybody can read the file and the token in it.
    pub exposed: Option<String>,
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
    /// The dispatch token, used if no token file is given.
    #[serde(rename = "SystemRootToken", deserialize_with = "values::token")]
    pub system_root_token: Option<Token>,
    /// Addresses of the servers.
    #[serde(rename = "Services", deserialize_with = "values::or_default")]
    pub services: Services,
    /// Settings of TLS.
    #[serde(rename = "TLS", deserialize_with = "values::or_default")]
    pub tls: Tls,
    /// Settings for running containers.
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

/// One service.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Service {
    /// URL for clients.
    #[serde(rename = "ExternalURL")]
    pub external_url: Option<String>,
}

/// `TLS`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Tls {
    /// Whether to accept any certificate.
    #[serde(rename = "Insecure")]
    pub insecure: Option<bool>,
}

/// `Containers`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Containers {
    /// Command of crunch-run on the nodes.
    pub crunch_run_command: Option<String>,
    /// Arguments of crunch-run.
    pub crunch_run_arguments_list: Option<Vec<String>>,
    /// Container engine.
    pub runtime_engine: Option<String>,
    /// Bytes of memory reserved beside each container.
    #[serde(rename = "ReserveExtraRAM", deserialize_with = "values::size")]
    pub reserve_extra_ram: Option<u64>,
    /// Delay between two attempts at one container.
    #[serde(deserialize_with = "values::time")]
    pub min_retry_period: Option<Duration>,
    /// Time to fetch inputs and save results, in addition to the run time limit of a container. Not
    /// in upstream Arvados.
    pub staging_allowance: Option<String>,
    /// Settings for Slurm.
    #[serde(rename = "SLURM", deserialize_with = "values::or_default")]
    pub slurm: Slurm,
    /// Settings for HTCondor; this key is not in upstream Arvados.
    #[serde(deserialize_with = "values::or_default")]
    pub condor: Condor,
}

/// `Containers.SLURM`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Slurm {
    /// Maximum distance between the nice values of jobs.
    pub priority_spread: Option<u64>,
    /// Templates of arguments of sbatch.
    pub sbatch_arguments_list: Option<Vec<String>>,
    /// Further arguments for containers with GPUs.
    #[serde(rename = "SbatchGPUArgumentsList")]
    pub sbatch_gpu_arguments_list: Option<Vec<String>>,
    /// Further arguments for preemptible containers. Not in upstream Arvados.
    pub preemptible_arguments_list: Option<Vec<String>>,
    /// Environment variables for sbatch, which passes them to the job.
    pub sbatch_environment_variables: Option<BTreeMap<String, String>>,
    /// Accounts by partition; `*` is any other partition. Not in upstream Arvados.
    #[serde(deserialize_with = "values::per_partition")]
    pub account: BTreeMap<String, String>,
    /// Quality of service by partition. Not in upstream Arvados.
    #[serde(rename = "QOS", deserialize_with = "values::per_partition")]
    pub qos: BTreeMap<String, String>,
    /// Reservations by partition. Not in upstream Arvados.
    #[serde(deserialize_with = "values::per_partition")]
    pub reservation: BTreeMap<String, String>,
    /// Required node features by partition. Not in upstream Arvados.
    #[serde(deserialize_with = "values::per_partition")]
    pub constraint: BTreeMap<String, String>,
    /// Cluster of a federation. Not in upstream Arvados.
    pub clusters: Option<String>,
    /// Names of GPU models by hardware target. Not in upstream Arvados.
    #[serde(rename = "GPUModels")]
    pub gpu_models: BTreeMap<String, String>,
    /// File with arguments by user and project. Not in upstream Arvados.
    pub owner_map: Option<String>,
}

/// `Containers.Condor`. None of its keys is in upstream Arvados.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub struct Condor {
    /// Templates of lines of the submit description.
    pub submit_lines: Option<Vec<String>>,
    /// Further lines for containers with GPUs.
    #[serde(rename = "GPUSubmitLines")]
    pub gpu_submit_lines: Option<Vec<String>>,
    /// Further lines for preemptible containers.
    pub preemptible_submit_lines: Option<Vec<String>>,
    /// Accounting group that is charged.
    pub accounting_group: Option<String>,
    /// User within the accounting group.
    pub accounting_group_user: Option<String>,
    /// Concurrency limits that each job counts against.
    pub concurrency_limits: Option<String>,
    /// ClassAd expression that a machine must satisfy.
    pub requirements: Option<String>,
    /// ClassAd rank expression: HTCondor prefers machines with higher values.
    pub rank: Option<String>,
    /// Environment variables of the job.
    pub environment_variables: Option<BTreeMap<String, String>>,
    /// Whether crunch-run is transferred with each job.
    pub transfer_crunch_run: Option<bool>,
    /// Whether machines join the pool when jobs wait for them.
    pub pool_grows: Option<bool>,
    /// File with submit lines by user and project.
    pub owner_map: Option<String>,
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
    /// The name of `GPU` in older files.
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
            let path = path.display();
            config.exposed = Some(format!(
                "everybody can read {path}, and the SystemRootToken in it"
            ));
        }
        config.path = path.to_owned();
        Ok(config)
    }

    fn of(text: &str) -> Result<Self, String> {
        let mut warnings = Vec::new();
        let yaml = serde_norway::Deserializer::from_str(text);
        // An error of serde_norway begins with the place, so none is added.
        let file: File = serde_ignored::deserialize(yaml, |path| {
            warnings.extend(unknown_keys::warning(&unknown_keys::key_path(&path)));
        })
        .map_err(|error| error.to_string())?;
        let mut clusters = file.clusters.into_iter();
        let (Some((id, cluster)), None) = (clusters.next(), clusters.next()) else {
            return Err("Clusters: there must be exactly one cluster".to_owned());
        };
        let kinds = cluster.instance_types.iter();
        for (name, kind) in kinds.filter(|(name, _)| *name != values::SAMPLE) {
            let check = kind.check();
            check.map_err(|why| format!("Clusters.{id}.InstanceTypes.{name}.{why}"))?;
        }
        Ok(Self {
            warnings,
            id,
            cluster,
            ..Self::default()
        })
    }

    /// The instance types of the cluster.
    pub fn instance_types(&self) -> Vec<InstanceType> {
        let given = self.cluster.instance_types.iter();
        given
            .filter(|(name, _)| *name != values::SAMPLE)
            .map(|(name, kind)| kind.named(name))
            .collect()
    }
}

impl Kind {
    /// Fails if nothing could run on such a machine, or if its price has no order.
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self { vcpus: 0, .. } => Err("VCPUs: a machine has one or more"),
            Self {
                ram: None | Some(0),
                ..
            } => Err("RAM: a machine has more than 0 bytes"),
            kind if !(0.0..f64::INFINITY).contains(&kind.price) => {
                Err("Price: it must be a number that is not negative")
            }
            _ => Ok(()),
        }
    }

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

pub mod settings;
#[cfg(test)]
mod tests;
pub mod unknown_keys;
