//! `dispatch up`: runs a server and a dispatcher on this machine until it is stopped.

mod readiness;
mod start_report;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::ca_bundle;
use crate::commands::env::lines_without_token;
use crate::error::CliError;
use crate::local_status::URL_FILE;
use crate::printer::{Output, eprint_note};
use crate::state_dir::{
    ChildRecord, LOCAL_STATE_DIR, RECORD_FILE, ServerRecord, StateDir, StateError, UpRecord,
};
use crate::supervise::child::{Event, MakeCommand, SupervisedChild};
use crate::supervise::log::Log;
use crate::supervise::{UpError, delegated_group, engine_check, orphans, programs};

/// How long a check of the engines that is not finished may delay the readiness.
const ENGINE_CHECK_WAIT: Duration = Duration::from_secs(5);
const API_SERVER: &str = "dispatch-api";
const DISPATCHER: &str = "dispatch-local";
const MACHINE_DIR: &str = "/dev/shm/dispatch-machine";
/// Variables that children do not inherit: they get their own server and token, not those of the
/// user.
const NOT_INHERITED: [&str; 5] = [
    "ARVADOS_API_HOST",
    "ARVADOS_API_TOKEN",
    "ARVADOS_API_HOST_INSECURE",
    "ARVADOS_KEEP_SERVICES",
    "SSL_CERT_FILE",
];

/// Start a server and a dispatcher on this machine, and keep them running
///
/// Prints two environment lines for other programs, the same as 'dispatch env', with the file of
/// the token instead of the token. Other dispatch commands find this server by themselves, unless
/// ARVADOS_API_HOST names another, and act as an ordinary user; 'dispatch user' adds more. Ctrl-C,
/// SIGTERM, or the end of the terminal (unless below nohup) stops both and leaves running
/// containers alone: the next 'dispatch up' with the same state directory takes them over. The jobs
/// of several people's 'dispatch up' share the machine: together they get no more CPUs, memory and
/// GPUs than it has, and the job that has waited longest is next. A second 'dispatch up' on the
/// same state directory ends with exit status 6.
#[derive(Debug, Args)]
pub struct Up {
    /// Listen address of the server [default: 127.0.0.1 and the port of the last start]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Maximum number of CPUs for containers [default: all of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Maximum memory for containers [default: all of this machine]
    #[arg(long, value_name = "SIZE", value_parser = units::parse_positive_size)]
    pub memory: Option<u64>,
    /// Directory for the files of running containers [default: below the state directory]
    #[arg(long, value_name = "DIR")]
    pub scratch_dir: Option<PathBuf>,
    /// Directory for cached images and data [default: below the state directory]
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

/// The line dispatch-api prints when it is ready.
#[derive(Debug, Clone, Deserialize)]
struct Ready {
    host: String,
    certificate: PathBuf,
    tokens: TokenFiles,
}

#[derive(Debug, Clone, Deserialize)]
struct TokenFiles {
    user: PathBuf,
    dispatch: PathBuf,
    root: PathBuf,
}

struct Supervisor {
    state: StateDir,
    log: Log,
    events: mpsc::Receiver<Event>,
    sender: mpsc::Sender<Event>,
    record: UpRecord,
    signals: (Signal, Signal),
    /// `None` if hangups are ignored, as below `nohup`.
    hangup: Option<Signal>,
    /// The lock of the state directory.
    _lock: File,
}

pub async fn run(args: Up, state: StateDir) -> Result<(), CliError> {
    // First: it may start this program anew.
    let has_group = delegated_group::enter().await.unwrap_or_else(|note| {
        eprint_note(&format!("dispatch: {note}"));
        false
    });
    let mut supervisor = Supervisor::start(state).await?;
    let mut children = Vec::new();
    let result = run_children(&args, has_group, &mut supervisor, &mut children).await;
    // Other commands must not find a server that is stopping.
    for name in [RECORD_FILE, URL_FILE] {
        supervisor.state.remove(name);
    }
    // The dispatcher first: it may still send something to the server. Closed events do not block
    // its output.
    supervisor.events.close();
    while let Some(child) = children.pop() {
        child.stop().await;
    }
    result
}

impl Supervisor {
    async fn start(state: StateDir) -> Result<Self, CliError> {
        let lock = state.lock()?;
        if let Ok(record) = state.record() {
            orphans::stop_all(&record.children).await?;
        }
        state.remove(URL_FILE);
        let logs = state.make_dir("logs")?;
        let log = Log::open(&state.join("log"), &logs)?;
        let (sender, events) = mpsc::channel(64);
        let listen = |kind| signal(kind).map_err(UpError::Signals);
        let supervisor = Self {
            log,
            events,
            sender,
            record: UpRecord {
                pid: std::process::id(),
                ..UpRecord::default()
            },
            signals: (
                listen(SignalKind::terminate())?,
                listen(SignalKind::interrupt())?,
            ),
            hangup: match is_hangup_ignored() {
                true => None,
                false => Some(listen(SignalKind::hangup())?),
            },
            state,
            _lock: lock,
        };
        supervisor.save()?;
        Ok(supervisor)
    }

    fn save(&self) -> Result<(), CliError> {
        let text =
            serde_json::to_string(&self.record).map_err(|error| CliError::Output(error.into()))?;
        Ok(self.state.write(RECORD_FILE, &text)?)
    }

    fn supervise(
        &self,
        name: &'static str,
        make: MakeCommand,
    ) -> Result<SupervisedChild, CliError> {
        let log = self.log.program(name)?;
        Ok(SupervisedChild::start(name, make, log, self.sender.clone()))
    }

    /// Returns the next event, after recording and printing it. `None` after a signal to stop.
    async fn next(&mut self) -> Result<Option<Event>, CliError> {
        let event = tokio::select! {
            _ = self.signals.0.recv() => return Ok(None),
            _ = self.signals.1.recv() => return Ok(None),
            _ = hangup(&mut self.hangup) => return Ok(None),
            event = self.events.recv() => event,
        };
        match &event {
            Some(Event::Started(child)) => self.record_child(child)?,
            Some(Event::Exited {
                name,
                status,
                delay,
            }) => {
                // It ran before: what keeps it from starting now, such as a full disk, may pass.
                let why = match status.code() == Some(readiness::EX_CONFIG) {
                    true => readiness::last_log_line(&self.log_of(name)),
                    false => String::new(),
                };
                eprint_note(&format!(
                    "dispatch: {name} ended ({status}){why}; restarting it in {:.1} s",
                    delay.as_secs_f64()
                ));
            }
            Some(Event::SpawnFailed { error }) => eprint_note(&format!("dispatch: {error}")),
            Some(Event::StdoutLine { .. }) | None => {}
        }
        Ok(event)
    }

    fn record_child(&mut self, child: &ChildRecord) -> Result<(), CliError> {
        let children = &mut self.record.children;
        children.retain(|known| known.name != child.name);
        children.push(child.clone());
        self.save()
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.state.join("logs").join(format!("{name}.log"))
    }
}

/// The closed terminal of this program.
async fn hangup(signal: &mut Option<Signal>) -> Option<()> {
    match signal {
        Some(signal) => signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Whether this program was started so that it survives its terminal.
fn is_hangup_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // Signal 1.
    ignored.is_some_and(|mask| mask & 1 == 1)
}

async fn run_children(
    args: &Up,
    has_group: bool,
    supervisor: &mut Supervisor,
    children: &mut Vec<SupervisedChild>,
) -> Result<(), CliError> {
    let api = programs::find(API_SERVER)?;
    let local = programs::find(DISPATCHER)?;
    let crunch_run = programs::find("crunch-run")?;
    let directories = Directories::of(args, &supervisor.state)?;
    let mut check = command_without_secrets(&crunch_run);
    check.args(engine_check::arguments(
        &directories.scratch,
        &directories.cache,
    ));
    check.args(group_flag(has_group));
    let engine_check = engine_check::start(check, supervisor.state.clone());
    supervisor.record.cache_dir = Some(directories.cache.clone());
    supervisor.record.scratch_dir = Some(directories.scratch.clone());

    children.push(supervisor.supervise(API_SERVER, api_command(api, args, &supervisor.state))?);
    let Some(ready) = readiness::wait_for_api(supervisor).await? else {
        return Ok(());
    };
    start_report::print_found(&supervisor.state, &ready).await;
    let programs = [local, crunch_run];
    let state = &supervisor.state;
    let command = local_command(programs, args, has_group, directories, state, &ready)?;
    children.push(supervisor.supervise(DISPATCHER, command)?);
    if !readiness::wait_for_local(supervisor).await? {
        return Ok(());
    }
    let until = Instant::now() + ENGINE_CHECK_WAIT;
    while !engine_check.is_finished() && Instant::now() < until {
        tokio::select! {
            event = supervisor.next() => if event?.is_none() {
                return Ok(());
            },
            () = sleep_until(Instant::now() + Duration::from_millis(20)) => {}
        }
    }
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let host = ready.host.clone();
    let server = ServerRecord {
        ca_bundle: ca_bundle::write(&supervisor.state, &ready.certificate, named)?,
        host: ready.host,
        certificate: ready.certificate,
        token_file: ready.tokens.user,
        admin_token_file: ready.tokens.root,
    };
    let lines = lines_without_token(&server);
    supervisor.record.server = Some(server);
    supervisor.save()?;
    start_report::print_capacity(&supervisor.state, args).await?;
    start_report::print_address_for_others(args.listen, &host);
    eprint_note(&format!(
        "dispatch: ready; state {}, log {}",
        supervisor.state.path().display(),
        supervisor.state.join("log").display()
    ));
    start_report::print_other_server(&host);
    Output { json: false }.bytes(lines.as_bytes())?;
    while supervisor.next().await?.is_some() {}
    eprint_note("dispatch: stopping; running containers continue");
    Ok(())
}

/// Directories for containers.
struct Directories {
    scratch: PathBuf,
    cache: PathBuf,
}

impl Directories {
    fn of(args: &Up, state: &StateDir) -> Result<Self, CliError> {
        let or_below = |given: &Option<PathBuf>, name| match given {
            // Absolute, because other commands read it in the record.
            Some(dir) => std::path::absolute(dir).map_err(|source| StateError::Io {
                path: dir.display().to_string(),
                source,
            }),
            None => state.make_dir(name),
        };
        Ok(Self {
            scratch: or_below(&args.scratch_dir, "scratch")?,
            cache: or_below(&args.cache_dir, "cache")?,
        })
    }
}

fn api_command(program: PathBuf, args: &Up, state: &StateDir) -> MakeCommand {
    let (dir, listen) = (state.join("api"), args.listen);
    Box::new(move || {
        let mut command = command_without_secrets(&program);
        command.arg("--state-dir").arg(&dir);
        if let Some(listen) = listen {
            command.arg("--listen").arg(listen.to_string());
        }
        Ok(command)
    })
}

fn local_command(
    [program, crunch_run]: [PathBuf; 2],
    args: &Up,
    has_group: bool,
    Directories { scratch, cache }: Directories,
    state: &StateDir,
    ready: &Ready,
) -> Result<MakeCommand, CliError> {
    let state_dir = state.make_dir(LOCAL_STATE_DIR)?;
    let (state, ready) = (state.clone(), ready.clone());
    let (cpus, memory) = (args.cpus, args.memory);
    Ok(Box::new(move || {
        let address = free_address()?;
        let mut command = command_without_secrets(&program);
        for (flag, path) in [
            ("--state-dir", &state_dir),
            ("--token-file", &ready.tokens.dispatch),
            ("--crunch-run", &crunch_run),
            ("--scratch-dir", &scratch),
            ("--cache-dir", &cache),
            ("--machine-dir", &machine_dir()),
            ("--audit-file", &state.join("audit.log")),
        ] {
            command.arg(flag).arg(path);
        }
        let blocks = state.join("api").join("blocks");
        command
            // Read blocks directly from the directory of the server, which saves a copy.
            .arg(format!(
                "--crunch-run-argument=--block-dir={}",
                blocks.display()
            ))
            // Polling is cheap on the machine of the server, and needed if an event is lost.
            .args(["--poll-interval", "2s", "--only-dispatcher"])
            .args(["--health-listen", &address.to_string()])
            .env("ARVADOS_API_HOST", &ready.host)
            .env("SSL_CERT_FILE", &ready.certificate)
            .env("no_proxy", no_proxy_with(&ready.host));
        let flags = group_flag(has_group);
        command.args(flags.map(|flag| format!("--crunch-run-argument={flag}")));
        if let Some(cpus) = cpus {
            command.args(["--cpus", &cpus.to_string()]);
        }
        if let Some(memory) = memory {
            command.arg("--memory").arg(format!("{memory}B"));
        }
        let url = format!("http://{address}/status\n");
        // Without the file, `info` and `explain` only show less.
        if let Err(error) = state.write(URL_FILE, &url) {
            eprint_note(&format!("dispatch: {error}"));
        }
        Ok(command)
    }))
}

/// The flag of crunch-run for control groups that an ordinary user may make.
fn group_flag(has_group: bool) -> Option<&'static str> {
    has_group.then_some("--delegated-group")
}

/// Where the dispatchers of this machine tell each other what their jobs hold: in memory, because
/// it means nothing after a restart of the machine.
fn machine_dir() -> PathBuf {
    let set = std::env::var_os("DISPATCH_MACHINE_DIR").filter(|dir| !dir.is_empty());
    set.map_or_else(|| MACHINE_DIR.into(), PathBuf::from)
}

/// The hosts without a proxy, and the server itself.
fn no_proxy_with(host: &str) -> String {
    let set = ["no_proxy", "NO_PROXY"].map(|name| std::env::var(name).unwrap_or_default());
    let before = set.into_iter().find(|hosts| !hosts.is_empty());
    let (name, _) = host.rsplit_once(':').unwrap_or((host, ""));
    let name = name.trim_matches(['[', ']']);
    match before {
        Some(before) => format!("{before},{name}"),
        None => name.to_owned(),
    }
}

fn command_without_secrets(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in NOT_INHERITED {
        command.env_remove(name);
    }
    command
}

/// A free port. If another program takes it first, the program exits and the next start uses
/// another port.
fn free_address() -> Result<SocketAddr, UpError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(UpError::NoPort)
}
