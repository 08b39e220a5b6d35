//! `crunch-run check`: reports what works on this node for containers, what does not, and what to
//! do about it. Each file checks one part.

mod api;
mod blocks;
mod cgroups;
mod directories;
mod engines;
mod gpus;
mod keep;
mod kernel;
mod seccomp;
mod user_namespaces;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arvados_client::Endpoint;
use arvados_client::endpoint::EndpointError;
use clap::Parser;

use self::api::TokenSource;
use crate::attempt::{SettingsError, cdi_dirs, default_cache, endpoint};
use crate::flags::{self as run_flags, EngineChoice};
use container_engine::select::EngineFactory;
use node_cache::image::ImageStore;
use node_cache::{Limits, SizeOrPercent};
use preflight::{EngineReport, Finding, NodeReport, Report};

/// Timeout of one part; all parts run at the same time.
const PART_TIMEOUT: Duration = Duration::from_secs(25);
/// Placeholder for a token, to check a server without one. It is not sent.
const NO_TOKEN: &str = "none";

const EXIT_STATUS: &str = "\
Exit status:
  0   nothing fails; there may be warnings
  78  something fails, or the flags are wrong";

/// Checks whether this node can run containers for the calling user: engines, control groups, GPUs,
/// user namespaces, directories, clock, API server and Keep. Leaves nothing behind and takes at
/// most 30 seconds.
///
/// Pass the flags and the environment that crunch-run gets on this node. Each line begins with ok,
/// warn or FAIL. The line below says how to fix it.
#[derive(Debug, Parser)]
#[command(name = "crunch-run check", version, after_long_help = EXIT_STATUS, args_override_self = true)]
pub struct Flags {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    /// Skip the checks of the API server and of Keep
    #[arg(long)]
    offline: bool,

    /// Engine that crunch-run uses on this node
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto, value_name = "ENGINE")]
    runtime_engine: EngineChoice,

    /// Program of the engine "oci" [default: crun, or else runc]
    #[arg(long, value_name = "PROGRAM")]
    oci_runtime: Option<PathBuf>,

    /// Socket of the docker or podman service [default: DOCKER_HOST or CONTAINER_HOST, or the usual
    /// paths]
    #[arg(long, value_name = "PATH")]
    docker_socket: Option<PathBuf>,

    /// The group above that of this process is delegated to this user, as for crunch-run
    #[arg(long)]
    delegated_group: bool,

    /// Directory of the node's cache [default: /var/cache/crunch-run, or in ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,

    /// Maximum size of the cache, like 50GiB or 20% of its file system
    #[arg(long, value_name = "SIZE|PERCENT", default_value_t = Limits::default().size)]
    cache_size: SizeOrPercent,

    /// Space that the cache leaves free on its file system, like 50GiB or 10%
    #[arg(long, value_name = "SIZE|PERCENT", default_value_t = Limits::default().free)]
    cache_free: SizeOrPercent,

    /// Directory of scratch files [default: TMPDIR]
    #[arg(long, value_name = "DIR")]
    scratch_dir: Option<PathBuf>,

    /// Directory with blocks of a Keep server on this node; may be given several times
    #[arg(long, value_name = "DIR")]
    block_dir: Vec<PathBuf>,

    /// Profile of system calls, or "off"
    #[arg(long, value_name = "FILE|off")]
    seccomp: Option<PathBuf>,

    /// Directory with CDI specifications of GPUs; may be given several times [default: /etc/cdi and
    /// /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    cdi_spec_dir: Vec<PathBuf>,

    /// File with a token to check [default: ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Trust only the certificates in this file (as SSL_CERT_FILE)
    #[arg(long, value_name = "FILE")]
    ca_certs: Option<PathBuf>,

    /// Whether the flags are those of a run (`--check`).
    #[arg(skip)]
    of_a_run: bool,
}

impl From<run_flags::Flags> for Flags {
    /// The flags of `crunch-run --check`.
    fn from(flags: run_flags::Flags) -> Self {
        Self {
            json: true,
            offline: false,
            runtime_engine: flags.runtime_engine,
            oci_runtime: flags.oci_runtime,
            docker_socket: flags.docker_socket,
            delegated_group: flags.delegated_group,
            cache_dir: flags.cache_dir,
            cache_size: flags.cache_size,
            cache_free: flags.cache_free,
            scratch_dir: flags.scratch_dir,
            block_dir: flags.block_dir,
            seccomp: flags.seccomp,
            cdi_spec_dir: flags.cdi_spec_dir,
            token_file: None,
            ca_certs: flags.ca_certs,
            of_a_run: true,
        }
    }
}

/// Runs all checks and prints the report.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    let report = runtime.block_on(collect_findings(flags));
    // A check may hang in a system call.
    runtime.shutdown_timeout(Duration::from_millis(100));
    let text = match flags.json {
        false => report.text(),
        true => serde_json::to_string(&report)? + "\n",
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    // With `--check` the job ends with 0, so that the scheduler does not retry it elsewhere.
    Ok(match report.report.ok || flags.of_a_run {
        true => ExitCode::SUCCESS,
        false => crunch_contract::ExitCode::Misconfigured.into(),
    })
}

async fn collect_findings(flags: &Flags) -> NodeReport {
    let env = crate::environment::variable;
    let cache = flags
        .cache_dir
        .clone()
        .unwrap_or_else(|| default_cache(env));
    let scratch = flags
        .scratch_dir
        .clone()
        .unwrap_or_else(crate::environment::temp_dir);
    let (blocks, specs) = (flags.block_dir.clone(), cdi_dirs(&flags.cdi_spec_dir));
    let limits = Limits {
        size: flags.cache_size,
        free: flags.cache_free,
    };
    let (server, secret) = match flags.offline {
        true => (Server::Offline, String::new()),
        false => server(flags, &env),
    };
    let trials = Trials {
        wanted: flags.runtime_engine,
        oci_runtime: flags.oci_runtime.clone(),
        docker_socket: flags.docker_socket.clone(),
        delegated_group: flags.delegated_group,
        chosen: Arc::default(),
    };
    let chosen = trials.chosen.clone();
    let profile = flags.seccomp.clone();
    let files = [cache.clone(), scratch.clone()];
    let parts = [
        part("kernel", blocking(kernel::run)),
        part("cgroups", blocking(cgroups::run)),
        part(
            "user namespaces",
            blocking(move || user_namespaces::run(&[&files[0], &files[1]])),
        ),
        part("engines", trials.run()),
        part(
            "seccomp",
            blocking(move || seccomp::run(profile.as_deref())),
        ),
        part("GPUs", gpus::run(specs)),
        part(
            "directories",
            blocking(move || directories::run(&cache, limits, &scratch)),
        ),
        part("Keep blocks", blocking(move || blocks::run(&blocks))),
        part("API server", ask(server)),
    ];
    let mut findings = Vec::new();
    for part in parts {
        findings.extend(part.await.unwrap_or_default());
    }
    NodeReport {
        host: rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned(),
        uid: rustix::process::geteuid().as_raw(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        granted_gpus: crate::gpu::granted_ids(env),
        engine: chosen.get().cloned(),
        report: Report::new(findings).without(&secret),
    }
}

/// Starts the check of one part. It is aborted after its timeout and does not delay the others.
fn part(
    what: &'static str,
    check: impl Future<Output = Vec<Finding>> + Send + 'static,
) -> tokio::task::JoinHandle<Vec<Finding>> {
    tokio::spawn(async move {
        let looking = tokio::spawn(check);
        let stop = looking.abort_handle();
        match tokio::time::timeout(PART_TIMEOUT, looking).await {
            Ok(Ok(findings)) => findings,
            Ok(Err(error)) => vec![Finding::fail(
                what,
                format!("the check itself failed: {error}"),
                "report this as a fault of crunch-run",
            )],
            Err(_) => {
                stop.abort();
                vec![Finding::fail(
                    what,
                    format!("no answer within {} s", PART_TIMEOUT.as_secs()),
                    "look for a mount or a service that hangs",
                )]
            }
        }
    })
}

async fn blocking(check: impl FnOnce() -> Vec<Finding> + Send + 'static) -> Vec<Finding> {
    match tokio::task::spawn_blocking(check).await {
        Ok(findings) => findings,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Settings of the engine trials.
struct Trials {
    wanted: EngineChoice,
    oci_runtime: Option<PathBuf>,
    docker_socket: Option<PathBuf>,
    delegated_group: bool,
    chosen: Arc<OnceLock<EngineReport>>,
}

impl Trials {
    /// Runs the trials in a temporary directory.
    async fn run(self) -> Vec<Finding> {
        let failed = |reason: String| {
            vec![Finding::fail(
                "engines",
                format!("none can be tried: {reason}"),
                "let TMPDIR name a directory that this user may write to",
            )]
        };
        let trial_dir = match TrialDir::new() {
            Ok(trial_dir) => trial_dir,
            Err(error) => return failed(error.to_string()),
        };
        let store = match ImageStore::open(&trial_dir.0.join("store")) {
            Ok(store) => store,
            Err(error) => return failed(error.to_string()),
        };
        let engines = EngineFactory {
            store,
            oci_runtime: self.oci_runtime,
            docker_socket: self.docker_socket,
            delegated_group: self.delegated_group,
            user_namespace: false,
        };
        engines::run(self.wanted, engines, &trial_dir.0, &self.chosen).await
    }
}

/// A private directory, removed when dropped.
struct TrialDir(PathBuf);

impl TrialDir {
    fn new() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name = format!("crunch-run-check.{:016x}", fastrand::u64(..));
        let path = crate::environment::temp_dir().canonicalize()?.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TrialDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The API server as configured.
enum Server {
    Offline,
    Unusable(Finding),
    Known {
        endpoint: Endpoint,
        token: TokenSource,
    },
}

/// Returns the server, and the secret to hide in the report.
fn server(flags: &Flags, env: &impl Fn(&str) -> Option<String>) -> (Server, String) {
    let endpoint_with = |token: Option<&'static str>| {
        let with = |name: &str| match (name, token) {
            ("ARVADOS_API_TOKEN", Some(token)) => Some(token.to_owned()),
            _ => env(name),
        };
        let file = flags.token_file.as_deref().filter(|_| token.is_none());
        endpoint(file, flags.ca_certs.as_deref(), PART_TIMEOUT, &with)
    };
    let (found, token) = match endpoint_with(flags.of_a_run.then_some(NO_TOKEN)) {
        Err(SettingsError::Endpoint(EndpointError::NoToken)) => {
            (endpoint_with(Some(NO_TOKEN)), TokenSource::None)
        }
        found if flags.of_a_run => (found, TokenSource::PerAttempt),
        found => (found, TokenSource::Now),
    };
    match found {
        Ok(endpoint) => {
            let given = match token {
                TokenSource::Now => endpoint.token.expose(),
                TokenSource::None | TokenSource::PerAttempt => "",
            };
            // The uuid in a v2 token is not secret.
            let secret = given.split('/').nth(2).unwrap_or(given).to_owned();
            (Server::Known { endpoint, token }, secret)
        }
        Err(error @ SettingsError::Endpoint(EndpointError::NoHost)) if flags.of_a_run => {
            let finding = Finding::fail(
                "API server",
                error.to_string(),
                "the variables of the dispatcher do not come here: look at what the scheduler or a wrapper does to the environment of jobs, as --export=NONE does",
            );
            (Server::Unusable(finding), String::new())
        }
        Err(error @ SettingsError::Endpoint(EndpointError::NoHost)) => {
            let finding = Finding::warn(
                "API server",
                error.to_string(),
                "give this check the environment that crunch-run gets here, or --offline",
            );
            (Server::Unusable(finding), String::new())
        }
        Err(error) => {
            let finding = Finding::fail(
                "API server",
                error.to_string(),
                "correct the environment or the flag",
            );
            (Server::Unusable(finding), String::new())
        }
    }
}

async fn ask(server: Server) -> Vec<Finding> {
    let not_tried = |what: &str| Finding::ok(what, "not tried: --offline");
    match server {
        Server::Offline => vec![not_tried("API server"), not_tried("Keep")],
        Server::Unusable(finding) => vec![finding],
        Server::Known { endpoint, token } => {
            let (mut findings, client) = api::run(endpoint, token).await;
            if let Some(client) = client {
                findings.extend(keep::run(&client).await);
            }
            findings
        }
    }
}
