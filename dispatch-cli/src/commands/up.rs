//! `dispatch up`: a whole Arvados-style cluster on one machine, for as long as it runs.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::Token;
use clap::Args;
use serde::Deserialize;
use tokio::process::Command;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::failure::Failure;
use crate::output::{Output, note};
use crate::state_dir::{ChildRecord, Held, RUN_DIR, StateDir, UpRecord, env_lines};
use crate::status::URL_FILE;
use crate::supervise::keeper::{Event, Keeper, MakeCommand};
use crate::supervise::log::Log;
use crate::supervise::{UpError, leftovers, programs};
use crate::units;

/// How long the programs may take to be ready.
const READY: Duration = Duration::from_secs(60);
/// A program that has never been ready and died this often does not start.
const ATTEMPTS: u32 = 5;
/// "Something must be changed by a person": trying again does not help.
const CONFIGURATION: i32 = 78;
const API: &str = "dispatch-api";
const LOCAL: &str = "dispatch-local";
/// What children must not inherit: they get what they need by name, and no secret of whoever started us.
const OURS_ALONE: [&str; 5] = [
    "ARVADOS_API_HOST",
    "ARVADOS_API_TOKEN",
    "ARVADOS_API_HOST_INSECURE",
    "ARVADOS_KEEP_SERVICES",
    "SSL_CERT_FILE",
];

/// Start a server and a dispatcher on this machine, and keep them running
///
/// Prints the two lines that other programs need in their environment; other dispatch commands find this server by
/// themselves. Ctrl-C (or SIGTERM) ends both and leaves running containers running: the next 'dispatch up' on the same
/// state adopts them. A second one at the same time ends with exit status 6.
#[derive(Debug, Args)]
pub struct Up {
    /// Where the server listens [default: 127.0.0.1 and the port of the last start]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<SocketAddr>,
    /// Give containers at most so many CPUs [default: all of this machine]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub cpus: Option<u32>,
    /// Give containers at most so much memory, like 16GiB [default: all of this machine]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    pub mem: Option<u64>,
    /// Where containers write [default: below the state directory]
    #[arg(long, value_name = "DIR")]
    pub scratch: Option<PathBuf>,
    /// Where images and data are cached [default: below the state directory]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
}

/// The line dispatch-api prints when it is ready.
#[derive(Debug, Clone, Deserialize)]
struct Ready {
    host: String,
    certificate: PathBuf,
    tokens: Tokens,
}

#[derive(Debug, Clone, Deserialize)]
struct Tokens {
    user: PathBuf,
    dispatch: PathBuf,
}

struct World {
    state: StateDir,
    log: Log,
    events: mpsc::Receiver<Event>,
    tell: mpsc::Sender<Event>,
    record: UpRecord,
    signals: (Signal, Signal),
    _held: Held,
}

pub async fn run(args: Up, state: StateDir) -> Result<(), Failure> {
    let mut world = World::enter(state).await?;
    let mut keepers = Vec::new();
    let result = work(&args, &mut world, &mut keepers).await;
    // Nobody may find a server that is going away.
    for name in ["env", URL_FILE] {
        world.state.remove(name);
    }
    // The dispatcher first: it may want to tell the server something last. What is still said must not block it.
    world.events.close();
    while let Some(keeper) = keepers.pop() {
        keeper.stop().await;
    }
    world.state.remove("up.json");
    result
}

impl World {
    async fn enter(state: StateDir) -> Result<Self, Failure> {
        let held = state.hold()?;
        if let Ok(record) = state.record() {
            leftovers::end(&record.children).await?;
        }
        for name in ["env", URL_FILE] {
            state.remove(name);
        }
        let logs = state.make_dir("logs")?;
        let log = Log::open(&state.join("log"), &logs)?;
        let (tell, events) = mpsc::channel(64);
        let listen = |kind| signal(kind).map_err(UpError::Signals);
        let world = Self {
            log,
            events,
            tell,
            record: UpRecord {
                pid: std::process::id(),
                ..UpRecord::default()
            },
            signals: (
                listen(SignalKind::terminate())?,
                listen(SignalKind::interrupt())?,
            ),
            state,
            _held: held,
        };
        world.save()?;
        Ok(world)
    }

    fn save(&self) -> Result<(), Failure> {
        let text =
            serde_json::to_string(&self.record).map_err(|error| Failure::Output(error.into()))?;
        Ok(self.state.write("up.json", &text)?)
    }

    fn keep(&self, name: &'static str, make: MakeCommand) -> Result<Keeper, Failure> {
        let log = self.log.program(name)?;
        Ok(Keeper::start(name, make, log, self.tell.clone()))
    }

    /// The next event, with what is always to be done about it done; `None` when we are to stop.
    async fn next(&mut self) -> Result<Option<Event>, Failure> {
        let event = tokio::select! {
            _ = self.signals.0.recv() => return Ok(None),
            _ = self.signals.1.recv() => return Ok(None),
            event = self.events.recv() => event,
        };
        match &event {
            Some(Event::Started(child)) => self.remember(child)?,
            Some(Event::Died {
                name,
                status,
                pause,
            }) => note(&format!(
                "dispatch: {name} ended ({status}); starting it again in {:.1} s",
                pause.as_secs_f64()
            )),
            Some(Event::NotStarted { error, .. }) => note(&format!("dispatch: {error}")),
            Some(Event::Said { .. }) | None => {}
        }
        Ok(event)
    }

    fn remember(&mut self, child: &ChildRecord) -> Result<(), Failure> {
        self.record
            .children
            .retain(|known| known.name != child.name);
        self.record.children.push(child.clone());
        self.save()
    }

    fn log_of(&self, name: &str) -> PathBuf {
        self.state.join("logs").join(format!("{name}.log"))
    }
}

async fn work(args: &Up, world: &mut World, keepers: &mut Vec<Keeper>) -> Result<(), Failure> {
    let api = programs::find(API)?;
    let local = programs::find(LOCAL)?;
    let crunch_run = programs::find("crunch-run")?;

    keepers.push(world.keep(API, api_command(api, args, &world.state))?);
    let Some(ready) = wait_for_api(world).await? else {
        return Ok(());
    };
    world.record.certificate = Some(ready.certificate.clone());
    world.save()?;
    let command = local_command(local, crunch_run, args, &world.state, &ready)?;
    keepers.push(world.keep(LOCAL, command)?);
    if !wait_for_local(world).await? {
        return Ok(());
    }
    let token =
        std::fs::read_to_string(&ready.tokens.user).map_err(|source| UpError::TokenFile {
            path: ready.tokens.user.clone(),
            source,
        })?;
    let lines = env_lines(&ready.host, &Token::new(token));
    world.state.write("env", &lines)?;
    note(&format!(
        "dispatch: ready; state {}, log {}",
        world.state.path().display(),
        world.state.join("log").display()
    ));
    Output { json: false }.bytes(lines.as_bytes())?;
    while world.next().await?.is_some() {}
    note("dispatch: stopping; running containers go on");
    Ok(())
}

fn api_command(program: PathBuf, args: &Up, state: &StateDir) -> MakeCommand {
    let (dir, listen) = (state.join("api"), args.listen);
    Box::new(move || {
        let mut command = clean(&program);
        command.arg("--state").arg(&dir);
        if let Some(listen) = listen {
            command.arg("--listen").arg(listen.to_string());
        }
        Ok(command)
    })
}

fn local_command(
    program: PathBuf,
    crunch_run: PathBuf,
    args: &Up,
    state: &StateDir,
    ready: &Ready,
) -> Result<MakeCommand, Failure> {
    let run_dir = state.make_dir(RUN_DIR)?;
    let scratch = match &args.scratch {
        Some(dir) => dir.clone(),
        None => state.make_dir("scratch")?,
    };
    let cache = match &args.cache {
        Some(dir) => dir.clone(),
        None => state.make_dir("cache")?,
    };
    let (state, ready) = (state.clone(), ready.clone());
    let (cpus, mem) = (args.cpus, args.mem);
    Ok(Box::new(move || {
        let address = free_address()?;
        let mut command = clean(&program);
        command
            .arg("--run-dir")
            .arg(&run_dir)
            .arg("--token-file")
            .arg(&ready.tokens.dispatch)
            .arg("--crunch-run")
            .arg(&crunch_run)
            .arg("--scratch")
            .arg(&scratch)
            .arg("--cache")
            .arg(&cache)
            // Blocks are where the server has them; fetching them through it would only copy them.
            .arg(format!(
                "--crunch-run-argument=--block-dir={}",
                state.join("api").join("blocks").display()
            ))
            // Beside the server a look costs little, and it is what is left should an event be lost.
            .args(["--poll-interval", "2s"])
            .arg("--audit-file")
            .arg(state.join("audit.log"))
            .arg("--health-listen")
            .arg(address.to_string())
            .env("ARVADOS_API_HOST", &ready.host)
            .env("SSL_CERT_FILE", &ready.certificate);
        if let Some(cpus) = cpus {
            command.arg("--cpus").arg(cpus.to_string());
        }
        if let Some(mem) = mem {
            command.arg("--ram").arg(format!("{mem}B"));
        }
        let url = format!("http://{address}/status\n");
        // Without it only `info` and `explain` know less.
        if let Err(error) = state.write(URL_FILE, &url) {
            note(&format!("dispatch: {error}"));
        }
        Ok(command)
    }))
}

fn clean(program: &Path) -> Command {
    let mut command = Command::new(program);
    for name in OURS_ALONE {
        command.env_remove(name);
    }
    command
}

/// A port nobody uses right now. Should somebody be faster, the program dies and the next start takes another.
fn free_address() -> Result<SocketAddr, UpError> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map_err(UpError::NoPort)
}

/// Until dispatch-api has said where it is; `None` if we are to stop.
async fn wait_for_api(world: &mut World) -> Result<Option<Ready>, Failure> {
    let mut patience = Patience::new(API);
    loop {
        let Some(event) = patience.next(world).await? else {
            return Ok(None);
        };
        if let Event::Said { name: API, line } = event {
            return match serde_json::from_str(&line) {
                Ok(ready) => Ok(Some(ready)),
                Err(_) => Err(UpError::BadReadyLine(line).into()),
            };
        }
    }
}

/// Until dispatch-local is noted down and answers; false if we are to stop.
async fn wait_for_local(world: &mut World) -> Result<bool, Failure> {
    let (mut patience, mut is_noted) = (Patience::new(LOCAL), false);
    loop {
        let look_again = Instant::now() + Duration::from_millis(50);
        if is_noted && answers(&world.state).await {
            return Ok(true);
        }
        tokio::select! {
            event = patience.next(world) => match event? {
                None => return Ok(false),
                Some(Event::Started(child)) => is_noted |= child.name == LOCAL,
                Some(_) => {}
            },
            () = sleep_until(look_again) => {}
        }
    }
}

async fn answers(state: &StateDir) -> bool {
    let Ok(url) = std::fs::read_to_string(state.join(URL_FILE)) else {
        return false;
    };
    let address = url
        .trim()
        .trim_start_matches("http://")
        .trim_end_matches("/status");
    tokio::net::TcpStream::connect(address).await.is_ok()
}

/// Waiting for a program to become ready, but not for ever.
struct Patience {
    name: &'static str,
    until: Instant,
    deaths: u32,
}

impl Patience {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            until: Instant::now() + READY,
            deaths: 0,
        }
    }

    async fn next(&mut self, world: &mut World) -> Result<Option<Event>, Failure> {
        let event = tokio::select! {
            event = world.next() => event?,
            () = sleep_until(self.until) => {
                return Err(UpError::NotReady {
                    name: self.name.to_owned(),
                    seconds: READY.as_secs(),
                    log: world.log_of(self.name),
                }
                .into());
            }
        };
        match event {
            Some(Event::Died { name, status, .. }) if name == self.name => {
                self.deaths += 1;
                if self.deaths < ATTEMPTS && status.code() != Some(CONFIGURATION) {
                    return Ok(Some(Event::Said {
                        name: "",
                        line: String::new(),
                    }));
                }
                let log = world.log_of(name);
                Err(UpError::DoesNotStart {
                    name: name.to_owned(),
                    status: status.to_string(),
                    words: last_words(&log),
                    log,
                }
                .into())
            }
            Some(Event::NotStarted { error, .. }) => Err(error.into()),
            other => Ok(other),
        }
    }
}

/// The last line the program logged, which usually says what is wrong.
fn last_words(log: &Path) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().rev();
    match lines.find(|line| !line.contains("dispatch up:") && !line.trim().is_empty()) {
        Some(line) => format!(": {}", line.trim()),
        None => String::new(),
    }
}
