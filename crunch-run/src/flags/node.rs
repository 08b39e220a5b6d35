//! Flags about the node, which a run, `check` and `cache` share.

use std::path::PathBuf;

use clap::Args;

use super::EngineChoice;
use crate::environment;
use container_engine::capabilities::{self, Capabilities, Capability};
use container_engine::gpu::CDI_DIRS;
use container_engine::select::EngineFactory;
use container_engine::{Confinement, ProfileError, Seccomp};
use host_state::private_dir;
use node_cache::image::ImageStore;
use node_cache::{Limits, SizeOrPercent};

#[derive(Debug, Clone, Args)]
pub struct CacheDir {
    /// Cache directory for blocks and unpacked images, shared by all containers of this node
    /// [default: /var/cache/crunch-run, or in ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
}

impl CacheDir {
    pub fn path(&self) -> PathBuf {
        let default = || default_cache(environment::variable);
        self.cache_dir.clone().unwrap_or_else(default)
    }
}

/// The default cache directory: one for root, one for each other user.
fn default_cache(env: impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = |name: &str| env(name).filter(|value| value.starts_with('/'));
    if rustix::process::geteuid().is_root() {
        return "/var/cache/crunch-run".into();
    }
    match (set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(dir), _) => PathBuf::from(dir).join("crunch-run"),
        (None, Some(home)) => PathBuf::from(home).join(".cache/crunch-run"),
        (None, None) => {
            let user = rustix::process::geteuid().as_raw();
            let base = environment::temp_dir().join(format!("crunch-run-cache-{user}"));
            // Whoever uses it says why it cannot be.
            private_dir::create_beside(&base).unwrap_or(base)
        }
    }
}

#[derive(Debug, Clone, Args)]
pub struct CacheLimits {
    /// Maximum size of the cache, like 50GiB or 20% of its file system; with 0 it
    /// keeps nothing
    #[arg(long, value_name = "SIZE|PERCENT", default_value_t = Limits::default().size)]
    cache_size: SizeOrPercent,

    /// Space that the cache leaves free on its file system, like 50GiB or 10%
    #[arg(long, value_name = "SIZE|PERCENT", default_value_t = Limits::default().free)]
    cache_free: SizeOrPercent,
}

impl CacheLimits {
    pub fn limits(&self) -> Limits {
        Limits {
            size: self.cache_size,
            free: self.cache_free,
        }
    }
}

/// Flags of a run that `check` has too.
#[derive(Debug, Clone, Args)]
pub struct NodeFlags {
    /// Directory for inputs, the container's own files and its output [default: in the job
    /// directory, or TMPDIR without one]
    #[arg(long, value_name = "DIR")]
    pub scratch_dir: Option<PathBuf>,

    #[command(flatten)]
    pub cache: CacheDir,

    #[command(flatten)]
    pub cache_limits: CacheLimits,

    /// Directory with blocks of a Keep server on this node, read directly; may be given several
    /// times
    #[arg(long, value_name = "DIR")]
    pub block_dir: Vec<PathBuf>,

    /// Engine that runs the container
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto, value_name = "ENGINE")]
    pub runtime_engine: EngineChoice,

    /// Program of the engine "oci" [default: crun, or else runc]
    #[arg(long, value_name = "PROGRAM")]
    oci_runtime: Option<PathBuf>,

    /// Socket of the docker or podman service [default: DOCKER_HOST or CONTAINER_HOST, or the usual
    /// paths]
    #[arg(long, value_name = "PATH")]
    docker_socket: Option<PathBuf>,

    /// Give containers control groups of their own though this is an ordinary user: the group above
    /// that of this process was delegated to this user (cgroup v2)
    #[arg(long)]
    delegated_group: bool,

    /// Filter of system calls: a profile in the JSON of OCI runtimes or of docker, or "off"
    /// [default: one like docker's; docker and podman use their own]
    #[arg(long, value_name = "FILE|off")]
    seccomp: Option<PathBuf>,

    /// Let containers have this capability too, such as SYS_PTRACE; may be given several times. Not
    /// with apptainer
    #[arg(long, value_name = "NAME", value_parser = capabilities::parse)]
    cap_add: Vec<Capability>,

    /// Directory with CDI specifications of GPUs; may be given several times, the last has
    /// precedence [default: /etc/cdi and /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    cdi_spec_dir: Vec<PathBuf>,

    /// Trust only the certificates in this file (as SSL_CERT_FILE)
    #[arg(long, value_name = "FILE")]
    pub ca_certs: Option<PathBuf>,
}

impl NodeFlags {
    /// The given directories of CDI specifications, or the default ones.
    pub fn cdi_dirs(&self) -> Vec<PathBuf> {
        match self.cdi_spec_dir.as_slice() {
            [] => CDI_DIRS.map(PathBuf::from).to_vec(),
            dirs => dirs.to_vec(),
        }
    }

    /// What containers may do; an error of the profile that `--seccomp` names.
    pub fn confinement(&self) -> Result<Confinement, ProfileError> {
        let capabilities = Capabilities::with(&self.cap_add);
        let seccomp = match &self.seccomp {
            None => Seccomp::Default,
            Some(off) if off.as_os_str() == "off" => Seccomp::Off,
            Some(file) => Seccomp::read(file, &capabilities)?,
        };
        Ok(Confinement {
            seccomp,
            capabilities,
        })
    }

    pub fn engines(&self, store: ImageStore, user_namespace: bool) -> EngineFactory {
        EngineFactory {
            store,
            oci_runtime: self.oci_runtime.clone(),
            docker_socket: self.docker_socket.clone(),
            delegated_group: self.delegated_group,
            user_namespace,
        }
    }
}
