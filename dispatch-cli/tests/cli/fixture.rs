//! Fixture of the tests: a server, a client that acts as the dispatcher, and the command.

use std::path::{Path, PathBuf};

use arvados_client::keep::CollectionWriter;
use arvados_client::{Client, ContainerUuid, Endpoint, Token};
use assert_cmd::Command;
use dispatch_api::{Emulate, Options, Server};
use serde_json::{Value, json};
use suite_tests::proxy::Proxy;
use tempfile::TempDir;

pub struct Fixture {
    _server: Server,
    pub dispatch: Client,
    pub user: Client,
    pub dir: TempDir,
    pub ready: Value,
    host: String,
    token: String,
}

/// Exit status and output of a command.
#[derive(Debug)]
pub struct CommandResult {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl CommandResult {
    pub fn of(command: &mut Command) -> Self {
        let output = command.timeout(suite_tests::STEP_TIMEOUT).output().unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Asserts success; returns the output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Asserts success; returns the one JSON document that was printed.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// Asserts failure with this status, and one sentence with these words on standard error only.
    #[track_caller]
    pub fn says(self, code: i32, words: &[&str]) {
        assert_eq!(self.code, code, "{self:?}");
        assert!(self.err.starts_with("dispatch: "), "{self:?}");
        assert_eq!(self.err.trim_end().lines().count(), 1, "{self:?}");
        for word in words {
            assert!(self.err.contains(word), "no {word:?} in {self:?}");
        }
        assert_eq!(self.out, "");
    }
}

impl Fixture {
    pub async fn new() -> Fixture {
        Fixture::emulating(Emulate::None).await
    }

    async fn emulating(emulate: Emulate) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let options = Options {
            emulate,
            ..Options::new(dir.path().join("server"))
        };
        let server = Server::start(&options).await.unwrap();
        let ready = serde_json::to_value(server.ready()).unwrap();
        let token = |who: &str| {
            let text = std::fs::read_to_string(ready["tokens"][who].as_str().unwrap()).unwrap();
            text.trim().to_owned()
        };
        let host = ready["host"].as_str().unwrap().to_owned();
        let client = |token: String| {
            let mut endpoint = Endpoint::new(&host, Token::new(token)).unwrap();
            endpoint.ca_file = Some(ready["certificate"].as_str().unwrap().into());
            Client::new(endpoint).unwrap()
        };
        Fixture {
            dispatch: client(token("dispatch")),
            user: client(token("user")),
            token: token("user"),
            host: host.clone(),
            ready: ready.clone(),
            _server: server,
            dir,
        }
    }

    /// A fixture with an image called `tool`.
    pub async fn with_image() -> Fixture {
        Fixture::new().await.add_image().await
    }

    /// The same as a real Arvados, which numbers no jobs.
    pub async fn as_arvados_with_image() -> Fixture {
        Fixture::emulating(Emulate::Arvados3)
            .await
            .add_image()
            .await
    }

    /// The same with commands of the administrator, who can also read what containers stored.
    pub async fn with_image_of_admin() -> Fixture {
        let mut fixture = Fixture::new().await;
        let file = fixture.ready["tokens"]["root"].as_str().unwrap();
        fixture.token = std::fs::read_to_string(file).unwrap().trim().to_owned();
        fixture.add_image().await
    }

    async fn add_image(self) -> Fixture {
        let root = self.path("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("tool"), "not run in these tests").unwrap();
        self.run(&["image", "add", "tool", root.to_str().unwrap()])
            .await
            .ok();
        self
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command, in an environment with only this server.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(self.dir.path(), args);
        command
            .env("ARVADOS_API_HOST", &self.host)
            .env("SSL_CERT_FILE", self.ready["certificate"].as_str().unwrap())
            .env("ARVADOS_API_TOKEN", &self.token);
        command
    }

    /// The command with the token of the administrator.
    pub fn admin_command(&self, args: &[&str]) -> Command {
        let file = self.ready["tokens"]["root"].as_str().unwrap();
        self.command_with(&std::fs::read_to_string(file).unwrap(), args)
    }

    /// The command with another token.
    pub fn command_with(&self, token: &str, args: &[&str]) -> Command {
        let mut command = self.command(args);
        command.env("ARVADOS_API_TOKEN", token.trim());
        command
    }

    /// A proxy in front of the server, and the command configured for the proxy.
    pub fn proxy(&self) -> (Proxy, impl Fn(&[&str]) -> Command + '_) {
        let proxy = Proxy::start(&self.ready);
        let host = proxy.ready(&self.ready)["host"]
            .as_str()
            .unwrap()
            .to_owned();
        let command = move |args: &[&str]| {
            let mut command = self.command(args);
            command.env("ARVADOS_API_HOST", &host);
            command
        };
        (proxy, command)
    }

    /// Runs the command on a thread for blocking calls, because the server is in this process.
    pub async fn run(&self, args: &[&str]) -> CommandResult {
        run(self.command(args)).await
    }

    /// A queued job.
    pub async fn submit(&self, name: &str) -> Submitted {
        let made = self
            .run(&[
                "--json", "submit", "--image", "tool", "--name", name, "--", "tool", name,
            ])
            .await
            .json();
        Submitted {
            id: made["id"].as_u64().unwrap().to_string(),
            uuid: made["uuid"].as_str().unwrap().to_owned(),
            container: ContainerUuid::parse(made["container_uuid"].as_str().unwrap()).unwrap(),
        }
    }

    /// Starts a container as a dispatcher and crunch-run do.
    pub async fn start(&self, job: &Submitted) {
        self.dispatch
            .lock_container(&job.container, "")
            .await
            .unwrap();
        self.update(job, json!({"state": "Running"})).await;
    }

    /// Ends a container as crunch-run does.
    pub async fn finish(
        &self,
        job: &Submitted,
        code: i32,
        output: &[(&str, &str)],
        log: &[(&str, &str)],
    ) {
        let output = store_as(&self.dispatch, output).await;
        let log = store_as(&self.dispatch, log).await;
        self.update(
            job,
            json!({"exit_code": code, "output": output, "log": log}),
        )
        .await;
        self.update(job, json!({"state": "Complete"})).await;
    }

    pub async fn update(&self, job: &Submitted, attributes: Value) {
        self.dispatch
            .update_container(&job.container, attributes)
            .await
            .unwrap();
    }

    /// Stores a collection of the user with these files; returns its portable data hash.
    pub async fn store(&self, files: &[(&str, &str)]) -> String {
        store_as(&self.user, files).await
    }
}

async fn store_as(client: &Client, files: &[(&str, &str)]) -> String {
    let options = client.keep_options().await.unwrap();
    let keep = client.keep(options).await.unwrap();
    let mut writer = CollectionWriter::new(keep);
    for (name, content) in files {
        writer.put_reader(name, content.as_bytes()).await.unwrap();
    }
    let manifest = writer.finish().await.unwrap().to_string();
    let manifest = json!({"manifest_text": manifest});
    let saved = client.create_collection(manifest).await.unwrap();
    saved.portable_data_hash.unwrap().to_string()
}

/// A submitted job.
pub struct Submitted {
    pub id: String,
    pub uuid: String,
    pub container: ContainerUuid,
}

/// The command in an environment without a server.
pub fn bare(home: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("dispatch"));
    command
        .args(args)
        .current_dir(home)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home);
    command
}

pub async fn run(mut command: Command) -> CommandResult {
    let running = tokio::task::spawn_blocking(move || CommandResult::of(&mut command));
    running.await.unwrap()
}
