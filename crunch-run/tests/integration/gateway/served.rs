//! What a gateway serves to whom, and how the tunnel behaves; without containers.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use arvados_client::{Client, ContainerUuid, Endpoint, Token};
use crunch_run::gateway::secret::GatewaySecret;
use crunch_run::gateway::{Gateway, GatewayParts};
use crunch_run::logs::{LogDir, RUN_LOG, RunLog};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio_rustls::client::TlsStream;
use tokio_util::compat::Compat;

use crate::gateway::controller::{Controller, mac};

const SECRET: &str = "00112233445566778899aabbccddeeff";

/// A gateway with a log, and the controller that sends requests.
struct Fixture {
    controller: Controller,
    gateway: Gateway,
    uuid: ContainerUuid,
    logs: PathBuf,
    dir: TempDir,
}

impl Fixture {
    async fn with_secret(given: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let controller = Controller::start(dir.path(), SECRET, None).await;
        let mut endpoint = Endpoint::new(&controller.host, Token::new("token")).unwrap();
        endpoint.ca_file = Some(controller.certificates.clone());
        let uuid = ContainerUuid::generate("zzzzz");
        fs::write(dir.path().join("token"), "sesame").unwrap();
        let path = dir.path().join("log");
        let logs = LogDir::create(&path).unwrap();
        logs.write("stdout.txt", b"hello world\n").unwrap();
        let run_log = RunLog::new(logs.open(RUN_LOG).unwrap(), uuid.clone());
        let gateway = Gateway::start(GatewayParts {
            client: Client::new(endpoint).unwrap(),
            uuid: uuid.clone(),
            secret: GatewaySecret::new(given).unwrap(),
            logs,
            run_log,
        });
        Self {
            controller,
            gateway: gateway.unwrap(),
            uuid,
            logs: path,
            dir,
        }
    }

    async fn new() -> Self {
        let fixture = Self::with_secret(SECRET).await;
        fixture.controller.until_tunnels(1).await;
        fixture
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
    ) -> crate::gateway::controller::Reply {
        let uuid = self.uuid.as_str();
        self.controller.ask(uuid, method, path, more).await
    }
}

#[tokio::test]
async fn a_log_file_is_read_whole_and_in_parts_while_it_grows() {
    let fixture = Fixture::new().await;
    let whole = fixture.ask("GET", "/stdout.txt", &[]).await;
    assert_eq!((whole.status, whole.body.as_str()), (200, "hello world\n"));
    assert_eq!(
        whole.header("content-type"),
        Some("text/plain; charset=utf-8")
    );

    #[rustfmt::skip]
    let parts = [
        ("bytes=-6", 206, "bytes 6-11/12", "world\n"),
        ("bytes=-0", 206, "bytes 12-11/12", ""),
        ("bytes=6-", 206, "bytes 6-11/12", "world\n"),
        ("bytes=0-4", 206, "bytes 0-4/12", "hello"),
        ("bytes=12-", 416, "bytes */12", ""),
    ];
    for (range, status, content_range, body) in parts {
        let part = fixture.ask("GET", "/stdout.txt", &[("range", range)]).await;
        assert_eq!(part.status, status, "{range}");
        assert_eq!(part.header("content-range"), Some(content_range), "{range}");
        assert_eq!(part.body, body, "{range}");
    }

    let mut file = fs::File::options()
        .append(true)
        .open(fixture.logs.join("stdout.txt"))
        .unwrap();
    std::io::Write::write_all(&mut file, b"again\n").unwrap();
    let more = fixture
        .ask("GET", "/stdout.txt", &[("range", "bytes=12-")])
        .await;
    assert_eq!((more.status, more.body.as_str()), (206, "again\n"));
    assert_eq!(more.header("content-range"), Some("bytes 12-17/18"));

    let head = fixture.ask("HEAD", "/stdout.txt", &[]).await;
    assert_eq!(head.header("content-length"), Some("18"));
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let missing = fixture
        .ask("GET", "/stderr.txt", &[("range", "bytes=-0")])
        .await;
    assert_eq!(missing.status, 404);
}

#[tokio::test]
async fn the_directory_says_that_it_is_webdav_and_lists_what_is_there() {
    let fixture = Fixture::new().await;
    let abilities = fixture.ask("OPTIONS", "", &[]).await;
    assert_eq!(abilities.header("dav"), Some("1, 2"));
    assert_eq!(abilities.status, 200);

    let listing = fixture.ask("PROPFIND", "", &[("depth", "1")]).await;
    assert_eq!(listing.status, 207);
    let base = format!("/arvados/v1/container_requests/CR/log/{}", fixture.uuid);
    for part in [
        format!("<D:response><D:href>{base}/</D:href>"),
        format!("<D:href>{base}/stdout.txt</D:href>"),
        "<D:displayname>stdout.txt</D:displayname>".to_owned(),
        "<D:getcontentlength>12</D:getcontentlength>".to_owned(),
        format!("<D:href>{base}/crunch-run.txt</D:href>"),
    ] {
        assert!(listing.body.contains(&part), "{part} in {}", listing.body);
    }
    assert!(!listing.body.contains("stderr.txt"), "{}", listing.body);
    let one = fixture
        .ask("PROPFIND", "/stdout.txt", &[("depth", "0")])
        .await;
    assert_eq!(one.body.matches("<D:response>").count(), 1);
    let none = fixture.ask("PROPFIND", "/stderr.txt", &[]).await;
    assert_eq!(none.status, 404);
}

#[tokio::test]
async fn only_the_server_that_knows_the_secret_gets_the_log_and_only_to_read() {
    let fixture = Fixture::new().await;
    let other = ContainerUuid::generate("zzzzz");
    let wrong = mac("another secret", b"?");
    for (method, path, more, status, words) in [
        (
            "GET",
            "/stdout.txt",
            ("x-arvados-container-gateway-uuid", other.as_str()),
            502,
            fixture.uuid.as_str(),
        ),
        (
            "GET",
            "/stdout.txt",
            ("x-arvados-authorization", wrong.as_str()),
            401,
            "X-Arvados-Authorization",
        ),
        ("PUT", "/stdout.txt", ("depth", "0"), 405, "read"),
        ("DELETE", "/stdout.txt", ("depth", "0"), 405, "read"),
        ("POST", "/ssh", ("upgrade", "ssh"), 501, "shell"),
        (
            "GET",
            "/",
            ("x-arvados-container-target-port", "80"),
            501,
            "ports",
        ),
        (
            "GET",
            "/stdout.txt",
            ("x-webdav-source", "/output"),
            404,
            "log",
        ),
    ] {
        let answer = fixture.ask(method, path, &[more]).await;
        assert_eq!(answer.status, status, "{method} {path} {more:?}");
        assert!(answer.body.contains(words), "{answer:?}");
        assert!(!answer.body.contains("hello"), "{answer:?}");
    }
    let log = fs::read_to_string(fixture.logs.join("stdout.txt")).unwrap();
    assert_eq!(log, "hello world\n");
}

#[tokio::test]
async fn nothing_but_the_log_is_served() {
    let fixture = Fixture::new().await;
    let token = fixture.dir.path().join("token");
    fs::write(fixture.logs.join("other.txt"), "sesame").unwrap();
    symlink(&token, fixture.logs.join("stderr.txt")).unwrap();
    symlink(fixture.dir.path(), fixture.logs.join("result.json")).unwrap();
    fs::create_dir(fixture.logs.join("arv-mount.txt")).unwrap();
    let fifo = fixture.logs.join("crunchstat.txt");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RWXU).unwrap();
    for path in [
        "/../token",
        "/%2e%2e/token",
        "/%2e%2e%2ftoken",
        "/..%2ftoken",
        "//token",
        "/other.txt",
        "/stderr.txt",
        "/result.json",
        "/result.json/token",
        "/arv-mount.txt",
        "/crunchstat.txt",
    ] {
        let answer = fixture.ask("GET", path, &[]).await;
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        assert!(!answer.body.contains("sesame"), "{path}: {answer:?}");
    }
    let listing = fixture.ask("PROPFIND", "", &[]).await.body;
    for name in ["other.txt", "stderr.txt", "result.json", "crunchstat.txt"] {
        assert!(!listing.contains(name), "{listing}");
    }
}

#[tokio::test]
async fn a_tunnel_that_is_cut_comes_back_and_its_new_address_is_known() {
    let fixture = Fixture::new().await;
    let address = fixture.gateway.address().await;
    assert_eq!(address.as_deref(), Some("tunnel http://controller-1:8003"));
    fixture.controller.cut("http://controller-2:8003");
    fixture.controller.until_tunnels(2).await;
    let again = fixture.ask("GET", "/stdout.txt", &[]).await;
    assert_eq!(again.body, "hello world\n");
    let address = fixture.gateway.address().await;
    assert_eq!(address.as_deref(), Some("tunnel http://controller-2:8003"));
}

#[tokio::test]
async fn a_refused_secret_is_said_once_and_asked_for_again() {
    let fixture = Fixture::with_secret("wrong").await;
    fixture.controller.until_refused(2).await;
    assert_eq!(fixture.gateway.address().await, None);
    let story = fs::read_to_string(fixture.logs.join(RUN_LOG)).unwrap();
    assert_eq!(
        story.matches("refused the gateway secret").count(),
        1,
        "{story}"
    );
    assert!(story.contains("authentication error"), "{story}");
    assert!(!story.contains("wrong"), "{story}");
}

/// Resident memory of this process.
fn memory() -> u64 {
    let status = procfs::process::Process::myself()
        .unwrap()
        .status()
        .unwrap();
    status.vmrss.unwrap() << 10
}

/// A client that requests a large answer and reads nothing.
async fn ask_and_wait(fixture: &Fixture) -> TlsStream<Compat<yamux::Stream>> {
    let (mut stream, certificate) = fixture.controller.connect().await;
    let request = format!(
        "GET /stdout.txt HTTP/1.1\r\nHost: x\r\nX-Arvados-Container-Gateway-Uuid: {}\r\n\
         X-Arvados-Authorization: {}\r\nX-Webdav-Source: /log\r\n\r\n",
        fixture.uuid,
        mac(SECRET, &certificate)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_hold_little_memory() {
    let fixture = Fixture::new().await;
    let file = fs::File::options()
        .write(true)
        .open(fixture.logs.join("stdout.txt"))
        .unwrap();
    file.set_len(1 << 30).unwrap();
    let before = memory();
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(ask_and_wait(&fixture).await);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let more = memory().saturating_sub(before);
    assert!(
        more < 64 << 20,
        "{more} bytes for {} clients",
        clients.len()
    );
    // Other clients get answers meanwhile.
    let range = fixture
        .ask("GET", "/stdout.txt", &[("range", "bytes=0-4")])
        .await;
    assert_eq!(range.body, "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_requests_than_allowed_are_closed_and_the_tunnel_stays() {
    let fixture = Fixture::new().await;
    fs::File::options()
        .write(true)
        .open(fixture.logs.join("stdout.txt"))
        .and_then(|file| file.set_len(1 << 30))
        .unwrap();
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(ask_and_wait(&fixture).await);
    }
    let refused = fixture.controller.try_connect().await;
    assert!(refused.is_err(), "a 33rd was served");
    clients.clear();
    // The slots are free once the gateway has noticed that the streams ended.
    for _ in 0..1200 {
        if fixture.controller.try_connect().await.is_ok() {
            fixture.controller.until_tunnels(1).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no slot is free again");
}
