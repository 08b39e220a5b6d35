//! An HTTP proxy between a program and dispatch-api that spoils the requests it is told to. It speaks TLS with the
//! server's own certificate, so that programs trust it without further ado. Live events do not pass through it: the
//! server's discovery document names the server itself. Tunnels do not either: they are answered 501.

mod rule;
mod serve;

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use http::Method;
use serde_json::Value;
use tokio::sync::watch;

pub use rule::{Effect, Fault, Rule};

/// One request, as it went.
#[derive(Debug, Clone)]
pub struct Seen {
    /// When it came.
    pub at: Instant,
    /// What was to be done.
    pub method: Method,
    /// To what.
    pub path: String,
    /// What the server answered; none if it never heard of it.
    pub status: Option<u16>,
    /// Whether it was spoilt.
    pub spoilt: bool,
}

/// What its connections share.
#[derive(Debug)]
struct Shared {
    upstream: String,
    client: reqwest::Client,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Seen>>,
}

/// A proxy, for as long as this value lives.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    open: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Before the server that said `ready`. To be called within a runtime.
    pub fn start(ready: &Value) -> Self {
        let text = |key: &str| ready[key].as_str().expect("a ready line").to_owned();
        let certificate = text("certificate");
        let tls = serve::tls(Path::new(&certificate));
        let port = serve::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let listener = serve::listen(&port).expect("a listener");
        let address = listener.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            upstream: text("host"),
            client: serve::client(),
            rules: Mutex::default(),
            seen: Mutex::default(),
        });
        let (open, is_open) = watch::channel(true);
        let task = tokio::spawn(serve::accept(port, listener, tls, shared.clone(), is_open));
        Self {
            address,
            shared,
            open,
            task,
        }
    }

    /// The server's words to clients, with this proxy in its place.
    pub fn ready(&self, ready: &Value) -> Value {
        let mut ready = ready.clone();
        ready["host"] = self.address.to_string().into();
        ready
    }

    /// Everything that goes wrong from now on.
    pub fn faults(&self, rules: impl IntoIterator<Item = Rule>) {
        *self.shared.rules() = rules.into_iter().collect();
    }

    /// Ends all connections and refuses new ones, or lets them in again.
    pub fn open(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen().clone()
    }

    /// How many `method` requests of `path` (with `*` for one part) there were so far.
    pub fn count(&self, method: Method, path: &str) -> usize {
        let seen = self.shared.seen();
        seen.iter()
            .filter(|seen| seen.method == method && rule::is_like(path, &seen.path))
            .count()
    }

    /// How many requests were spoilt so far.
    pub fn spoilt(&self) -> usize {
        self.shared.seen().iter().filter(|seen| seen.spoilt).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        self.open.send_replace(false);
    }
}

impl Shared {
    fn rules(&self) -> std::sync::MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
