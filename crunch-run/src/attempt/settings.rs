//! Settings of one attempt, from flags and environment.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::endpoint::EndpointError;
use arvados_client::{ContainerUuid, Endpoint, Token};

use super::instance_type::Instance;
use crate::flags::{Flags, GatewayChoice, MountMethod, Networking, NodeFlags, UserNamespaces};
use crate::gateway::secret::{self, GatewaySecret, TokenFile};
use crate::logs::SavePolicy;
use crate::node::broken_node::BrokenNodeHook;
use container_engine::{Confinement, GpuGrant, ProfileError};
use crunch_contract::MACHINE_CLAIM;

#[derive(Debug, Clone)]
pub struct Settings {
    pub uuid: ContainerUuid,
    pub endpoint: Endpoint,
    /// File from which the token was read.
    pub token_file: Option<PathBuf>,
    pub gateway: GatewayChoice,
    /// Gateway secret, if the dispatcher provided one.
    pub gateway_secret: Option<GatewaySecret>,
    /// The flags about the node.
    pub node: NodeFlags,

    /// File that says to other dispatchers of this machine what the command holds.
    pub machine_claim: Option<PathBuf>,
    pub cache: PathBuf,

    pub mount_method: MountMethod,

    pub confinement: Confinement,
    pub user_namespace: bool,
    pub cpuset: Option<String>,
    pub gpus: Option<GpuGrant>,

    pub network_for_all: bool,
    pub limit_memory: bool,
    pub statistics_period: Duration,
    pub stop_grace: Duration,
    /// Whether the dispatcher gives the record its final state where crunch-run cannot.
    pub leave_to_dispatcher: bool,
    /// Whether one bad entry costs the whole output; `None` is what the server announces.
    pub strict_output: Option<bool>,
    pub kill_after: Duration,
    /// Time for which delivery of results is retried.
    pub delivery_timeout: Duration,
    pub log_limit: u64,
    pub log_save_policy: SavePolicy,
    /// Instance type of the node, if known.
    pub instance: Option<Instance>,
    pub site: SiteLimits,
    pub broken_node_hook: BrokenNodeHook,
}

/// Limits of the site for every container.
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

/// Why the settings are invalid.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error(transparent)]
    Seccomp(#[from] ProfileError),
    #[error("the token file {path} cannot be read: {source}", path = path.display())]
    Token {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

impl Settings {
    /// `env` looks up a variable.
    pub fn new(flags: &Flags, env: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let token_file = flags.token_file.as_deref();
        let certificates = flags.node.ca_certs.as_deref();
        let (endpoint, gateway_secret) =
            endpoint_and_secret(token_file, certificates, flags.delivery_timeout, &env)?;
        let gpus = flags.gpu_stack.map(|stack| GpuGrant {
            stack,
            ids: flags.gpu_ids.clone(),
        });
        Ok(Self {
            uuid: flags.uuid.clone(),
            endpoint,
            token_file: token_file.map(|path| path.canonicalize().unwrap_or(path.to_owned())),
            gateway: flags.container_gateway,
            gateway_secret,
            node: flags.node.clone(),
            machine_claim: env(MACHINE_CLAIM).map(PathBuf::from),
            cache: flags.node.cache.path(),
            mount_method: flags.mount_method,
            confinement: flags.node.confinement()?,
            user_namespace: flags.userns == UserNamespaces::Auto,
            cpuset: flags.cpuset.clone(),
            gpus,

            network_for_all: flags.container_enable_networking == Networking::Always,
            limit_memory: flags.enable_memory_limit,
            statistics_period: flags.crunchstat_interval,
            stop_grace: flags.stop_grace,
            leave_to_dispatcher: flags.leave_to_dispatcher,
            strict_output: flags.strict_output,
            kill_after: flags.kill_after,
            delivery_timeout: flags.delivery_timeout,
            log_limit: flags.log_limit,
            instance: Instance::of(&env),
            log_save_policy: SavePolicy {
                period: flags.log_update_period,
                growth: flags.log_update_size,
            },
            broken_node_hook: match &flags.broken_node_hook {
                Some(program) => BrokenNodeHook::Program(program.clone()),
                None => BrokenNodeHook::Marker(flags.broken_node_marker.clone()),
            },
            site: SiteLimits {
                cpu_time: flags.cpu_time_limit,
                pids: flags.pids_limit,
                scratch: flags.scratch_limit,
                scratch_files: flags.scratch_inodes,
                output: flags.output_limit,
            },
        })
    }

    /// UUID of the attempt token, if the token contains it.
    pub fn attempt(&self) -> Option<arvados_client::TokenUuid> {
        self.endpoint.token.uuid()
    }

    pub fn token(&self) -> &Token {
        &self.endpoint.token
    }
}

/// Endpoint of one attempt: the token from a file or the environment, and retry budgets within the
/// delivery timeout.
pub fn endpoint(
    token_file: Option<&Path>,
    certificates: Option<&Path>,
    delivery_timeout: Duration,
    env: &impl Fn(&str) -> Option<String>,
) -> Result<Endpoint, SettingsError> {
    endpoint_and_secret(token_file, certificates, delivery_timeout, env)
        .map(|(endpoint, _)| endpoint)
}

fn endpoint_and_secret(
    token_file: Option<&Path>,
    certificates: Option<&Path>,
    delivery_timeout: Duration,
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
    endpoint.retry_budget = endpoint.retry_budget.min(delivery_timeout);
    // Half of the timeout, so that a refusal is confirmed before delivery ends.
    endpoint.refusal_window = endpoint.refusal_window.min(delivery_timeout / 2);
    Ok((endpoint, secret))
}
