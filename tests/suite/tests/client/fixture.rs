//! One test's embedded API server and its clients.

use std::path::Path;
use std::time::Duration;

use arvados_client::{Client, ContainerRequestUuid, ContainerUuid, Endpoint, Token};
use dispatch_api::{Emulate, Options, Server};
use serde_json::{Value, json};
use tempfile::TempDir;

pub struct Fixture {
    pub server: Server,
    pub dispatch: Client,
    pub user: Client,
    pub image: String,
    _directory: TempDir,
}

impl Fixture {
    pub async fn new() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let options = Options::new(directory.path().join("state"));
        Self::with(options, directory).await
    }

    /// A server that passes for a real Arvados server.
    pub async fn of_arvados() -> Fixture {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(directory.path().join("state"));
        options.emulate = Emulate::Arvados3;
        Self::with(options, directory).await
    }

    async fn with(options: Options, directory: TempDir) -> Fixture {
        let server = Server::start(&options).await.unwrap();
        let ready = serde_json::to_value(server.ready()).unwrap();
        let dispatch = client(&ready, "dispatch");
        let user = client(&ready, "user");
        let keep = user.keep(user.keep_options().await.unwrap()).await.unwrap();
        let mut writer = arvados_client::keep::CollectionWriter::new(keep);
        writer.start_file(&format!("sha256:{:064}.tar", 1)).unwrap();
        writer.write(b"not really an image").await.unwrap();
        writer.finish_file();
        let manifest = writer.finish().await.unwrap().to_string();
        let saved = user
            .create_collection(json!({"manifest_text": manifest}))
            .await
            .unwrap();
        let image = saved.portable_data_hash.unwrap().to_string();
        Fixture {
            server,
            dispatch,
            user,
            image,
            _directory: directory,
        }
    }

    /// Whether the server passes for a real Arvados server, which has none of dispatch-api's own
    /// ways.
    pub fn emulates_arvados() -> bool {
        std::env::var_os("DISPATCH_API_EMULATE").is_some_and(|mode| mode == "arvados-3")
    }

    /// A committed request; its container is Queued.
    pub async fn request(&self, name: &str) -> (ContainerRequestUuid, ContainerUuid) {
        let made = self.user.create_container_request(json!({
            "name": name, "state": "Committed", "priority": 500, "use_existing": false,
            "command": ["true"], "container_image": self.image, "output_path": "/out", "cwd": ".",
            "mounts": {"/out": {"kind": "tmp", "capacity": 1 << 20}},
            "runtime_constraints": {"vcpus": 1, "ram": 64 << 20},
        })).await.unwrap();
        (made.uuid, made.container_uuid.unwrap())
    }
}

fn client(ready: &Value, who: &str) -> Client {
    let path = ready["tokens"][who].as_str().unwrap();
    let token = Token::new(std::fs::read_to_string(path).unwrap());
    let mut endpoint = Endpoint::new(ready["host"].as_str().unwrap(), token).unwrap();
    endpoint.ca_file = Some(Path::new(ready["certificate"].as_str().unwrap()).to_owned());
    endpoint.retry_budget = Duration::from_secs(2);
    Client::new(endpoint).unwrap()
}
