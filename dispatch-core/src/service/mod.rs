//! The parts common to every dispatcher program: flags, logging, signals, health and exit status.
//! Input: parsed [`Flags`] and a scheduler; output: the program's exit status.
//!
//! The exit status is 0 after a drain, 78 for an unusable configuration, and 1 for any other error.

pub mod exit;
mod logging;
pub mod man_page;
mod program;
pub mod state_dir;
pub mod subcommands;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub use logging::LogFormat;
pub use program::main;

use arvados_client::endpoint::EndpointError;
use arvados_client::{Client, Endpoint, Token};
use clap::{Args, ValueEnum};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use units::DurationRange;

use crate::act::attempt_tokens::TokenMode;
use crate::config::settings::{CommandRate, Settings};
use crate::config::{self, Config};
use crate::controller::{Controller, NotAdmin};
use crate::report::audit::Audit;
use crate::report::health::Health;
use crate::scheduler::credentials::GatewayKey;
use crate::scheduler::{JOB_ENVIRONMENT, Scheduler};
use crate::service::subcommands::check;

pub use exit::{exit_config_error, exit_usage_error};

/// Margin by which an attempt's token outlives the container's run time limit. A job may wait long
/// in its scheduler.
const TOKEN_MARGIN: Duration = Duration::from_secs(14 * 86400);
/// Time for which an idle thread for blocking work stays: as long as the program runs.
const BLOCKING_THREAD_LIFE: Duration = Duration::from_secs(10 * 365 * 86400);
/// Maximum size of an audit file in bytes; there are at most two files.
const AUDIT_LIMIT: u64 = 64 << 20;

/// Times from `min` milliseconds to `max` seconds.
const fn times(min: u64, max: u64) -> DurationRange {
    DurationRange::new(Duration::from_millis(min), Duration::from_secs(max))
}

/// Range of `--poll-interval`. A poll lists the jobs, which takes a scheduler some time.
pub const POLL_INTERVALS: DurationRange = times(100, 3600);
/// Range of `--min-poll-interval`.
const MIN_POLL_INTERVALS: DurationRange = times(1, 60);
/// Range of `--stop-grace`.
const STOP_GRACES: DurationRange = times(1000, 7 * 86400);
/// Range of `--min-retry-period`.
const RETRY_PERIODS: DurationRange = times(10, 3600);
/// Range of `--command-timeout`.
pub const COMMAND_TIMEOUTS: DurationRange = times(1000, 3600);
/// Range of times for which containers or results wait.
const LONG_WAITS: DurationRange = times(1000, 366 * 86400);

/// Range of times for which a program waits for another, or leaves it time; they may be 0.
pub const PAUSES: DurationRange = times(0, 30 * 86400);

/// A number of containers, from 1 to a million.
fn count(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    number
        .filter(|number| (1..=1_000_000).contains(number))
        .ok_or_else(|| "write a number from 1 to 1000000".to_owned())
}

/// The kind of token that holds the locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum TokenModeName {
    /// Each attempt has a token of its own, which fences it from all others
    PerAttempt,
    /// Every job gets the dispatch token. For servers that forbid making tokens
    Shared,
}

/// Flags of every dispatcher. `ARVADOS_API_HOST` and similar variables name the API server.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Flags {
    /// File with the dispatch token [default: ARVADOS_API_TOKEN]
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Interval between two polls of the API server and of the scheduler when nothing happens
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = POLL_INTERVALS.parser())]
    pub poll_interval: Duration,
    /// Minimum interval between two polls, however much happens
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = MIN_POLL_INTERVALS.parser())]
    pub min_poll_interval: Duration,
    /// Number of containers that are pending in the scheduler at once. Users take turns. A user who
    /// has less than an equal share gets it beyond this number, up to twice the number in all
    #[arg(long, value_name = "N", default_value = "100", value_parser = count)]
    pub max_pending: usize,
    /// Time between TERM and KILL when a job is stopped
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = STOP_GRACES.parser())]
    pub stop_grace: Duration,
    /// Cancel a pending job that cannot start without an administrator after this time; 0 means
    /// never
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = LONG_WAITS.or_zero().parser())]
    pub start_timeout: Duration,
    /// Time for which undelivered results may stay on their node before the record is cancelled
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = LONG_WAITS.or_zero().parser())]
    pub undelivered_wait: Duration,
    /// Evictions by the site, such as preemptions, do not count as attempts of a request until it
    /// has had this many containers
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub max_evictions: u32,
    /// Maximum number of workflow runners of users that are pending or running at once. Choose it
    /// so that room is left for the containers that they request, other runners among them
    #[arg(long, value_name = "N", default_value = "50", value_parser = count)]
    pub max_supervisors: usize,
    /// Initial delay before a container is tried again after a failed attempt; doubles with each
    /// failure
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = RETRY_PERIODS.parser())]
    pub min_retry_period: Duration,
    /// Maximum number of scheduler commands per second, in addition to one listing per poll; "none"
    /// means no limit. Cancellations have the same rate again
    #[arg(long, value_name = "N", default_value = "50")]
    pub scheduler_rate: CommandRate,
    /// Timeout of one command of the scheduler
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = COMMAND_TIMEOUTS.parser())]
    pub command_timeout: Duration,
    /// Kind of token that locks containers
    #[arg(long, value_name = "MODE", default_value = "per-attempt")]
    pub token_mode: TokenModeName,
    /// Memory for crunch-run itself, added to the memory of each container
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = units::parse_size)]
    pub reserve_extra_ram: u64,
    /// Address that serves /metrics, /_health/ping and /status
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub health_listen: Option<SocketAddr>,
    /// File with the token that clients of --health-listen must send
    #[arg(long, value_name = "FILE", requires = "health_listen")]
    pub management_token_file: Option<PathBuf>,
    /// File to which every decision is appended, one JSON object per line. At 64 MiB it is renamed
    /// to FILE.1
    #[arg(long, value_name = "FILE")]
    pub audit_file: Option<PathBuf>,
    /// Format of log lines
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// Minimum level of log lines: error, warn, info or debug, or a filter like dispatch_core=debug
    #[arg(long, value_name = "FILTER", default_value = "info")]
    pub log_level: String,
    /// What the configuration file says, for programs that read one
    #[arg(skip)]
    pub config: Option<Arc<Config>>,
}

impl Flags {
    /// `SystemRootToken` of the configuration file.
    pub fn system_root_token(&self) -> Option<Token> {
        self.config.as_deref()?.cluster.system_root_token.clone()
    }

    /// Environment variables of jobs, from the configuration file or this process. No token is
    /// among them.
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

/// The reason for which a dispatcher did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The API server's address or token is unusable.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A token file cannot be read.
    #[error("cannot read the token file {}: {source}", path.display())]
    TokenFile {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The HTTP client cannot be set up.
    #[error("cannot set up the connection to the API server: {0}")]
    Client(#[source] arvados_client::Error),
    /// The health address cannot be listened on.
    #[error("cannot listen on {address} for health and metrics: {source}")]
    Listen {
        /// Address of the listener.
        address: SocketAddr,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// The audit file cannot be written.
    #[error("cannot write the audit file {}: {source}", path.display())]
    Audit {
        /// Path of the file.
        path: PathBuf,
        /// Error of the file system.
        source: std::io::Error,
    },
    /// The scheduler lacks something that it needs.
    #[error(transparent)]
    Scheduler(Box<dyn std::error::Error + Send + Sync>),
    /// The dispatch token does not belong to an admin.
    #[error(transparent)]
    NotAdmin(#[from] NotAdmin),
    /// A basic call of the operating system failed.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Runs a dispatcher until SIGTERM or SIGINT. `scheduler` returns the scheduler and the label that
/// tells this instance apart from others of the same user.
pub fn run<S, F>(flags: Flags, scheduler: F) -> ExitCode
where
    S: Scheduler,
    F: AsyncFnOnce() -> Result<(S, String), Box<dyn std::error::Error + Send + Sync>>,
{
    if let Err(error) = logging::log_to_stderr(&flags) {
        return exit_config_error(&error);
    }
    // One worker thread beside the controller's loop is enough. Both mostly wait, blocking work
    // runs on other threads, and each thread keeps its own memory.
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        // Where the limit on processes is reached, blocking work needs a thread that exists. The
        // runtime panics without one.
        .thread_keep_alive(BLOCKING_THREAD_LIFE)
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => return exit_config_error(&error.to_string()),
    };
    // Starts the first of these threads.
    runtime.spawn_blocking(|| ());
    let served = runtime.block_on(serve(flags, scheduler));
    // A file server that does not answer keeps no dispatcher from ending.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit_config_error(&error.to_string()),
    }
}

async fn serve<S, F>(flags: Flags, scheduler: F) -> Result<(), StartError>
where
    S: Scheduler,
    F: AsyncFnOnce() -> Result<(S, String), Box<dyn std::error::Error + Send + Sync>>,
{
    let config = flags.config.as_deref();
    let warnings = config
        .iter()
        .flat_map(|config| config.warnings.iter().chain(&config.exposed));
    for warning in warnings {
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
    let management = flags.management_token_file.as_deref();
    let management = management.map(read_token).transpose()?;
    let open_audit = |path: &PathBuf| {
        let path = path.clone();
        Audit::open(&path, AUDIT_LIMIT).map_err(|source| StartError::Audit { path, source })
    };
    let audit = flags.audit_file.as_ref().map(open_audit).transpose()?;
    let (scheduler, label) = scheduler().await.map_err(StartError::Scheduler)?;
    let health = Health::new(
        3 * flags.poll_interval + Duration::from_secs(30),
        management,
    );
    let shutdown = CancellationToken::new();
    drain_on_signals(shutdown.clone())?;
    let serving = listener.map(|listener| {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(event = "health_listening", %address, "serving health and metrics");
        }
        tokio::spawn(health.clone().serve(listener, shutdown.clone()))
    });
    let token_mode = match flags.token_mode {
        TokenModeName::PerAttempt => TokenMode::PerAttempt,
        TokenModeName::Shared => {
            tracing::warn!(
                "--token-mode=shared: every job gets the dispatch token. A job of an earlier attempt can still change its \
                 container. Another dispatcher with this token would take over the containers: use the token for one \
                 dispatcher only"
            );
            TokenMode::Shared(client.endpoint().token.clone())
        }
    };
    let settings = Settings {
        max_supervisors: flags.max_supervisors,
        retry_period: flags.min_retry_period,
        command_rate: flags.scheduler_rate,
        token_mode,
        gateway: flags.system_root_token().map(GatewayKey::new),
        poll_interval: flags.poll_interval,
        min_poll_interval: flags.min_poll_interval,
        reserve_ram: flags.reserve_extra_ram,
        max_pending: flags.max_pending,
        stop_grace: flags.stop_grace,
        undelivered_wait: flags.undelivered_wait,
        max_evictions: flags.max_evictions,
        start_timeout: Some(flags.start_timeout).filter(|time| !time.is_zero()),
        token_margin: TOKEN_MARGIN,
        label,
        ..Settings::default()
    };
    tracing::info!(event = "started", scheduler = scheduler.name(), api = %client.endpoint().host, label = settings.label, "started");
    fail_points::fail_point("dispatcher.started");
    if let Some(key) = flags.system_root_token() {
        let client = client.clone();
        tokio::spawn(async move {
            if let Some(fault) = check::gateway_key_fault(&client, &key).await {
                tracing::warn!(
                    event = "live_logs_refused",
                    "{fault}; {}",
                    check::GATEWAY_KEY_REMEDY
                );
            }
        });
    }
    let engine = Controller::new(client, scheduler, settings, health, audit);
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

/// The API server, from flags, configuration file and environment.
pub fn endpoint(flags: &Flags) -> Result<Endpoint, StartError> {
    let token = flags.token_file.as_deref().map(read_token).transpose()?;
    let endpoint = Endpoint::from_lookup(|key| {
        config::variable(key, flags.config.as_deref(), token.as_ref(), |key| {
            std::env::var(key).ok()
        })
    })?;
    Ok(endpoint)
}

fn read_token(path: &Path) -> Result<Token, StartError> {
    let text = std::fs::read_to_string(path).map_err(|source| StartError::TokenFile {
        path: path.to_owned(),
        source,
    })?;
    Ok(Token::new(text.trim()))
}

/// Drains on SIGTERM and SIGINT. SIGHUP is only logged, because there is no configuration to read
/// again.
fn drain_on_signals(shutdown: CancellationToken) -> std::io::Result<()> {
    let mut term = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = term.recv() => shutdown.cancel(),
                _ = interrupt.recv() => shutdown.cancel(),
                _ = hangup.recv() => tracing::info!("ignoring SIGHUP: flags and the configuration file are read only at the start"),
            }
        }
    });
    Ok(())
}

/// Notifies systemd, if it asked for notifications.
fn notify(states: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "could not notify systemd");
    }
}
