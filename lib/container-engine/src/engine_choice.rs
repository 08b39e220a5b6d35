//! The choice of an engine by name.

/// Which engine runs containers; `Auto` is the best one that works on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
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
