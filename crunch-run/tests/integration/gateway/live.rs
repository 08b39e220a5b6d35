//! Live logs of real containers: crunch-run, dispatch-api behind the controller, and the record.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use arvados_client::records::Container;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::sleep;

use crate::gateway::controller::Controller;
use crate::run_lab::{Job, World, can_run, file, finish, go_on};

const SECRET: &str = "00112233445566778899aabbccddeeff";

struct Fixture {
    world: World,
    controller: Controller,
    job: Job,
}

impl Fixture {
    async fn new(command: &str) -> Self {
        let world = World::new().await;
        let job = world.lock(&["sh", "-c", command], json!({})).await;
        Self::with(world, job).await
    }

    /// The command goes on when the test has seen its output live.
    async fn held() -> Self {
        let world = World::new().await;
        let job = world.lock_held("env; echo live", "true").await;
        Self::with(world, job).await
    }

    async fn with(world: World, job: Job) -> Self {
        let environment = world.environment();
        let behind = environment["ARVADOS_API_HOST"].as_str();
        let certificate = Path::new(&environment["SSL_CERT_FILE"]);
        let controller = Controller::start(world.dir(), SECRET, Some((behind, certificate))).await;
        Self {
            world,
            controller,
            job,
        }
    }

    fn program(&self) -> Command {
        let mut program = self.world.program(&self.job, &[]);
        program
            .env("ARVADOS_API_HOST", &self.controller.host)
            .env("SSL_CERT_FILE", &self.controller.certificates);
        program
    }

    async fn live(&self, name: &str) -> String {
        self.controller.read(self.job.uuid.as_str(), name).await
    }

    async fn until_address(&self, address: &str) -> Container {
        let what = format!("its gateway_address is {address:?}");
        let is_there = |record: &Container| {
            let extra = serde_json::to_value(record).unwrap();
            extra["gateway_address"] == *address
        };
        self.world.until(&self.job, &what, is_there).await
    }

    /// The log can be read while the command runs, and the record names the gateway.
    async fn serves(&self, child: Child) {
        self.world.until_logged(&self.job, "live").await;
        self.controller.until_tunnels(1).await;
        assert!(self.live("stdout.txt").await.contains("live"));
        self.until_address("tunnel http://controller-1:8003").await;
        go_on(&self.job);
        self.completes(child).await;
    }

    /// Waits until the command has ended by itself, and the record is Complete.
    async fn completes(&self, child: Child) -> Vec<(String, String)> {
        let finished = finish(child).await;
        assert_eq!(finished.code, 0, "{}", finished.output);
        assert!(!finished.output.contains(SECRET), "{}", finished.output);
        let record = self.world.record(&self.job).await;
        assert_eq!(record.state.to_string(), "Complete");
        let log = self.world.log(&self.job).await;
        assert!(log.iter().all(|(_, text)| !text.contains(SECRET)));
        log
    }
}

/// The environment that the kernel shows of the process.
fn environment(child: &Child) -> String {
    let path = format!("/proc/{}/environ", child.id().unwrap());
    String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
}

#[tokio::test]
async fn what_a_container_prints_is_read_within_two_seconds_with_a_secret_of_the_environment() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::held().await;
    let child = fixture
        .program()
        .env("GatewayAuthSecret", SECRET)
        .spawn()
        .unwrap();
    fixture.world.until_logged(&fixture.job, "live").await;
    let printed = Instant::now();
    while !fixture.live("stdout.txt").await.contains("live") {
        assert!(printed.elapsed() < Duration::from_secs(2));
        sleep(Duration::from_millis(20)).await;
    }
    assert!(!environment(&child).contains("GatewayAuthSecret"));
    assert!(
        fixture
            .live("crunch-run.txt")
            .await
            .contains("Starting container")
    );
    fixture
        .until_address("tunnel http://controller-1:8003")
        .await;

    fixture.controller.cut("http://controller-2:8003");
    fixture
        .until_address("tunnel http://controller-2:8003")
        .await;
    go_on(&fixture.job);
    let log = fixture.completes(child).await;
    assert!(file(&log, "stdout.txt").contains("live"));
}

#[tokio::test]
async fn the_secret_of_a_token_file_serves_and_the_token_is_its_first_line() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::held().await;
    let path = fixture.job.dir.join("token");
    let text = format!(
        "{}\nGatewayAuthSecret={SECRET}\n",
        fixture.job.token.expose()
    );
    std::fs::write(&path, text).unwrap();
    let child = fixture.program().spawn().unwrap();
    fixture.serves(child).await;
}

#[tokio::test]
async fn a_secret_from_stdin_goes_into_the_token_file_and_into_no_environment() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::held().await;
    let config = json!({"Env": {
        "ARVADOS_API_TOKEN": fixture.job.token.expose(), "GatewayAuthSecret": SECRET,
    }});
    let mut program = fixture.program();
    program.arg("--stdin-config").stdin(Stdio::piped());
    let mut child = program.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(config.to_string().as_bytes())
        .await
        .unwrap();
    drop(stdin);
    fixture.controller.until_tunnels(1).await;
    assert!(!environment(&child).contains(SECRET));
    fixture.serves(child).await;
}

#[tokio::test]
async fn a_refused_secret_is_told_once_and_the_container_completes() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::held().await;
    let mut program = fixture.program();
    let child = program.env("GatewayAuthSecret", "wrong").spawn().unwrap();
    let (world, refused) = (&fixture.world, "refused the gateway secret");
    world
        .until_saved_in(&fixture.job, "crunch-run.txt", refused)
        .await;
    world.until_logged(&fixture.job, "live").await;
    go_on(&fixture.job);
    let log = fixture.completes(child).await;
    let story = file(&log, "crunch-run.txt");
    assert_eq!(story.matches(refused).count(), 1, "{story}");
    let record = serde_json::to_value(fixture.world.record(&fixture.job).await).unwrap();
    assert!(record["gateway_address"].is_null(), "{record}");
}

#[tokio::test]
async fn a_gateway_that_is_off_makes_no_tunnel() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::new("echo live").await;
    let mut program = fixture.program();
    program.arg("--container-gateway=off");
    let child = program.env("GatewayAuthSecret", "wrong").spawn().unwrap();
    let log = fixture.completes(child).await;
    assert!(!file(&log, "crunch-run.txt").contains("ive logs"));
}

#[tokio::test]
async fn a_server_that_takes_any_secret_is_given_one() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::held().await;
    fixture.controller.take_any_secret();
    let child = fixture.program().spawn().unwrap();
    fixture.serves(child).await;
}

#[tokio::test]
async fn without_a_secret_arvados_is_not_asked_and_the_log_says_why() {
    if !can_run() {
        return;
    }
    let fixture = Fixture::new("echo live").await;
    let child = fixture.program().spawn().unwrap();
    let log = fixture.completes(child).await;
    let story = file(&log, "crunch-run.txt");
    let count = story.matches("gave no gateway secret").count();
    assert_eq!(count, 1, "{story}");
    assert_eq!(fixture.controller.tunnels(), 0);
}
