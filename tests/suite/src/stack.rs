//! dispatch-api and a dispatcher with a busybox image, in a temporary directory.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use arvados_client::api::NewUserToken;
use arvados_client::records::{Container, ContainerState};
use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, Endpoint, Token};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::image;
use crate::program::{Program, binary};
use crate::{STEP_TIMEOUT, poll_pause};

pub struct Stack {
    pub api: Program,
    pub dispatcher: Program,
    pub user: Client,
    /// The ready line of dispatch-api: host, certificate, token files.
    pub ready: Value,
    pub dir: TempDir,
    pub image: String,
    /// Keeps the server's port bound while the server is down.
    _port: TcpSocket,
}

/// A port of this machine, bound and not listened to: who binds it by its number as this does may
/// listen.
fn port() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

/// Addresses of a stack's servers, for a dispatcher.
#[derive(Clone)]
pub struct Servers {
    pub ready: Value,
    pub log: PathBuf,
    pub points: PathBuf,
}

impl Servers {
    /// The dispatcher `name` with `more` arguments and variables.
    pub fn dispatcher(
        &self,
        name: &'static str,
        more: &[&str],
        env: &[(&'static str, &str)],
    ) -> Program {
        let of = |value: &Value| value.as_str().unwrap().to_owned();
        let token = of(&self.ready["tokens"]["dispatch"]);
        let mut args = vec!["--token-file", &token, "--poll-interval", "1s"];
        args.extend(["--log-level", "debug,hyper_util=info,reqwest=info"]);
        args.extend(more);
        let (host, certificate) = (of(&self.ready["host"]), of(&self.ready["certificate"]));
        let mut all = vec![
            ("ARVADOS_API_HOST", host.as_str()),
            ("SSL_CERT_FILE", certificate.as_str()),
            (fail_points::VARIABLE, self.points.to_str().unwrap()),
        ];
        all.extend(env);
        Program::new(name, &self.log, &args, &all)
    }
}

impl Stack {
    /// A stack with dispatch-local; both run, and the image is there.
    pub async fn up() -> Self {
        Self::with(|servers, dir| {
            let run = dir.join("run");
            let args = ["--state-dir", run.to_str().unwrap()];
            servers.dispatcher("dispatch-local", &args, &[])
        })
        .await
    }

    /// A stack with the dispatcher that `make` creates.
    pub async fn with(make: impl FnOnce(&Servers, &Path) -> Program) -> Self {
        Self::with_api(&[], make).await
    }

    /// The same with additional flags of the server.
    pub async fn with_api(
        api_flags: &[&str],
        make: impl FnOnce(&Servers, &Path) -> Program,
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        let (port, address) = port();
        let mut args = vec!["--state-dir", state.to_str().unwrap(), "--listen", &address];
        args.extend(api_flags);
        let points = points_in(dir.path());
        std::fs::create_dir(&points).unwrap();
        let env = [(fail_points::VARIABLE, points.to_str().unwrap())];
        let mut api = Program::new("dispatch-api", &dir.path().join("api"), &args, &env);
        api.start();
        let ready = wait_for("dispatch-api to be ready", STEP_TIMEOUT, || {
            serde_json::from_str::<Value>(api.stdout_text().lines().next()?).ok()
        });
        let servers = Servers {
            ready: ready.clone(),
            log: dir.path().join("dispatcher"),
            points,
        };
        let mut dispatcher = make(&servers, dir.path());
        dispatcher.start();
        let image = image::add(&environment(&ready), dir.path());
        Self {
            api,
            dispatcher,
            user: client(&ready, "user"),
            ready,
            dir,
            image,
            _port: port,
        }
    }

    /// The crunch-run of this container, by its lock in dispatch-local's directory.
    pub fn executor(&self, container: &ContainerUuid) -> rustix::process::Pid {
        let lock = self
            .dispatcher_state_dir()
            .join(container.as_str())
            .join("lock");
        let note: Value = serde_json::from_slice(&std::fs::read(lock).unwrap()).unwrap();
        rustix::process::Pid::from_raw(note["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// Waits until the dispatcher has started. It handles signals only from then on.
    pub fn wait_for_dispatcher(&self) {
        wait_for("the dispatcher to be started", STEP_TIMEOUT, || {
            self.dispatcher
                .log_contains(r#"event="started""#)
                .then_some(())
        });
    }

    /// Directory of the fail points of all its programs, in a build with fail points.
    pub fn points_dir(&self) -> PathBuf {
        points_in(self.dir.path())
    }

    pub fn dispatcher_state_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A committed request for `script` in a shell.
    pub async fn submit(
        &self,
        name: &str,
        script: &str,
        more: Value,
    ) -> (ContainerRequestUuid, ContainerUuid) {
        self.try_submit(name, script, more).await.unwrap()
    }

    /// Another user of the server, who has the image, too.
    pub async fn another_user(&self, name: &str) -> Client {
        let admin = client(&self.ready, "dispatch");
        let email = format!("{name}@example.org");
        let user = admin.create_user(name, &email).await.unwrap();
        let new = NewUserToken {
            owner: Some(user.uuid),
            scopes: vec!["all".to_owned()],
            expires_at: None,
        };
        let token = admin.create_user_token(&new).await.unwrap();
        let token = token.token().unwrap();
        let mut environment = environment(&self.ready);
        environment.retain(|(variable, _)| *variable != "ARVADOS_API_TOKEN");
        environment.push(("ARVADOS_API_TOKEN", token.expose().to_owned()));
        let dir = tempfile::tempdir().unwrap();
        image::add(&environment, dir.path());
        admin.with_token(token)
    }

    /// Submits a container; the server may be down.
    pub async fn try_submit(
        &self,
        name: &str,
        script: &str,
        more: Value,
    ) -> Result<(ContainerRequestUuid, ContainerUuid), arvados_client::Error> {
        self.try_submit_as(&self.user, name, script, more).await
    }

    /// Submits a container as one of several users.
    pub async fn try_submit_as(
        &self,
        user: &Client,
        name: &str,
        script: &str,
        more: Value,
    ) -> Result<(ContainerRequestUuid, ContainerUuid), arvados_client::Error> {
        let mut request = json!({
            "name": name, "state": "Committed", "priority": 500, "use_existing": false,
            "command": ["sh", "-c", script], "container_image": self.image,
            "output_path": "/out", "cwd": "/out", "container_count_max": 1,
            "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 20}},
            "runtime_constraints": {"vcpus": 1, "ram": 32 << 20},
        });
        for (key, value) in more.as_object().unwrap() {
            request[key] = value.clone();
        }
        let made = user.create_container_request(request).await?;
        Ok((made.uuid, made.container_uuid.unwrap()))
    }

    pub async fn container(&self, uuid: &ContainerUuid) -> Container {
        self.user.container(uuid).await.unwrap()
    }

    /// Waits until it is Complete or Cancelled.
    pub async fn end(&self, uuid: &ContainerUuid, timeout: Duration) -> Container {
        self.wait_until(uuid, timeout, |c| c.state.is_final()).await
    }

    pub async fn wait_until(
        &self,
        uuid: &ContainerUuid,
        timeout: Duration,
        done: impl Fn(&Container) -> bool,
    ) -> Container {
        self.wait_until_as(&self.user, uuid, timeout, done).await
    }

    /// The same for a container that only `user` may read.
    pub async fn wait_until_as(
        &self,
        user: &Client,
        uuid: &ContainerUuid,
        timeout: Duration,
        done: impl Fn(&Container) -> bool,
    ) -> Container {
        let begun = Instant::now();
        loop {
            let known = user.container(uuid).await;
            if let Ok(record) = &known
                && done(record)
            {
                return record.clone();
            }
            if begun.elapsed() > timeout {
                let output = std::fs::read_to_string(
                    self.dispatcher_state_dir()
                        .join(uuid.as_str())
                        .join("output.log"),
                );
                panic!(
                    "{uuid} is not there after {timeout:?}: {known:?}\ncrunch-run: {output:?}\nthe dispatcher:\n{}\ndispatch-api:\n{}",
                    self.dispatcher.log_text(),
                    self.api.log_text()
                );
            }
            tokio::time::sleep(poll_pause(begun)).await;
        }
    }

    /// Waits until a line of the dispatcher's log contains the container's uuid and `words`.
    pub fn wait_for_log_line(&self, uuid: &ContainerUuid, words: &str, timeout: Duration) {
        wait_for(words, timeout, || {
            let log = self.dispatcher.log_text();
            let mut lines = log.lines();
            let is_it = |line: &str| line.contains(uuid.as_str()) && line.contains(words);
            lines.any(is_it).then_some(())
        });
    }

    /// What `dispatch explain` tells the user about a job.
    pub fn explained(&self, request: &ContainerRequestUuid) -> String {
        let output = Command::new(binary("dispatch"))
            .args(["explain", request.as_str()])
            .envs(environment(&self.ready))
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Text of a file in a collection.
    pub async fn read(&self, pdh: &str, path: &str) -> String {
        let output = Command::new(binary("dispatch"))
            .args(["get", &format!("{pdh}:{path}"), "-"])
            .envs(environment(&self.ready))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the dispatcher:\n{}", self.dispatcher.log_text());
        }
    }
}

pub fn points_in(dir: &Path) -> PathBuf {
    dir.join("points")
}

pub fn complete(container: &Container) -> &Container {
    assert_eq!(container.state, ContainerState::Complete, "{container:?}");
    assert_eq!(container.exit_code, Some(0), "{container:?}");
    container
}

/// The variables of a user of this server, as `dispatch up` prints them.
pub fn environment(ready: &Value) -> Vec<(&'static str, String)> {
    let user = std::fs::read_to_string(ready["tokens"]["user"].as_str().unwrap()).unwrap();
    vec![
        (
            "ARVADOS_API_HOST",
            ready["host"].as_str().unwrap().to_owned(),
        ),
        (
            "SSL_CERT_FILE",
            ready["certificate"].as_str().unwrap().to_owned(),
        ),
        ("ARVADOS_API_TOKEN", user.trim().to_owned()),
    ]
}

pub fn client(ready: &Value, who: &str) -> Client {
    let token = std::fs::read_to_string(ready["tokens"][who].as_str().unwrap()).unwrap();
    let mut endpoint =
        Endpoint::new(ready["host"].as_str().unwrap(), Token::new(token.trim())).unwrap();
    endpoint.ca_file = Some(Path::new(ready["certificate"].as_str().unwrap()).to_owned());
    endpoint.retry_budget = Duration::from_secs(1);
    Client::new(endpoint).unwrap()
}

pub fn wait_for<T>(what: &str, timeout: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < timeout, "waited {timeout:?} for {what}");
        std::thread::sleep(poll_pause(begun));
    }
}
