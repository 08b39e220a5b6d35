//! `crunch-run check`: what of this node works for containers, what does not, and what to do about it. Each file
//! beside looks at one part, and decides purely what that means.

mod api;
mod blocks;
mod cgroups;
mod engines;
mod finding;
mod gpus;
mod keep;
mod kernel;
mod places;
mod user_namespaces;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use arvados_client::Endpoint;
use arvados_client::endpoint::EndpointError;
use clap::{Parser, ValueEnum};

use self::api::Given;
use self::finding::{Finding, Report};
use crate::cache::{Limits, Share};
use crate::engine::choose::Makers;
use crate::exit;
use crate::flags::{self as run_flags, EngineChoice};
use crate::image::ImageStore;
use crate::run::{SettingsError, cdi_dirs, default_cache, endpoint};

/// No part takes longer, and all are looked at at the same time.
const PATIENCE: Duration = Duration::from_secs(25);
/// In place of a token, to look at a server without one. It is not sent.
const NO_TOKEN: &str = "none";

const EXIT_STATUS: &str = "\
Exit status:
  0   nothing fails; there may be warnings
  78  something fails, or the flags are wrong";

/// Looks whether this node can run containers, as the user who asks: engines, control groups, GPUs, user namespaces,
/// directories, clock, API server and Keep. It leaves nothing behind, and takes 30 seconds at most.
///
/// Give it the flags and the environment that crunch-run gets here. Each line begins with ok, warn or FAIL; a line
/// below says how to mend it.
#[derive(Debug, Parser)]
#[command(name = "crunch-run check", version, after_long_help = EXIT_STATUS, args_override_self = true)]
pub struct Flags {
    /// For people, or for programs
    #[arg(long, value_enum, default_value_t = Format::Text, value_name = "FORMAT")]
    format: Format,

    /// Ask neither the API server nor Keep
    #[arg(long)]
    offline: bool,

    /// The engine that crunch-run is to use here
    #[arg(long, value_enum, default_value_t = EngineChoice::Auto, value_name = "ENGINE")]
    runtime_engine: EngineChoice,

    /// As crunch-run gets it
    #[arg(long, value_name = "PROGRAM")]
    oci_runtime: Option<PathBuf>,

    /// As crunch-run gets it
    #[arg(long, value_name = "PATH")]
    docker_socket: Option<PathBuf>,

    /// The node's cache [default: /var/cache/crunch-run, or in ~/.cache]
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,

    /// As crunch-run gets it
    #[arg(long, value_name = "SIZE", default_value_t = Limits::default().size)]
    cache_size: Share,

    /// As crunch-run gets it
    #[arg(long, value_name = "SIZE", default_value_t = Limits::default().free)]
    cache_free: Share,

    /// Where jobs have their files [default: TMPDIR]
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,

    /// As crunch-run gets it; may be given several times
    #[arg(long, value_name = "DIR")]
    block_dir: Vec<PathBuf>,

    /// As crunch-run gets it; may be given several times [default: /etc/cdi and /var/run/cdi]
    #[arg(long, value_name = "DIR")]
    cdi_spec_dir: Vec<PathBuf>,

    /// File that holds a token to try [default: ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,

    /// Trust only the certificates in this file (as SSL_CERT_FILE)
    #[arg(long, value_name = "FILE")]
    ca_certs: Option<PathBuf>,

    /// The flags were those of a run
    #[arg(skip)]
    of_a_run: bool,
}

impl From<run_flags::Flags> for Flags {
    /// What is told of a run that only looks.
    fn from(flags: run_flags::Flags) -> Self {
        Self {
            format: Format::Json,
            offline: false,
            runtime_engine: flags.runtime_engine,
            oci_runtime: flags.oci_runtime,
            docker_socket: flags.docker_socket,
            cache: flags.cache,
            cache_size: flags.cache_size,
            cache_free: flags.cache_free,
            scratch: flags.scratch,
            block_dir: flags.block_dir,
            cdi_spec_dir: flags.cdi_spec_dir,
            token_file: None,
            ca_certs: flags.ca_certs,
            of_a_run: true,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One page
    Text,
    /// One object
    Json,
}

/// Looks, and prints what it found.
pub fn run(flags: &Flags) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()?;
    let report = runtime.block_on(look(flags));
    // Something may hang in a system call.
    runtime.shutdown_timeout(Duration::from_millis(100));
    let text = match flags.format {
        Format::Text => report.text(),
        Format::Json => report.json(),
    };
    io::stdout().lock().write_all(text.as_bytes())?;
    // A scheduler is told that it need not be tried elsewhere.
    Ok(match report.ok || flags.of_a_run {
        true => ExitCode::SUCCESS,
        false => exit::ExitCode::Configuration.into(),
    })
}

async fn look(flags: &Flags) -> Report {
    let env = crate::environment::variable;
    let cache = flags.cache.clone().unwrap_or_else(|| default_cache(env));
    let scratch = flags
        .scratch
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
    };
    let parts = [
        part("kernel", blocking(kernel::look)),
        part("cgroups", blocking(cgroups::look)),
        part("user namespaces", blocking(user_namespaces::look)),
        part("engines", trials.look()),
        part("GPUs", gpus::look(specs)),
        part(
            "directories",
            blocking(move || places::look(&cache, limits, &scratch)),
        ),
        part("Keep blocks", blocking(move || blocks::look(&blocks))),
        part("API server", ask(server)),
    ];
    let mut findings = Vec::new();
    for part in parts {
        findings.extend(part.await.unwrap_or_default());
    }
    Report::new(findings).without(&secret)
}

/// Begins to look at one part at once. It is given up after its time; the others are not held up.
fn part(
    what: &'static str,
    look: impl Future<Output = Vec<Finding>> + Send + 'static,
) -> tokio::task::JoinHandle<Vec<Finding>> {
    tokio::spawn(async move {
        let looking = tokio::spawn(look);
        let stop = looking.abort_handle();
        match tokio::time::timeout(PATIENCE, looking).await {
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
                    format!("no answer within {} s", PATIENCE.as_secs()),
                    "look for a mount or a service that hangs",
                )]
            }
        }
    })
}

async fn blocking(look: impl FnOnce() -> Vec<Finding> + Send + 'static) -> Vec<Finding> {
    match tokio::task::spawn_blocking(look).await {
        Ok(findings) => findings,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// What engines are tried with.
struct Trials {
    wanted: EngineChoice,
    oci_runtime: Option<PathBuf>,
    docker_socket: Option<PathBuf>,
}

impl Trials {
    /// In a directory of their own, which is gone afterwards.
    async fn look(self) -> Vec<Finding> {
        let failed = |reason: String| {
            vec![Finding::fail(
                "engines",
                format!("none can be tried: {reason}"),
                "let TMPDIR name a directory that this user may write to",
            )]
        };
        let place = match Place::new() {
            Ok(place) => place,
            Err(error) => return failed(error.to_string()),
        };
        let store = match ImageStore::open(&place.0.join("store")) {
            Ok(store) => store,
            Err(error) => return failed(error.to_string()),
        };
        let makers = Makers {
            store,
            oci_runtime: self.oci_runtime,
            docker_socket: self.docker_socket,
        };
        engines::look(self.wanted, makers, &place.0).await
    }
}

/// A private directory, removed when this is dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        let name = format!("crunch-run-check.{:016x}", fastrand::u64(..));
        let path = crate::environment::temp_dir().canonicalize()?.join(name);
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What is known of the API server before it is asked.
enum Server {
    Offline,
    Unusable(Finding),
    Given { endpoint: Endpoint, token: Given },
}

/// The server, and the secret that must not be shown.
fn server(flags: &Flags, env: &impl Fn(&str) -> Option<String>) -> (Server, String) {
    let given = |token: Option<&'static str>| {
        let with = |name: &str| match (name, token) {
            ("ARVADOS_API_TOKEN", Some(token)) => Some(token.to_owned()),
            _ => env(name),
        };
        let file = flags.token_file.as_deref().filter(|_| token.is_none());
        endpoint(file, flags.ca_certs.as_deref(), PATIENCE, &with)
    };
    let (found, token) = match given(flags.of_a_run.then_some(NO_TOKEN)) {
        Err(SettingsError::Endpoint(EndpointError::NoToken)) => {
            (given(Some(NO_TOKEN)), Given::None)
        }
        found if flags.of_a_run => (found, Given::Later),
        found => (found, Given::Now),
    };
    match found {
        Ok(endpoint) => {
            let given = match token {
                Given::Now => endpoint.token.expose(),
                Given::None | Given::Later => "",
            };
            // A v2 token's uuid is no secret.
            let secret = given.split('/').nth(2).unwrap_or(given).to_owned();
            (Server::Given { endpoint, token }, secret)
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
        Server::Given { endpoint, token } => {
            let (mut findings, client) = api::look(endpoint, token).await;
            if let Some(client) = client {
                findings.extend(keep::look(&client).await);
            }
            findings
        }
    }
}
