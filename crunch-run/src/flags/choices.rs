//! What a flag can be set to, where that is one of few words.

use clap::ValueEnum;

use crate::engine::GpuStack;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    /// The best that works on this node
    Auto,
    /// The OCI runtime inside this program; needs root
    Builtin,
    /// An OCI runtime by command: crun or runc
    Oci,
    /// Apptainer by command
    Apptainer,
    /// Singularity by command
    Singularity,
    /// Docker's daemon, at DOCKER_HOST or --docker-socket
    Docker,
    /// Podman's service, at CONTAINER_HOST or --docker-socket
    Podman,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MountMethod {
    /// Fetched whole before it starts, through the node's cache
    Copy,
    /// Read when they are needed, through a tree that the program arv-mount serves
    ArvMount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Networking {
    /// Only for containers with runtime_constraints.API
    Default,
    /// For every container
    Always,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GpuStackFlag {
    Cuda,
    Rocm,
}

impl From<GpuStackFlag> for GpuStack {
    fn from(flag: GpuStackFlag) -> Self {
        match flag {
            GpuStackFlag::Cuda => Self::Cuda,
            GpuStackFlag::Rocm => Self::Rocm,
        }
    }
}

/// Whether live logs are served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GatewayChoice {
    /// Where there is a secret for it, or the server takes any
    Auto,
    /// Never
    Off,
}
