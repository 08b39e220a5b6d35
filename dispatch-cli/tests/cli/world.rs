//! A server of one test, a dispatcher's hands, and the command beside them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use arvados_client::keep::CollectionWriter;
use arvados_client::{Client, ContainerUuid, Endpoint, Token};
use assert_cmd::Command;
use dispatch_api::{Options, Server};
use serde_json::{Value, json};
use suite_tests::proxy::Proxy;
use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(300);

pub struct World {
    _server: Server,
    pub dispatch: Client,
    pub user: Client,
    pub dir: TempDir,
    ready: Value,
    host: String,
    token: String,
}

/// What a command did.
#[derive(Debug)]
pub struct Done {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Done {
    pub fn of(command: &mut Command) -> Self {
        let output = command.timeout(PATIENCE).output().unwrap();
        Self {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// It succeeded; its output.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// It succeeded and printed one JSON document.
    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }

    /// It failed with this status and one sentence with these words on standard error, and printed nothing else.
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

impl World {
    pub async fn new() -> World {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(&Options::new(dir.path().join("server")))
            .await
            .unwrap();
        let ready = serde_json::to_value(server.ready()).unwrap();
        let token = |who: &str| {
            let text = std::fs::read_to_string(ready["tokens"][who].as_str().unwrap()).unwrap();
            text.trim().to_owned()
        };
        let host = ready["host"].as_str().unwrap().to_owned();
        let client = |token: String| {
            let mut endpoint = Endpoint::new(&host, Token::new(token)).unwrap();
            endpoint.insecure = true;
            Client::new(endpoint).unwrap()
        };
        World {
            dispatch: client(token("dispatch")),
            user: client(token("user")),
            token: token("user"),
            host: host.clone(),
            ready: ready.clone(),
            _server: server,
            dir,
        }
    }

    /// A world with an image called `tool`.
    pub async fn with_image() -> World {
        let world = World::new().await;
        let root = world.path("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(root.join("tool"), "not run in these tests").unwrap();
        world
            .run(&["image", "add", "tool", root.to_str().unwrap()])
            .await
            .ok();
        world
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command, with only this server to find.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(self.dir.path(), args);
        command
            .env("ARVADOS_API_HOST", &self.host)
            .env("ARVADOS_API_HOST_INSECURE", "1")
            .env("ARVADOS_API_TOKEN", &self.token);
        command
    }

    /// A proxy before the server, and the command that knows the server as this proxy.
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

    /// Runs it aside, because the server is in this process.
    pub async fn run(&self, args: &[&str]) -> Done {
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

    /// Does what a dispatcher and a crunch-run do until the container runs.
    pub async fn start(&self, job: &Submitted) {
        self.dispatch
            .lock_container(&job.container, "")
            .await
            .unwrap();
        self.update(job, json!({"state": "Running"})).await;
    }

    /// Does what they do at its end.
    pub async fn finish(
        &self,
        job: &Submitted,
        code: i32,
        output: &[(&str, &str)],
        log: &[(&str, &str)],
    ) {
        let (output, log) = (self.store(output).await, self.store(log).await);
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

    /// A collection with these files; its portable data hash.
    pub async fn store(&self, files: &[(&str, &str)]) -> String {
        let keep = self
            .dispatch
            .keep(self.dispatch.keep_options().await.unwrap())
            .await
            .unwrap();
        let mut writer = CollectionWriter::new(keep);
        for (name, content) in files {
            writer.put_reader(name, content.as_bytes()).await.unwrap();
        }
        let manifest = writer.finish().await.unwrap().to_string();
        let saved = self
            .dispatch
            .create_collection(json!({"manifest_text": manifest}))
            .await
            .unwrap();
        saved.portable_data_hash.unwrap().to_string()
    }
}

/// A job that was handed in.
pub struct Submitted {
    pub id: String,
    pub uuid: String,
    pub container: ContainerUuid,
}

/// The command in an environment that knows no server.
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

pub async fn run(mut command: Command) -> Done {
    let running = tokio::task::spawn_blocking(move || Done::of(&mut command));
    running.await.unwrap()
}
