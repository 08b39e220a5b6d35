//! An HTTP proxy between a program and dispatch-api that applies scripted faults to requests. It
//! speaks TLS with the server's own certificate, so programs trust it. Live events do not pass
//! through it, because the server's discovery document names the server itself. Tunnels do not
//! either: the proxy answers them with 501.

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

/// A request, the status of its answer, and whether a fault was applied.
#[derive(Debug, Clone)]
pub struct SeenRequest {
    /// Time of arrival.
    pub at: Instant,
    /// The request's method.
    pub method: Method,
    /// The request's path.
    pub path: String,
    /// The server's status; none if the request was not forwarded.
    pub status: Option<u16>,
    /// Whether a fault was applied to it.
    pub faulted: bool,
}

/// State shared by the proxy's connections.
#[derive(Debug)]
struct Shared {
    upstream: String,
    client: reqwest::Client,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<SeenRequest>>,
}

/// A running proxy; it ends when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    open: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy before the server that printed `ready`. Needs a runtime.
    pub fn start(ready: &Value) -> Self {
        let text = |key: &str| ready[key].as_str().expect("a ready line").to_owned();
        let certificate = text("certificate");
        let tls = serve::tls(Path::new(&certificate));
        let port = serve::bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
        let listener = serve::listen(&port).expect("a listener");
        let address = listener.local_addr().expect("a bound listener");
        let shared = Arc::new(Shared {
            upstream: text("host"),
            client: serve::client(Path::new(&certificate)),
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

    /// The server's `ready` line with the proxy's address.
    pub fn ready(&self, ready: &Value) -> Value {
        let mut ready = ready.clone();
        ready["host"] = self.address.to_string().into();
        ready
    }

    /// Replaces all faults from now on.
    pub fn faults(&self, rules: impl IntoIterator<Item = Rule>) {
        *self.shared.rules() = rules.into_iter().collect();
    }

    /// Closes all connections and refuses new ones, or accepts connections again.
    pub fn set_open(&self, open: bool) {
        self.open.send_replace(open);
    }

    /// Every request so far.
    pub fn seen(&self) -> Vec<SeenRequest> {
        self.shared.seen().clone()
    }

    /// Number of `method` requests of `path` so far. `*` stands for one part of the path.
    pub fn count(&self, method: Method, path: &str) -> usize {
        let seen = self.shared.seen();
        seen.iter()
            .filter(|seen| seen.method == method && rule::is_like(path, &seen.path))
            .count()
    }

    /// Number of requests so far that a fault was applied to.
    pub fn fault_count(&self) -> usize {
        self.shared
            .seen()
            .iter()
            .filter(|seen| seen.faulted)
            .count()
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

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<SeenRequest>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
