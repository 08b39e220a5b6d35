//! What the flags and the environment say, put into the form the phases need.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::endpoint::EndpointError;
use arvados_client::{ContainerUuid, Endpoint, Token};

use super::instance::Instance;
use crate::broken_node::Alarm;
use crate::cache::Limits;
use crate::engine::gpu::CDI_DIRS;
use crate::engine::{GpuGrant, GpuStack};
use crate::environment;
use crate::flags::{EngineChoice, Flags, GatewayChoice, MountMethod, Networking};
use crate::gateway::secret::{self, GatewaySecret, TokenFile};
use crate::logs::Pace;

#[derive(Debug, Clone)]
pub struct Settings {
    pub uuid: ContainerUuid,
    pub endpoint: Endpoint,
    /// Where its token was read from.
    pub token_file: Option<PathBuf>,
    pub gateway: GatewayChoice,
    /// Shared with the API server, if the dispatcher gave one.
    pub gateway_secret: Option<GatewaySecret>,
    /// Below it each attempt makes a directory of its own; `None` is the job directory.
    pub scratch: Option<PathBuf>,
    pub cache: PathBuf,
    pub cache_limits: Limits,
    /// Directories with blocks that are not the cache's.
    pub block_dirs: Vec<PathBuf>,
    pub mount_method: MountMethod,
    pub engine: EngineChoice,
    pub oci_runtime: Option<PathBuf>,
    /// Where the docker or podman service listens, if a flag says so.
    pub docker_socket: Option<PathBuf>,
    pub cpuset: Option<String>,
    pub gpus: Option<GpuGrant>,
    /// Where CDI specifications are; later ones win.
    pub cdi_dirs: Vec<PathBuf>,
    pub network_for_all: bool,
    pub limit_memory: bool,
    pub statistics_period: Duration,
    pub grace: Duration,
    pub overdue: Duration,
    /// How long results are tried to be delivered.
    pub patience: Duration,
    pub log_limit: u64,
    pub log_pace: Pace,
    /// What machine this is, where the dispatcher says so.
    pub instance: Option<Instance>,
    pub site: SiteLimits,
    pub alarm: Alarm,
}

/// Limits for every container, whatever its record asks for.
#[derive(Debug, Clone, Default)]
pub struct SiteLimits {
    pub cpu_time: Option<Duration>,
    pub pids: Option<u64>,
    /// Bytes.
    pub scratch: Option<u64>,
    pub scratch_files: Option<u64>,
    /// Bytes.
    pub output: Option<u64>,
}

/// Why this program cannot even begin.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("the token file {path} cannot be read: {source}", path = path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Settings {
    /// `env` looks a variable up.
    pub fn new(flags: &Flags, env: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let (token_file, certificates) = (flags.token_file.as_deref(), flags.ca_certs.as_deref());
        let (endpoint, gateway_secret) =
            endpoint_and_secret(token_file, certificates, flags.deliver_for, &env)?;
        let gpus = flags.gpu_stack.map(|stack| GpuGrant {
            stack: GpuStack::from(stack),
            ids: flags.gpu_ids.clone(),
        });
        Ok(Self {
            uuid: flags.uuid.clone(),
            endpoint,
            token_file: token_file.map(|path| path.canonicalize().unwrap_or(path.to_owned())),
            gateway: flags.container_gateway,
            gateway_secret,
            scratch: flags.scratch.clone(),
            cache: flags.cache.clone().unwrap_or_else(|| default_cache(&env)),
            cache_limits: Limits {
                size: flags.cache_size,
                free: flags.cache_free,
            },
            block_dirs: flags.block_dir.clone(),
            mount_method: flags.mount_method,
            engine: flags.runtime_engine,
            oci_runtime: flags.oci_runtime.clone(),
            docker_socket: flags.docker_socket.clone(),
            cpuset: flags.cpuset.clone(),
            gpus,
            cdi_dirs: cdi_dirs(&flags.cdi_spec_dir),
            network_for_all: flags.container_enable_networking == Networking::Always,
            limit_memory: flags.enable_memory_limit,
            statistics_period: flags.crunchstat_interval,
            grace: flags.grace,
            overdue: flags.overdue,
            patience: flags.deliver_for,
            log_limit: flags.log_limit.as_u64(),
            instance: Instance::of(&env),
            log_pace: Pace {
                period: flags.log_update_period,
                growth: flags.log_update_size.as_u64(),
            },
            alarm: match &flags.broken_node_hook {
                Some(program) => Alarm::Hook(program.clone()),
                None => Alarm::Marker(flags.broken_node_marker.clone()),
            },
            site: SiteLimits {
                cpu_time: flags.cpu_time_limit,
                pids: flags.pids_limit,
                scratch: flags.scratch_limit.map(|size| size.as_u64()),
                scratch_files: flags.scratch_inodes,
                output: flags.output_limit.map(|size| size.as_u64()),
            },
        })
    }

    /// The attempt's token by name, where its text tells it.
    pub fn attempt(&self) -> Option<arvados_client::TokenUuid> {
        self.endpoint.token.uuid()
    }

    pub fn token(&self) -> &Token {
        &self.endpoint.token
    }
}

/// The API server for one attempt: its token from a file or the environment, and no longer patience than results get.
pub fn endpoint(
    token_file: Option<&Path>,
    certificates: Option<&Path>,
    patience: Duration,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Endpoint, SettingsError> {
    endpoint_and_secret(token_file, certificates, patience, env).map(|(endpoint, _)| endpoint)
}

fn endpoint_and_secret(
    token_file: Option<&Path>,
    certificates: Option<&Path>,
    patience: Duration,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<(Endpoint, Option<GatewaySecret>), SettingsError> {
    let file = token_file.map(|path| {
        TokenFile::read(path).map_err(|source| SettingsError::Token {
            path: path.to_owned(),
            source,
        })
    });
    let (token, secret) = match file.transpose()? {
        Some(file) => (Some(file.token.expose().to_owned()), file.gateway),
        None => (env("ARVADOS_API_TOKEN"), None),
    };
    let secret = secret.or_else(|| GatewaySecret::new(&env(secret::VARIABLE)?));
    let mut endpoint = Endpoint::from_lookup(|name| match name {
        "ARVADOS_API_TOKEN" => token.clone(),
        _ => env(name).filter(|value| !value.is_empty()),
    })?;
    if let Some(path) = certificates {
        endpoint.ca_file = Some(path.to_owned());
    }
    endpoint.retry_budget = endpoint.retry_budget.min(patience);
    // Less than the patience: whether a refusal is meant must be known before results are given up.
    endpoint.refusal_window = endpoint.refusal_window.min(patience / 2);
    Ok((endpoint, secret))
}

/// Those given, or the usual ones.
pub fn cdi_dirs(given: &[PathBuf]) -> Vec<PathBuf> {
    match given {
        [] => CDI_DIRS.map(PathBuf::from).to_vec(),
        dirs => dirs.to_vec(),
    }
}

/// Root shares one with all users' jobs; anybody else has his own.
pub fn default_cache(env: impl Fn(&str) -> Option<String>) -> PathBuf {
    let set = |name: &str| env(name).filter(|value| value.starts_with('/'));
    if rustix::process::geteuid().is_root() {
        return "/var/cache/crunch-run".into();
    }
    match (set("XDG_CACHE_HOME"), set("HOME")) {
        (Some(dir), _) => PathBuf::from(dir).join("crunch-run"),
        (None, Some(home)) => PathBuf::from(home).join(".cache/crunch-run"),
        (None, None) => {
            let user = rustix::process::geteuid().as_raw();
            environment::temp_dir().join(format!("crunch-run-cache-{user}"))
        }
    }
}
