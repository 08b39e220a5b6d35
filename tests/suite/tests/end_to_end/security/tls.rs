//! Servers that are not the one a token is meant for.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::PrivateKeyDer;
use serde_json::Value;

use crate::secrets::secret;
use crate::up::Up;
use suite_tests::STEP_TIMEOUT;
use suite_tests::program::{Program, binary};
use suite_tests::stack::wait_for;

const ASK_WITH_SDK: &str = "import arvados; arvados.api('v1', num_retries=0, cache=False)";
const ASK_WITH_CURL: &str = "curl -sSf -H \"Authorization: Bearer $ARVADOS_API_TOKEN\" \
    https://$ARVADOS_API_HOST/arvados/v1/users/current";

/// A server on the port of another one, which records all that it is sent.
struct FalseServer {
    connections: Arc<AtomicUsize>,
    received: Arc<Mutex<Vec<u8>>>,
    stop: Arc<AtomicBool>,
    address: std::net::SocketAddr,
    task: Option<JoinHandle<()>>,
}

impl FalseServer {
    /// With a certificate of its own, or without TLS.
    fn start(address: &str, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        // The kernel may hold the port for a moment after the death of its owner.
        let listener = wait_for("the port", STEP_TIMEOUT, || TcpListener::bind(address).ok());
        let mut server = Self {
            connections: Arc::default(),
            received: Arc::default(),
            stop: Arc::default(),
            address: listener.local_addr().unwrap(),
            task: None,
        };
        let (connections, received) = (server.connections.clone(), server.received.clone());
        let stop = server.stop.clone();
        server.task = Some(std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                connections.fetch_add(1, Ordering::SeqCst);
                let (tls, received) = (tls.clone(), received.clone());
                std::thread::spawn(move || record(stream, tls, &received));
            }
        }));
        server
    }

    /// How often it was reached, and what it got.
    fn end(mut self) -> (usize, Vec<u8>) {
        self.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        self.task.take().unwrap().join().unwrap();
        let received = self.received.lock().unwrap().clone();
        (self.connections.load(Ordering::SeqCst), received)
    }
}

/// Records one connection: what was sent inside TLS, or the bytes of the connection. Answers
/// something to each piece, so that no client waits.
fn record(stream: TcpStream, tls: Option<Arc<rustls::ServerConfig>>, received: &Mutex<Vec<u8>>) {
    let mut stream: Box<dyn ReadWrite> = match tls {
        None => Box::new(stream),
        Some(config) => {
            let session = rustls::ServerConnection::new(config).unwrap();
            Box::new(rustls::StreamOwned::new(session, stream))
        }
    };
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = stream.read(&mut piece) {
        received.lock().unwrap().extend(&piece[..length]);
        if stream
            .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            .is_err()
        {
            return;
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// TLS with a certificate for the right address, made by somebody else.
fn other_certificate() -> Arc<rustls::ServerConfig> {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key);
    Arc::new(config.unwrap())
}

fn signal(pid: u64, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// `dispatch up` lets its programs be started again, even if the test fails.
struct Stopped(u64);

impl Drop for Stopped {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// The programs of a user: by the state directory, and by the variables that `dispatch up` printed.
fn clients(up: &Up) -> [(&'static str, Command); 4] {
    let environment = up.environment();
    let mut by_state_dir = up.command(binary("dispatch"));
    by_state_dir.args(["list", "--state-dir", "state"]);
    let with = |mut command: Command, args: &[&str]| {
        command.args(args).envs(environment.clone());
        command
    };
    [
        ("dispatch --state-dir", by_state_dir),
        ("dispatch", with(up.command(binary("dispatch")), &["list"])),
        ("curl", with(up.command("sh"), &["-c", ASK_WITH_CURL])),
        (
            "the Python SDK",
            with(
                up.command(suite_tests::python_clients().join("python")),
                &["-c", ASK_WITH_SDK],
            ),
        ),
    ]
}

/// Runs all clients at once, as some try for seconds.
fn outputs(up: &Up) -> Vec<(&'static str, Output)> {
    let running: Vec<_> = clients(up)
        .into_iter()
        .map(|(name, mut command)| {
            let task = std::thread::spawn(move || command.output().unwrap());
            (name, task)
        })
        .collect();
    let end = |(name, task): (_, JoinHandle<Output>)| (name, task.join().unwrap());
    running.into_iter().map(end).collect()
}

#[test]
fn who_takes_the_port_of_a_dead_server_gets_no_token() {
    let up = Up::start();
    let environment = up.environment();
    let (host, token) = (&environment[0].1, &environment[2].1);
    for (name, output) in outputs(&up) {
        assert!(output.status.success(), "{name}: {output:?}");
    }
    // Nobody starts the server again while its port is taken.
    let _stopped = {
        let pid = u64::from(up.pid());
        signal(pid, Signal::STOP);
        Stopped(pid)
    };
    for child in up.record()["children"].as_array().unwrap() {
        signal(child["pid"].as_u64().unwrap(), Signal::KILL);
    }
    // What each client says of a certificate, and of a server without TLS.
    let words = [
        ("dispatch --state-dir", ["certificate", "corrupt"]),
        ("dispatch", ["certificate", "corrupt"]),
        ("curl", ["certificate", "SSL"]),
        ("the Python SDK", ["CERTIFICATE_VERIFY_FAILED", "SSL"]),
    ];
    for (kind, tls) in [Some(other_certificate()), None].into_iter().enumerate() {
        let false_server = FalseServer::start(host, tls);
        for ((name, output), (_, words)) in outputs(&up).into_iter().zip(words) {
            assert!(!output.status.success(), "{name}: {output:?}");
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains(words[kind]), "{name}: {said}");
        }
        let (connections, received) = false_server.end();
        assert!(connections >= words.len(), "reached {connections} times");
        let received = String::from_utf8_lossy(&received);
        let is_sent = received.contains(secret(token).as_str()) || received.contains("Bearer");
        assert!(!is_sent, "{received}");
    }
}

#[test]
fn a_client_that_trusts_the_first_certificate_goes_on_at_a_new_address() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let trusted = dir.path().join("copy.pem");
    for (start, address) in [("first", "127.0.0.1:0"), ("second", "127.0.0.2:0")] {
        let args = ["--state-dir", state.to_str().unwrap(), "--listen", address];
        let log = dir.path().join(start);
        let mut server = Program::new("dispatch-api", &log, &args, &[]);
        server.start();
        let ready = wait_for("dispatch-api", STEP_TIMEOUT, || {
            serde_json::from_str::<Value>(server.stdout_text().lines().next()?).ok()
        });
        if !trusted.exists() {
            std::fs::copy(ready["certificate"].as_str().unwrap(), &trusted).unwrap();
        }
        let url = format!(
            "https://{}/arvados/v1/config",
            ready["host"].as_str().unwrap()
        );
        // A client with OpenSSL, which wants more of a certificate than ours.
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "--cacert", trusted.to_str().unwrap(), &url]);
        let output = curl.output().unwrap();
        assert!(output.status.success(), "{address}: {output:?}");
        assert!(server.terminate(STEP_TIMEOUT).success());
    }
}
