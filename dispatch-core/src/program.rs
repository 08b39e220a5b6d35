//! What every dispatcher program has in common: flags, logging, signals, health and the way it ends.
//!
//! Exit status: 0 after a drain, 78 when it cannot start as configured, 1 for anything else.

use std::collections::BTreeMap;
use std::io::IsTerminal;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arvados_client::endpoint::EndpointError;
use arvados_client::{Client, Endpoint, Token};
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::attempts::TokenMode;
use crate::audit::Audit;
use crate::config::{self, Config};
use crate::credentials::GatewayKey;
use crate::engine::{Engine, NotAdmin};
use crate::health::Health;
use crate::scheduler::{JOB_ENVIRONMENT, Scheduler};
use crate::settings::Settings;

/// `EX_CONFIG` of sysexits.h: what systemd's `RestartPreventExitStatus=` is told.
const EXIT_CONFIG: u8 = 78;
/// Memory for crunch-run itself, in bytes, added to every container's.
const RESERVE_RAM: u64 = 64 << 20;

/// How much longer than its container may run an attempt's token lives: a job may wait long in its scheduler.
const TOKEN_MARGIN: Duration = Duration::from_secs(14 * 86400);
/// Bytes of an audit file; there are two of them at most.
const AUDIT_LIMIT: u64 = 64 << 20;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Whose token holds the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenModeName {
    /// Each attempt has a token of its own, which fences it from all others.
    PerAttempt,
    /// The dispatch token holds every lock and goes to every job: for servers that forbid making tokens.
    Shared,
}

/// Flags of every dispatcher. The API server is named by `ARVADOS_API_HOST` and its friends.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flags {
    /// File with the dispatch token; else ARVADOS_API_TOKEN
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Time between looks when nothing says to look sooner, like 10s or 500ms
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    pub poll_interval: Duration,
    /// Shortest time between looks, however much happens
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = time)]
    pub shortest_interval: Duration,
    /// Containers that may wait in the scheduler at once
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub max_pending: usize,
    /// How long crunch-run may take to end when asked, before it is killed
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub stop_grace: Duration,
    /// How long a job may wait that needs somebody's help to start, or can never start; 0 is for ever
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    pub start_timeout: Duration,
    /// How long results that crunch-run could not deliver may wait on their node, before the record is cancelled
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    pub undelivered_wait: Duration,
    /// Workflow runners that may wait or run at once; they must leave room for the containers they ask for
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub max_supervisors: usize,
    /// How long a container waits at first after an attempt that came to nothing; then twice as long, and so on
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = time)]
    pub min_retry_period: Duration,
    /// Commands to the scheduler a second, beside one listing each interval; 0 is no limit
    #[arg(long, value_name = "N", default_value_t = 50.0)]
    pub scheduler_rate: f64,
    /// How long one command of the scheduler may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = time)]
    pub command_timeout: Duration,
    /// Whose token holds the locks: one for each attempt, or the dispatch token itself
    #[arg(long, value_name = "MODE", default_value = "per-attempt")]
    pub token_mode: TokenModeName,
    /// Memory set aside for crunch-run beside each container
    #[arg(long, value_name = "BYTES", default_value_t = RESERVE_RAM)]
    pub reserve_extra_ram: u64,
    /// Serve /metrics, /_health/ping and /status here
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub health_listen: Option<SocketAddr>,
    /// File with the token that /metrics, /_health/ping and /status ask for
    #[arg(long, value_name = "FILE", requires = "health_listen")]
    pub management_token_file: Option<PathBuf>,
    /// Write every decision down here too, one JSON object a line; when it has 64 MiB it becomes FILE.1
    #[arg(long, value_name = "FILE")]
    pub audit_file: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// How much is logged: error, warn, info, debug, or a filter like dispatch_core=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_level: String,
    /// What the configuration file says, for programs that read one
    #[arg(skip)]
    pub config: Option<Arc<Config>>,
}

impl Flags {
    /// What the secrets of container gateways are derived from, where the configuration file has it.
    fn gateway_key(&self) -> Option<GatewayKey> {
        let cluster = &self.config.as_deref()?.cluster;
        cluster.system_root_token.clone().map(GatewayKey::new)
    }

    /// The variables that jobs get, by the configuration file or else as we have them ourselves; no token is among them.
    pub fn job_environment(&self) -> BTreeMap<String, String> {
        let value = |key: &str| {
            config::variable(key, self.config.as_deref(), None, |key| {
                std::env::var(key).ok()
            })
        };
        JOB_ENVIRONMENT
            .iter()
            .filter_map(|key| Some(((*key).to_owned(), value(key)?)))
            .collect()
    }
}

/// Why a dispatcher did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The API's address or token.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A token file.
    #[error("cannot read the token file {}: {source}", path.display())]
    TokenFile {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The HTTP client.
    #[error("cannot set up the connection to the API server: {0}")]
    Client(#[source] arvados_client::Error),
    /// The health address.
    #[error("cannot listen on {address} for health and metrics: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// The audit file.
    #[error("cannot write the audit file {}: {source}", path.display())]
    Audit {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What the scheduler needs is not there.
    #[error(transparent)]
    Scheduler(Box<dyn std::error::Error + Send + Sync>),
    /// The dispatch token.
    #[error(transparent)]
    NotAdmin(#[from] NotAdmin),
    /// The operating system refused something basic.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Runs a dispatcher until SIGTERM or SIGINT. `name` goes into logs and tokens; `scheduler` makes the scheduler and
/// the label that tells this instance from others of the same user.
pub fn run<S, F>(flags: Flags, scheduler: F) -> ExitCode
where
    S: Scheduler,
    F: AsyncFnOnce() -> Result<(S, String), Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(error) = log_to_stderr(&flags) {
        return refuse(&error);
    }
    // One thread beside the loop's own: both mostly wait, what may hang is done aside, and each keeps memory to itself.
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return refuse(&error.to_string()),
    };
    match runtime.block_on(serve(flags, scheduler)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => refuse(&error.to_string()),
    }
}

/// Ends a program that cannot start as configured.
pub fn refuse(why: &str) -> ExitCode {
    eprintln!("{}: {why}", program_name());
    ExitCode::from(EXIT_CONFIG)
}

/// Tells of flags that are wrong, or what was asked about them, and ends. Wrong ones are a configuration that cannot work:
/// a service manager is not to try again.
pub fn refuse_flags(error: clap::Error) -> ! {
    let _ = error.print();
    std::process::exit(match error.use_stderr() {
        true => EXIT_CONFIG.into(),
        false => 0,
    })
}

fn program_name() -> String {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.as_deref()
        .and_then(Path::file_name)
        .map_or_else(|| "dispatcher".into(), |n| n.to_string_lossy().into_owned())
}

async fn serve<S, F>(flags: Flags, scheduler: F) -> Result<(), StartError>
where
    S: Scheduler,
    F: AsyncFnOnce() -> Result<(S, String), Box<dyn std::error::Error + Send + Sync>>,
{
    for warning in flags.config.iter().flat_map(|config| &config.warnings) {
        tracing::warn!("configuration: {warning}");
    }
    let client = Client::new(endpoint(&flags)?).map_err(StartError::Client)?;
    let listener = match flags.health_listen {
        None => None,
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(|source| StartError::Listen { address, source })?,
        ),
    };
    let management = match &flags.management_token_file {
        None => None,
        Some(path) => Some(read_token(path)?),
    };
    let audit = match &flags.audit_file {
        None => None,
        Some(path) => Some(
            Audit::open(path, AUDIT_LIMIT).map_err(|source| StartError::Audit {
                path: path.clone(),
                source,
            })?,
        ),
    };
    let (scheduler, label) = scheduler().await.map_err(StartError::Scheduler)?;
    let health = Health::new(
        3 * flags.poll_interval + Duration::from_secs(30),
        management,
    );
    let shutdown = CancellationToken::new();
    on_signals(shutdown.clone())?;
    let serving = listener.map(|listener| {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "health and metrics");
        }
        tokio::spawn(health.clone().serve(listener, shutdown.clone()))
    });
    let token_mode = match flags.token_mode {
        TokenModeName::PerAttempt => TokenMode::PerAttempt,
        TokenModeName::Shared => {
            tracing::warn!(
                "--token-mode=shared: every job gets the dispatch token, a left-over job of an earlier attempt can still \
                 change its container, and another dispatcher with this token takes this one's containers for its own; \
                 let no other use it"
            );
            TokenMode::Shared(client.endpoint().token.clone())
        }
    };
    let settings = Settings {
        max_supervisors: flags.max_supervisors,
        retry_period: flags.min_retry_period,
        commands_per_second: flags.scheduler_rate,
        token_mode,
        gateway: flags.gateway_key(),
        poll_interval: flags.poll_interval,
        shortest_interval: flags.shortest_interval,
        reserve_ram: flags.reserve_extra_ram,
        max_pending: flags.max_pending,
        stop_grace: flags.stop_grace,
        undelivered_wait: flags.undelivered_wait,
        start_timeout: Some(flags.start_timeout).filter(|time| !time.is_zero()),
        token_margin: TOKEN_MARGIN,
        label,
        ..Settings::default()
    };
    tracing::info!(scheduler = scheduler.name(), api = %client.endpoint().host, label = settings.label, "started");
    let engine = Engine::new(client, scheduler, settings, health, audit);
    notify(&[sd_notify::NotifyState::Ready]);
    let ran = engine.run(shutdown.clone()).await;
    shutdown.cancel();
    notify(&[sd_notify::NotifyState::Stopping]);
    if let Some(serving) = serving {
        let _ = tokio::time::timeout(Duration::from_secs(2), serving).await;
    }
    ran?;
    tracing::info!("stopped; jobs were left running");
    Ok(())
}

/// The API server by flags, configuration file and environment.
pub fn endpoint(flags: &Flags) -> Result<Endpoint, StartError> {
    let token = match &flags.token_file {
        None => None,
        Some(path) => Some(read_token(path)?),
    };
    let endpoint = Endpoint::from_lookup(|key| {
        config::variable(key, flags.config.as_deref(), token.as_ref(), |key| {
            std::env::var(key).ok()
        })
    })?;
    Ok(endpoint)
}

fn read_token(path: &Path) -> Result<Token, StartError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Token::new(text.trim())),
        Err(source) => Err(StartError::TokenFile {
            path: path.to_owned(),
            source,
        }),
    }
}

/// TERM and INT drain; HUP is taken note of, there is no configuration file to read again.
fn on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => shutdown.cancel(),
                _ = interrupt.recv() => shutdown.cancel(),
                _ = hangup.recv() => tracing::info!("SIGHUP: everything is set by flags, nothing to read again"),
            }
        }
    });
    Ok(())
}

/// Tells systemd, where it asked to be told.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "systemd could not be told");
    }
}

fn log_to_stderr(flags: &Flags) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(&flags.log_level)
        .map_err(|error| format!("--log-level {:?} is not a filter: {error}", flags.log_level))?;
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false);
    let set = match flags.log_format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    set.map_err(|error| error.to_string())
}

/// `10s`, `500ms`, `1m30s`: a unit is asked for, so that nobody has to guess.
pub fn time(text: &str) -> Result<Duration, String> {
    let hint = || format!("{text:?} is not a time: write it with a unit, like 10s, 500ms or 2m");
    let parsed: jiff::SignedDuration = text.parse().map_err(|_| hint())?;
    Duration::try_from(parsed).map_err(|_| hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_needs_a_unit() {
        for (text, milliseconds) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("1m30s", 90_000),
            ("2m", 120_000),
        ] {
            assert_eq!(
                time(text),
                Ok(Duration::from_millis(milliseconds)),
                "{text}"
            );
        }
        for text in ["10", "", "-1s", "ten", "1 week and a bit"] {
            let error = time(text).unwrap_err();
            assert!(error.contains("like 10s"), "{text}: {error}");
        }
    }
}
