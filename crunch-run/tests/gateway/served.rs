//! What a gateway serves, to whom, and how the tunnel behaves: without any container.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use arvados_client::{Client, ContainerUuid, Endpoint, Token};
use crunch_run::gateway::secret::GatewaySecret;
use crunch_run::gateway::{Gateway, GatewayParts};
use crunch_run::logs::{JOURNAL, Journal, LogDir};
use tempfile::TempDir;
use tokio::io::AsyncWriteExt;
use tokio_rustls::client::TlsStream;
use tokio_util::compat::Compat;

use crate::controller::{Controller, mac};

const SECRET: &str = "00112233445566778899aabbccddeeff";

/// A gateway with a log, and what it is asked by.
struct Scene {
    controller: Controller,
    gateway: Gateway,
    uuid: ContainerUuid,
    logs: PathBuf,
    dir: TempDir,
}

impl Scene {
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
        let journal = Journal::new(logs.open(JOURNAL).unwrap(), uuid.clone());
        let gateway = Gateway::start(GatewayParts {
            client: Client::new(endpoint).unwrap(),
            uuid: uuid.clone(),
            secret: GatewaySecret::new(given).unwrap(),
            logs,
            journal,
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
        let scene = Self::with_secret(SECRET).await;
        scene.controller.until_tunnels(1).await;
        scene
    }

    async fn ask(
        &self,
        method: &str,
        path: &str,
        more: &[(&str, &str)],
    ) -> crate::controller::Answer {
        let uuid = self.uuid.as_str();
        self.controller.ask(uuid, method, path, more).await
    }
}

#[tokio::test]
async fn a_log_file_is_read_whole_and_in_parts_while_it_grows() {
    let scene = Scene::new().await;
    let whole = scene.ask("GET", "/stdout.txt", &[]).await;
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
        let part = scene.ask("GET", "/stdout.txt", &[("range", range)]).await;
        assert_eq!(part.status, status, "{range}");
        assert_eq!(part.header("content-range"), Some(content_range), "{range}");
        assert_eq!(part.body, body, "{range}");
    }

    let mut file = fs::File::options()
        .append(true)
        .open(scene.logs.join("stdout.txt"))
        .unwrap();
    std::io::Write::write_all(&mut file, b"again\n").unwrap();
    let more = scene
        .ask("GET", "/stdout.txt", &[("range", "bytes=12-")])
        .await;
    assert_eq!((more.status, more.body.as_str()), (206, "again\n"));
    assert_eq!(more.header("content-range"), Some("bytes 12-17/18"));

    let head = scene.ask("HEAD", "/stdout.txt", &[]).await;
    assert_eq!(head.header("content-length"), Some("18"));
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    let missing = scene
        .ask("GET", "/stderr.txt", &[("range", "bytes=-0")])
        .await;
    assert_eq!(missing.status, 404);
}

#[tokio::test]
async fn the_directory_says_that_it_is_webdav_and_lists_what_is_there() {
    let scene = Scene::new().await;
    let abilities = scene.ask("OPTIONS", "", &[]).await;
    assert_eq!(abilities.header("dav"), Some("1, 2"));
    assert_eq!(abilities.status, 200);

    let listing = scene.ask("PROPFIND", "", &[("depth", "1")]).await;
    assert_eq!(listing.status, 207);
    let base = format!("/arvados/v1/container_requests/CR/log/{}", scene.uuid);
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
    let one = scene
        .ask("PROPFIND", "/stdout.txt", &[("depth", "0")])
        .await;
    assert_eq!(one.body.matches("<D:response>").count(), 1);
    let none = scene.ask("PROPFIND", "/stderr.txt", &[]).await;
    assert_eq!(none.status, 404);
}

#[tokio::test]
async fn only_the_server_that_knows_the_secret_gets_the_log_and_only_to_read() {
    let scene = Scene::new().await;
    let other = ContainerUuid::generate("zzzzz");
    let wrong = mac("another secret", b"?");
    for (method, path, more, status, words) in [
        (
            "GET",
            "/stdout.txt",
            ("x-arvados-container-gateway-uuid", other.as_str()),
            502,
            scene.uuid.as_str(),
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
        let answer = scene.ask(method, path, &[more]).await;
        assert_eq!(answer.status, status, "{method} {path} {more:?}");
        assert!(answer.body.contains(words), "{answer:?}");
        assert!(!answer.body.contains("hello"), "{answer:?}");
    }
    let log = fs::read_to_string(scene.logs.join("stdout.txt")).unwrap();
    assert_eq!(log, "hello world\n");
}

#[tokio::test]
async fn nothing_but_the_log_is_served() {
    let scene = Scene::new().await;
    let token = scene.dir.path().join("token");
    fs::write(scene.logs.join("other.txt"), "sesame").unwrap();
    symlink(&token, scene.logs.join("stderr.txt")).unwrap();
    symlink(scene.dir.path(), scene.logs.join("result.json")).unwrap();
    fs::create_dir(scene.logs.join("arv-mount.txt")).unwrap();
    let fifo = scene.logs.join("crunchstat.txt");
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
        let answer = scene.ask("GET", path, &[]).await;
        assert_eq!(answer.status, 404, "{path}: {answer:?}");
        assert!(!answer.body.contains("sesame"), "{path}: {answer:?}");
    }
    let listing = scene.ask("PROPFIND", "", &[]).await.body;
    for name in ["other.txt", "stderr.txt", "result.json", "crunchstat.txt"] {
        assert!(!listing.contains(name), "{listing}");
    }
}

#[tokio::test]
async fn a_tunnel_that_is_cut_comes_back_and_its_new_address_is_known() {
    let scene = Scene::new().await;
    let address = scene.gateway.address().await;
    assert_eq!(address.as_deref(), Some("tunnel http://controller-1:8003"));
    scene.controller.cut("http://controller-2:8003");
    scene.controller.until_tunnels(2).await;
    let again = scene.ask("GET", "/stdout.txt", &[]).await;
    assert_eq!(again.body, "hello world\n");
    let address = scene.gateway.address().await;
    assert_eq!(address.as_deref(), Some("tunnel http://controller-2:8003"));
}

#[tokio::test]
async fn a_refused_secret_is_said_once_and_asked_for_again() {
    let scene = Scene::with_secret("wrong").await;
    scene.controller.until_refused(2).await;
    assert_eq!(scene.gateway.address().await, None);
    let story = fs::read_to_string(scene.logs.join(JOURNAL)).unwrap();
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

/// A client that asks for much and reads nothing.
async fn ask_and_wait(scene: &Scene) -> TlsStream<Compat<yamux::Stream>> {
    let (mut stream, certificate) = scene.controller.connect().await;
    let request = format!(
        "GET /stdout.txt HTTP/1.1\r\nHost: x\r\nX-Arvados-Container-Gateway-Uuid: {}\r\n\
         X-Arvados-Authorization: {}\r\nX-Webdav-Source: /log\r\n\r\n",
        scene.uuid,
        mac(SECRET, &certificate)
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_read_hold_little_memory() {
    let scene = Scene::new().await;
    let file = fs::File::options()
        .write(true)
        .open(scene.logs.join("stdout.txt"))
        .unwrap();
    file.set_len(1 << 30).unwrap();
    let before = memory();
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(ask_and_wait(&scene).await);
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let more = memory().saturating_sub(before);
    assert!(
        more < 64 << 20,
        "{more} bytes for {} clients",
        clients.len()
    );
    // And others are answered beside them.
    let range = scene
        .ask("GET", "/stdout.txt", &[("range", "bytes=0-4")])
        .await;
    assert_eq!(range.body, "hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_requests_than_allowed_are_closed_and_the_tunnel_stays() {
    let scene = Scene::new().await;
    fs::File::options()
        .write(true)
        .open(scene.logs.join("stdout.txt"))
        .and_then(|file| file.set_len(1 << 30))
        .unwrap();
    let mut clients = Vec::new();
    for _ in 0..32 {
        clients.push(ask_and_wait(&scene).await);
    }
    let refused = scene.controller.try_connect().await;
    assert!(refused.is_err(), "a 33rd was served");
    clients.clear();
    // The slots are free once the gateway has seen the ends.
    for _ in 0..100 {
        if scene.controller.try_connect().await.is_ok() {
            scene.controller.until_tunnels(1).await;
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("no slot is free again");
}
