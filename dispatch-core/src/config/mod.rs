//! Reads the Arvados configuration file. Input: a YAML file and the keys that a program reads;
//! output: a [`Config`] with their values, and warnings.
//!
//! Each key that gives the default of a flag is one [`Key`] of its program. The file describes a
//! whole cluster, so most keys are ignored. Probable typos near the keys in use give a warning. A
//! value of the wrong type is an error that names its path.

mod flags;
mod keys;
mod server;
pub mod settings;
#[cfg(test)]
mod tests;
mod unknown_keys;
mod values;

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use arvados_client::Token;
use serde::Deserialize;
use serde_norway::Value;

use crate::model::instance_types::{self, InstanceType};

pub use flags::{FileDefault, Flag, ValueSources, parse};
pub use keys::{Form, Key};
pub use server::variable;

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
    /// The values of the program's keys, in the syntax of the command line.
    values: Vec<(Key, Vec<String>)>,
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
    /// Reads the file at `path`, with these keys of the program besides the common ones.
    pub fn read(path: &Path, own: &[Key]) -> Result<Self, ConfigError> {
        let read = || {
            let text = std::fs::read_to_string(path)?;
            Ok((text, path.metadata()?.permissions().mode()))
        };
        let (text, mode) = read().map_err(|source| ConfigError::Unreadable {
            path: path.to_owned(),
            source,
        })?;
        let mut config = Self::of(&text, own).map_err(|what| ConfigError::Wrong {
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

    fn of(text: &str, own: &[Key]) -> Result<Self, String> {
        // An error of serde_norway begins with the place, so none is added.
        let file: File = serde_norway::from_str(text).map_err(|error| error.to_string())?;
        let mut clusters = file.clusters.into_iter();
        let (Some((id, cluster)), None) = (clusters.next(), clusters.next()) else {
            return Err("Clusters: there must be exactly one cluster".to_owned());
        };
        let kinds = cluster.instance_types.iter();
        for (name, kind) in kinds.filter(|(name, _)| *name != values::SAMPLE) {
            let check = kind.check();
            check.map_err(|why| format!("Clusters.{id}.InstanceTypes.{name}.{why}"))?;
        }
        let tree: Value = serde_norway::from_str(text).map_err(|error| error.to_string())?;
        let tree = &tree["Clusters"][&*id];
        let keys = [&keys::COMMON, own].concat();
        let mut values = Vec::new();
        for key in &keys {
            let read = key.read(tree);
            let read = read.map_err(|why| format!("Clusters.{id}.{}: {why}", key.path))?;
            values.extend(read.map(|read| (*key, read)));
        }
        Ok(Self {
            warnings: unknown_keys::warnings(tree, &format!("Clusters.{id}"), &keys),
            values,
            id,
            cluster,
            ..Self::default()
        })
    }

    /// The values of a key that the program reads, in the syntax of the command line; none if it
    /// is not set.
    pub fn values(&self, path: &str) -> Option<&[String]> {
        let found = self.values.iter().find(|(key, _)| key.path == path);
        found.map(|(_, values)| &**values)
    }

    /// The names and values of a key with the form [`Form::Map`].
    pub fn map(&self, path: &str) -> BTreeMap<String, String> {
        let pairs = self.values(path).unwrap_or_default().iter();
        let pairs = pairs.filter_map(|pair| pair.split_once('='));
        pairs
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
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
