//! Response times and memory of the server during floods: `cargo bench -p dispatch-api --bench
//! floods`.
//!
//! For each flood it prints the p95 of a client with a token, and the server's resident memory: the
//! highest during the flood, and one minute later. The server is a process of its own. With the
//! variable FLOOD, only floods whose name contains its value run; those of one user with a token
//! begin with "user: ".

#[path = "../tests/api/fixture.rs"]
#[allow(dead_code, reason = "only the tests use all of it")]
mod fixture;

#[path = "floods/by_user.rs"]
mod by_user;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fixture::{Api, client_trusting};
use rustls_pki_types::ServerName;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const IDLE_CONNECTIONS: usize = 2000;
const WEBSOCKETS: usize = 20_000;
const TRICKLING_BODIES: usize = 6;
const LARGE_BODIES: usize = 4;
const LARGE_BODY_BYTES: usize = 63 << 20;
const UNREAD_RESPONSES: usize = 20;
const UNREAD_RESPONSE_BYTES: usize = 33 << 20;
/// Maximum number of connections that this process keeps; the server has closed older ones.
const MAX_HELD: usize = 10_000;
/// How long a flood is held after it was opened.
const HOLD: Duration = Duration::from_secs(5);
/// Time after a flood, after which its memory must be free.
const RECOVERY: Duration = Duration::from_secs(60);

struct Bench {
    server: Child,
    ready: Value,
    host: String,
    tls: TlsConnector,
    admin: Api,
}

fn main() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let directory = tempfile::tempdir().expect("a directory");
        let mut bench = Bench::start(directory.path());
        bench.admin.get("users/current").await.ok();
        println!("at rest: {} MiB", bench.resident_mib());
        bench.measure("2,000 idle connections", bench.idle()).await;
        bench
            .measure("20,000 websockets without a token", bench.websockets())
            .await;
        bench
            .measure("6 trickling bodies", bench.trickle("nonsense"))
            .await;
        let token = bench.admin.token.clone();
        bench
            .measure("6 trickling bodies with a token", bench.trickle(&token))
            .await;
        bench
            .measure("4 JSON bodies of 63 MiB", bench.large("nonsense"))
            .await;
        bench
            .measure("4 JSON bodies of 63 MiB with a token", bench.large(&token))
            .await;
        bench
            .measure("20 responses of 33 MiB not read", bench.unread())
            .await;
        let _ = bench.server.kill();
        let _ = bench.server.wait();
        by_user::run().await;
    });
}

/// What a flood holds open.
type Held = Vec<Box<dyn Send>>;

impl Bench {
    fn start(directory: &Path) -> Bench {
        let mut server = Command::new(env!("CARGO_BIN_EXE_dispatch-api"))
            .arg("--state-dir")
            .arg(directory.join("state"))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("a ready line");
        let ready: Value = serde_json::from_str(&line).expect("JSON");
        let certificate = ready["certificate"].as_str().expect("a path");
        client_trusting(Path::new(certificate));
        Bench {
            server,
            host: ready["host"].as_str().expect("an address").to_owned(),
            tls: connector(certificate),
            admin: Api::of(&ready, "user"),
            ready,
        }
    }

    /// A client with connections of its own.
    fn new_client(&self, token: &str) -> Api {
        Api::of(&self.ready, "user").with_token(token)
    }

    fn dispatcher(&self) -> Api {
        Api::of(&self.ready, "dispatch")
    }

    fn resident_mib(&self) -> u64 {
        self.status_mib("VmRSS:")
    }

    fn highest_resident_mib(&self) -> u64 {
        self.status_mib("VmHWM:")
    }

    /// Ends the server by SIGTERM, and returns how long that took.
    async fn terminate(&mut self) -> Duration {
        let began = Instant::now();
        let mut kill = Command::new("kill");
        let sent = kill.arg(self.server.id().to_string()).status();
        assert!(sent.expect("kill").success());
        while self.server.try_wait().expect("a child").is_none() {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if began.elapsed() > RECOVERY {
                let _ = self.server.kill();
            }
        }
        began.elapsed()
    }

    fn status_mib(&self, key: &str) -> u64 {
        let path = format!("/proc/{}/status", self.server.id());
        let status = std::fs::read_to_string(path).expect("the server runs");
        let line = status.lines().find(|line| line.starts_with(key));
        let kib = line.and_then(|line| line.split_whitespace().nth(1));
        kib.and_then(|kib| kib.parse::<u64>().ok()).expect("a size") / 1024
    }

    /// Opens a flood and holds it while a client sends requests, then waits for the recovery.
    async fn measure(&self, name: &str, flood: impl Future<Output = Held>) {
        if !name.contains(&std::env::var("FLOOD").unwrap_or_default()) {
            return;
        }
        let stop = Arc::new(AtomicBool::new(false));
        let client = tokio::spawn(request_until(self.admin.clone(), stop.clone()));
        let highest = async {
            let mut highest = 0;
            loop {
                highest = highest.max(self.resident_mib());
                if stop.load(Ordering::Relaxed) {
                    return highest;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let attack = async {
            let began = Instant::now();
            let held = flood.await;
            let opened = began.elapsed();
            tokio::time::sleep(HOLD).await;
            stop.store(true, Ordering::Relaxed);
            drop(held);
            opened
        };
        let (highest, opened) = tokio::join!(highest, attack);
        let mut times = client.await.expect("the client ends");
        times.sort();
        let p95 = times[times.len() * 95 / 100];
        let slowest = times[times.len() - 1];
        tokio::time::sleep(RECOVERY).await;
        println!(
            "{name}: opened in {:.1} s; client: {} requests, p95 {:.1} ms, slowest {:.0} ms; \
             memory: at most {highest} MiB, {} MiB a minute later",
            opened.as_secs_f64(),
            times.len(),
            p95.as_secs_f64() * 1000.0,
            slowest.as_secs_f64() * 1000.0,
            self.resident_mib()
        );
    }

    async fn idle(&self) -> Held {
        let mut held: Held = Vec::new();
        for _ in 0..IDLE_CONNECTIONS {
            if let Ok(stream) = TcpStream::connect(&self.host).await {
                held.push(Box::new(stream));
            }
        }
        held
    }

    async fn websockets(&self) -> Held {
        self.websockets_of("nonsense", WEBSOCKETS).await
    }

    async fn websockets_of(&self, token: &str, number: usize) -> Held {
        let mut held: Held = Vec::new();
        let mut opening = JoinSet::new();
        for number in 0..number {
            let (tls, host) = (self.tls.clone(), self.host.clone());
            let head = format!(
                "GET /websocket?api_token={token} HTTP/1.1\r\nHost: x\r\n\
                 Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            );
            opening.spawn(async move {
                let mut stream = connect(&tls, &host).await?;
                stream.write_all(head.as_bytes()).await.ok()?;
                // A text frame with a mask of zeros.
                let frame = b"\x81\x96\0\0\0\0{\"method\":\"subscribe\"}";
                stream.write_all(frame).await.ok()?;
                Some(stream)
            });
            if number >= 50 {
                keep(&mut held, opening.join_next().await);
            }
        }
        while let Some(opened) = opening.join_next().await {
            keep(&mut held, Some(opened));
        }
        held
    }

    async fn trickle(&self, token: &str) -> Held {
        let mut held: Held = Vec::new();
        for _ in 0..TRICKLING_BODIES {
            let Some(mut stream) = self.begin_post(token, 64 << 20).await else {
                continue;
            };
            let task = tokio::spawn(async move {
                while stream.write_all(b" ").await.is_ok() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            });
            held.push(Box::new(AbortOnDrop(task.abort_handle())));
        }
        held
    }

    async fn large(&self, token: &str) -> Held {
        let body: Arc<Vec<u8>> = Arc::new(
            b"{\"x\":["
                .iter()
                .chain(b"{},".iter().cycle().take(LARGE_BODY_BYTES - 8))
                .copied()
                .collect(),
        );
        let mut held: Held = Vec::new();
        for _ in 0..LARGE_BODIES {
            let Some(mut stream) = self.begin_post(token, body.len()).await else {
                continue;
            };
            let body = body.clone();
            let task = tokio::spawn(async move {
                let _ = stream.write_all(&body).await;
                std::future::pending::<()>().await;
            });
            held.push(Box::new(AbortOnDrop(task.abort_handle())));
        }
        held
    }

    async fn unread(&self) -> Held {
        let body = json!({"collection": {"description": "x".repeat(UNREAD_RESPONSE_BYTES)},
                          "select": ["uuid"]});
        let made = self.admin.post("collections", body).await.ok();
        let head = format!(
            "GET /arvados/v1/collections/{} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
            made["uuid"].as_str().expect("a uuid"),
            self.admin.token
        );
        let mut held: Held = Vec::new();
        for _ in 0..UNREAD_RESPONSES {
            if let Some(mut stream) = connect(&self.tls, &self.host).await
                && stream.write_all(head.as_bytes()).await.is_ok()
            {
                held.push(Box::new(stream));
            }
        }
        held
    }

    async fn begin_post(&self, token: &str, size: usize) -> Option<TlsStream<TcpStream>> {
        let mut stream = connect(&self.tls, &self.host).await?;
        let head = format!(
            "POST /arvados/v1/collections HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
             Authorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.ok()?;
        Some(stream)
    }
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn keep<T: Send + 'static>(
    held: &mut Held,
    opened: Option<Result<Option<T>, tokio::task::JoinError>>,
) {
    if let Some(Ok(Some(stream))) = opened {
        if held.len() >= MAX_HELD {
            held.remove(0);
        }
        held.push(Box::new(stream));
    }
}

/// Times of a client that reads and writes on a connection of its own, and on new ones.
async fn request_until(api: Api, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let mut times = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let began = Instant::now();
        let is_ok = match times.len() % 2 {
            0 => api.get("users/current").await.status == 200,
            _ => {
                let body = json!({"collection": {"name": "flood"}, "ensure_unique_name": true});
                api.post("collections", body).await.status == 200
            }
        };
        assert!(is_ok, "a request of the client failed");
        times.push(began.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    times
}

async fn connect(tls: &TlsConnector, host: &str) -> Option<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(host).await.ok()?;
    let name = ServerName::try_from("127.0.0.1").ok()?;
    tls.connect(name, stream).await.ok()
}

fn connector(certificate: &str) -> TlsConnector {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    let certificate = CertificateDer::from_pem_file(certificate).expect("a certificate");
    roots.add(certificate).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("TLS versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}
