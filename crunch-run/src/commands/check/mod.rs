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
use crate::attempt::{SettingsError, endpoint};
use crate::flags::{self as run_flags, NodeFlags};
use node_cache::image::ImageStore;
use preflight::server::API_SERVER;
use preflight::{EngineReport, Finding, NodeReport, Report, Subject};

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

    #[command(flatten)]
    node: NodeFlags,

    /// File with a token to check [default: ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

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
            node: flags.node,
            token_file: None,
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
    let (node, cache) = (&flags.node, flags.node.cache.path());
    let scratch = node.scratch_dir.clone();
    let scratch = scratch.unwrap_or_else(crate::environment::temp_dir);
    let (blocks, specs) = (node.block_dir.clone(), node.cdi_dirs());
    let limits = node.cache_limits.limits();
    let (server, secret) = match flags.offline {
        true => (Server::Offline, String::new()),
        false => server(flags, &env),
    };
    let chosen: Arc<OnceLock<EngineReport>> = Arc::default();
    let of_containers = node.clone();
    let files = [cache.clone(), scratch.clone()];
    let parts = [
        part("kernel", blocking(kernel::run)),
        part("cgroups", blocking(cgroups::run)),
        part(
            "user namespaces",
            blocking(move || user_namespaces::run(&[&files[0], &files[1]])),
        ),
        part("engines", try_engines(node.clone(), chosen.clone())),
        part(
            "seccomp",
            blocking(move || seccomp::run(of_containers.confinement())),
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
        host: host_state::node_name(),
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
    let what = Subject(what);
    tokio::spawn(async move {
        let looking = tokio::spawn(check);
        let stop = looking.abort_handle();
        match tokio::time::timeout(PART_TIMEOUT, looking).await {
            Ok(Ok(findings)) => findings,
            Ok(Err(error)) => vec![what.fail(
                format!("the check itself failed: {error}"),
                "report this as a fault of crunch-run",
            )],
            Err(_) => {
                stop.abort();
                vec![what.fail(
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

/// Tries the engines in a temporary directory.
async fn try_engines(node: NodeFlags, chosen: Arc<OnceLock<EngineReport>>) -> Vec<Finding> {
    let prepared = TrialDir::new().map_err(anyhow::Error::new).and_then(|dir| {
        let store = ImageStore::open(&dir.0.join("store"))?;
        Ok((dir, node.engines(store, false)))
    });
    match prepared {
        Ok((dir, engines)) => engines::run(node.runtime_engine, engines, &dir.0, &chosen).await,
        Err(error) => vec![Subject("engines").fail(
            format!("none can be tried: {error}"),
            "let TMPDIR name a directory that this user may write to",
        )],
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
        endpoint(file, flags.node.ca_certs.as_deref(), PART_TIMEOUT, &with)
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
        Err(error) => {
            let has_no_host = matches!(error, SettingsError::Endpoint(EndpointError::NoHost));
            let error = error.to_string();
            let finding = match (has_no_host, flags.of_a_run) {
                (true, true) => API_SERVER.fail(
                    error,
                    "the variables of the dispatcher do not come here: look at what the scheduler or a wrapper does to the environment of jobs, as --export=NONE does",
                ),
                (true, false) => API_SERVER.warn(
                    error,
                    "give this check the environment that crunch-run gets here, or --offline",
                ),
                (false, _) => API_SERVER.fail(error, "correct the environment or the flag"),
            };
            (Server::Unusable(finding), String::new())
        }
    }
}

async fn ask(server: Server) -> Vec<Finding> {
    let not_tried = |what: Subject| what.ok("not tried: --offline");
    match server {
        Server::Offline => vec![not_tried(API_SERVER), not_tried(keep::KEEP)],
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
