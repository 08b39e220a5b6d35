//! A server, an image in it, and the real program run on one container in three lines. Needs root
//! and busybox.

// Benchmarks use a part of this.
#![allow(dead_code)]

mod files;
pub mod script;
pub mod server;
pub mod wrapper;

#[allow(unused_imports, reason = "benchmarks read no files of a collection")]
pub use files::{file, lines};

use std::fs;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use arvados_client::api::NewToken;
use arvados_client::keep::{CollectionWriter, KeepClient};
use arvados_client::records::{Container, ContainerState};
use arvados_client::{
    Client, ContainerRequestUuid, ContainerUuid, Endpoint, Pdh, Token, TokenUuid, scopes,
};
use dispatch_api::Server;
use serde_json::{Value, json};
use suite_tests::proxy::Proxy;
use tempfile::TempDir;
use tokio::net::TcpSocket;
use tokio::process::{Child, Command};

/// Whether real containers can be run here. Where the tests must not be skipped, they fail instead.
pub fn can_run() -> bool {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .iter()
        .any(|path| Path::new(path).exists());
    let missing = match (rustix::process::geteuid().is_root(), busybox) {
        (true, true) => return true,
        (false, _) => "root",
        (true, false) => "busybox-static",
    };
    suite_tests::skip(format_args!("this test needs {missing}"));
    false
}

/// As `can_run`, for engines that are separate programs.
pub fn can_run_with(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&path).any(|dir| dir.join(program).exists()) {
        return can_run();
    }
    suite_tests::skip(format_args!(
        "this test needs {program} (contrib/install-deps labs)"
    ));
    false
}

pub struct World {
    server: Option<Server>,
    pub user: Client,
    pub dispatch: Client,
    pub keep: KeepClient,
    pub image: String,
    ready: Value,
    dir: TempDir,
    /// Keeps the server's port reserved while the server is down.
    port: TcpSocket,
}

/// A locked container and the directory its crunch-run is to use.
pub struct Job {
    pub request: ContainerRequestUuid,
    pub uuid: ContainerUuid,
    pub token: Token,
    pub attempt: TokenUuid,
    pub dir: PathBuf,
}

/// A crunch-run that has ended.
pub struct Finished {
    pub code: i32,
    pub output: String,
}

/// Unpacked once for all tests.
fn cache() -> &'static Path {
    static CACHE: OnceLock<PathBuf> = OnceLock::new();
    CACHE.get_or_init(|| {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("run-cache");
        fs::create_dir_all(&dir).unwrap();
        dir
    })
}

impl World {
    pub async fn new() -> Self {
        Self::with_archive(crate::engine_lab::busybox_archive(
            json!({"Env": ["PATH=/bin"], "Cmd": ["sh"]}),
        ))
        .await
    }

    pub async fn with_archive((archive, id): (Vec<u8>, String)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let port = server::port();
        let server = server::start(dir.path().join("state"), &port).await;
        let ready = serde_json::to_value(server.ready()).unwrap();
        let user = client(&ready, "user");
        let keep = user.keep(user.keep_options().await.unwrap()).await.unwrap();
        let mut world = Self {
            server: Some(server),
            dispatch: client(&ready, "dispatch"),
            user,
            keep,
            image: String::new(),
            ready,
            dir,
            port,
        };
        world.image = world
            .collection(&[(&format!("{id}.tar"), &archive)])
            .await
            .to_string();
        world
    }

    /// A directory for what a test needs.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Kills the server, as a power failure would.
    pub async fn stop_server(&mut self) {
        self.server.take().unwrap().stop().await;
    }

    /// Starts the same server at the same address.
    pub async fn start_server(&mut self) {
        self.server = Some(server::start(self.state(), &self.port).await);
    }

    /// Something that spoils requests, between the server and who is sent there.
    pub fn proxy(&self) -> Proxy {
        Proxy::start(&self.ready)
    }

    /// As `program`, through the proxy.
    pub fn program_by(&self, proxy: &Proxy, job: &Job, flags: &[&str]) -> Command {
        let ready = proxy.ready(&self.ready);
        let mut program = self.program(job, flags);
        program.env("ARVADOS_API_HOST", ready["host"].as_str().unwrap());
        program
    }

    /// Variables with the server's address for a program.
    pub fn environment(&self) -> std::collections::BTreeMap<String, String> {
        let text = |key: &str| self.ready[key].as_str().unwrap().to_owned();
        [
            ("ARVADOS_API_HOST", "host"),
            ("SSL_CERT_FILE", "certificate"),
        ]
        .map(|(name, key)| (name.to_owned(), text(key)))
        .into()
    }

    /// The server's directory.
    pub fn state(&self) -> PathBuf {
        self.dir.path().join("state")
    }

    /// A new collection with these files.
    pub async fn collection(&self, files: &[(&str, &[u8])]) -> Pdh {
        let mut writer = CollectionWriter::new(self.keep.clone());
        for (path, content) in files {
            writer.start_file(path).unwrap();
            writer.write(content).await.unwrap();
            writer.finish_file();
        }
        let manifest = writer.finish().await.unwrap().to_string();
        let made = self
            .user
            .create_collection(json!({"manifest_text": manifest}))
            .await
            .unwrap();
        made.portable_data_hash.unwrap()
    }

    /// A Queued container; `more` is laid over an ordinary request.
    pub async fn request(
        &self,
        command: &[&str],
        more: Value,
    ) -> (ContainerRequestUuid, ContainerUuid) {
        let mut request = json!({
            "name": "test", "state": "Committed", "priority": 500, "use_existing": false,
            "command": command, "container_image": self.image, "output_path": "/out", "cwd": ".",
            "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 20}},
            "runtime_constraints": {"vcpus": 1, "ram": 128 << 20}, "container_count_max": 1,
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            request[name] = value.clone();
        }
        let made = self.user.create_container_request(request).await.unwrap();
        (made.uuid, made.container_uuid.unwrap())
    }

    /// Acts as a dispatcher: mints an attempt token, locks, and makes a directory with the token.
    pub async fn lock(&self, command: &[&str], more: Value) -> Job {
        let (request, uuid) = self.request(command, more).await;
        self.lock_container(request, uuid).await
    }

    /// A container whose command runs `first`, waits for [`go_on`], and then runs `second`.
    pub async fn lock_held(&self, first: &str, second: &str) -> Job {
        let wait = "until [ -e /go/on ]; do sleep 0.05; done";
        let mounts = json!({"mounts": {
            "/out": {"kind": "tmp", "capacity": 1 << 20},
            "/go": {"kind": "tmp", "capacity": 1 << 20},
        }});
        let script = format!("{first}; {wait}; {second}");
        self.lock(&["sh", "-c", &script], mounts).await
    }

    pub async fn lock_container(&self, request: ContainerRequestUuid, uuid: ContainerUuid) -> Job {
        let minted = self.mint(&uuid).await;
        let token = minted.1;
        self.dispatch
            .with_token(token.clone())
            .lock_container(&uuid, "")
            .await
            .unwrap();
        let dir = self.dir.path().join("jobs").join(uuid.as_str());
        fs::create_dir_all(&dir).unwrap();
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).unwrap();
        write_token(&dir, &token);
        Job {
            request,
            uuid,
            token,
            attempt: minted.0,
            dir,
        }
    }

    pub async fn mint(&self, uuid: &ContainerUuid) -> (TokenUuid, Token) {
        let made = self
            .dispatch
            .create_token(&NewToken {
                scopes: scopes::attempt(uuid, "test"),
                expires_at: jiff::Timestamp::now() + Duration::from_secs(3600),
            })
            .await
            .unwrap();
        (made.uuid.clone(), made.token().unwrap())
    }

    /// The program with the flags that every dispatcher gives; not started yet.
    pub fn program(&self, job: &Job, flags: &[&str]) -> Command {
        let mut program = self.program_with_cache(job, cache());
        program.args(flags);
        program
    }

    pub fn program_with_cache(&self, job: &Job, cache: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crunch-run"));
        command
            .arg("--job-dir")
            .arg(&job.dir)
            .arg("--token-file")
            .arg(job.dir.join("token"))
            .arg("--cache-dir")
            .arg(cache)
            // Free space of the machine under test must not matter.
            .args(["--cache-size=100%", "--cache-free=0"])
            .arg(job.uuid.as_str())
            .env_clear()
            .env("ARVADOS_API_HOST", self.ready["host"].as_str().unwrap())
            .env("SSL_CERT_FILE", self.ready["certificate"].as_str().unwrap())
            .env("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    pub fn start(&self, job: &Job, flags: &[&str]) -> Child {
        self.program(job, flags).spawn().unwrap()
    }

    pub async fn run(&self, job: &Job, flags: &[&str]) -> Finished {
        finish(self.start(job, flags)).await
    }

    /// Locks and runs a container.
    pub async fn run_command(&self, command: &[&str], more: Value) -> (Job, Finished, Container) {
        let job = self.lock(command, more).await;
        let finished = self.run(&job, &[]).await;
        let record = self.record(&job).await;
        (job, finished, record)
    }

    pub async fn record(&self, job: &Job) -> Container {
        self.user.container(&job.uuid).await.unwrap()
    }

    /// Waits for `words` in the saved stdout of the running command, in the job directory.
    pub async fn until_logged(&self, job: &Job, words: &str) {
        self.until_saved_in(job, "stdout.txt", words).await;
    }

    /// Waits for `words` in a log file of the running container, in the job directory.
    pub async fn until_saved_in(&self, job: &Job, file: &str, words: &str) {
        let path = job.dir.join("log").join(file);
        let begun = std::time::Instant::now();
        while !fs::read_to_string(&path).is_ok_and(|text| text.contains(words)) {
            assert!(
                begun.elapsed() < suite_tests::STEP_TIMEOUT,
                "{words:?} is not in {file}"
            );
            tokio::time::sleep(suite_tests::poll_pause(begun)).await;
        }
    }

    /// Waits until the container's command runs.
    pub async fn until_running(&self, job: &Job) {
        self.until(job, "it runs", |c| c.state == ContainerState::Running)
            .await;
    }

    pub async fn until(
        &self,
        job: &Job,
        what: &str,
        holds: impl Fn(&Container) -> bool,
    ) -> Container {
        let begun = std::time::Instant::now();
        loop {
            let record = self.record(job).await;
            if holds(&record) {
                return record;
            }
            assert!(
                begun.elapsed() < suite_tests::STEP_TIMEOUT,
                "not {what}: {record:?}"
            );
            tokio::time::sleep(suite_tests::poll_pause(begun)).await;
        }
    }
}

pub async fn finish(child: Child) -> Finished {
    finish_within(child, suite_tests::STEP_TIMEOUT).await
}

pub async fn finish_within(child: Child, timeout: Duration) -> Finished {
    let output = tokio::time::timeout(timeout, child.wait_with_output())
        .await
        .expect("crunch-run ends")
        .unwrap();
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let code = output
        .status
        .code()
        .unwrap_or_else(|| panic!("killed: {} {text}", output.status));
    Finished { code, output: text }
}

/// A signal to a process of ours.
pub fn signal(child: &Child, signal: rustix::process::Signal) {
    let pid = rustix::process::Pid::from_raw(child.id().unwrap() as i32).unwrap();
    rustix::process::kill_process(pid, signal).unwrap();
}

/// Lets a command go on that waits for a file `on` in a mount of its own, which is neither the
/// output nor has an `a.txt`.
pub fn go_on(job: &Job) {
    let mounts = job.dir.join("scratch/files/mounts");
    for entry in fs::read_dir(mounts).unwrap() {
        let dir = entry.unwrap().path();
        if dir.is_dir() && !dir.ends_with("output") && !dir.join("a.txt").exists() {
            fs::write(dir.join("on"), "").unwrap();
        }
    }
}

/// The common prefix of the cluster's tokens, which no path may contain.
pub fn any_token(job: &Job) -> String {
    format!("v2/{}-gj3su-", &job.uuid.as_str()[..5])
}

/// Control groups and notes of the container on this node.
pub fn left_overs(uuid: &ContainerUuid) -> Vec<PathBuf> {
    let prefix = format!("crunch-run-{uuid}-");
    let mut found = Vec::new();
    let mut dirs = vec![
        PathBuf::from("/run/crunch-run"),
        PathBuf::from("/sys/fs/cgroup"),
    ];
    dirs.extend(
        fs::read_dir("/sys/fs/cgroup")
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.path()),
    );
    for dir in dirs {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().contains(&prefix) {
                found.push(entry.path());
            }
        }
    }
    found
}

pub fn write_token(dir: &Path, token: &Token) {
    use std::io::Write;
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(dir.join("token"))
        .unwrap();
    file.write_all(token.expose().as_bytes()).unwrap();
}

fn client(ready: &Value, who: &str) -> Client {
    let path = ready["tokens"][who].as_str().unwrap();
    let token = Token::new(fs::read_to_string(path).unwrap());
    let mut endpoint = Endpoint::new(ready["host"].as_str().unwrap(), token).unwrap();
    endpoint.ca_file = Some(Path::new(ready["certificate"].as_str().unwrap()).to_owned());
    endpoint.retry_budget = Duration::from_secs(60);
    Client::new(endpoint).unwrap()
}
