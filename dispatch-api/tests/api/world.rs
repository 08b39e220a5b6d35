//! A server of one test, and clients of it.

use std::path::Path;
use std::sync::Once;
use std::time::{Duration, Instant};

use dispatch_api::{Emulate, Options, Server};
use reqwest::{Certificate, Client, Method};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A running server over a directory that goes away with it.
pub struct World {
    pub server: Server,
    pub directory: TempDir,
    pub admin: Api,
}

/// One token's view of a server.
#[derive(Clone)]
pub struct Api {
    client: Client,
    pub host: String,
    pub token: String,
}

/// An answer, read to the end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: Value,
    pub etag: Option<String>,
}

impl Answer {
    /// The body of a success.
    #[track_caller]
    pub fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.body
    }

    /// The first error of a refusal with this status.
    #[track_caller]
    pub fn refused(self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", self.body);
        self.body["errors"][0].as_str().unwrap_or("").to_owned()
    }
}

pub fn trusting(certificate: &Path) -> Client {
    static PROVIDER: Once = Once::new();
    PROVIDER.call_once(|| {
        rustls::crypto::ring::default_provider()
            .install_default()
            .unwrap();
    });
    let pem = std::fs::read(certificate).unwrap();
    Client::builder()
        .tls_certs_only([Certificate::from_pem(&pem).unwrap()])
        .build()
        .unwrap()
}

impl World {
    pub async fn new() -> World {
        World::at(tempfile::tempdir().unwrap()).await
    }

    /// A server that passes for a real one. Its `admin` is the user of the dispatchers.
    #[allow(dead_code, reason = "the benchmark measures this server as itself")]
    pub async fn as_arvados() -> World {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(directory.path().join("state"));
        options.emulate = Emulate::Arvados3;
        World::with(directory, options).await
    }

    #[allow(dead_code, reason = "the benchmark needs no tunnels")]
    pub async fn with_tunnels(most: usize) -> World {
        let directory = tempfile::tempdir().unwrap();
        let mut options = Options::new(directory.path().join("state"));
        options.max_gateway_tunnels = most;
        World::with(directory, options).await
    }

    pub async fn at(directory: TempDir) -> World {
        let options = Options::new(directory.path().join("state"));
        World::with(directory, options).await
    }

    async fn with(directory: TempDir, options: Options) -> World {
        // What another test starts has a copy of a stopped one's lock and port, until it runs.
        let until = Instant::now() + Duration::from_secs(60);
        let server = loop {
            match Server::start(&options).await {
                Err(_) if Instant::now() < until => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
                started => break started.unwrap(),
            }
        };
        let admin = match options.emulate {
            Emulate::None => "user",
            Emulate::Arvados3 => "dispatch",
        };
        let admin = Api::of(&server.ready(), admin);
        World {
            server,
            directory,
            admin,
        }
    }

    /// Stop, and start again on the same directory.
    pub async fn restarted(self) -> World {
        self.server.stop().await;
        World::at(self.directory).await
    }

    /// An active user without special rights.
    pub async fn plain_user(&self, name: &str) -> Api {
        let user = json!({"user": {"username": name, "email": name, "is_active": true}});
        let user = self.admin.post("users", user).await.ok();
        self.token(json!({"owner_uuid": user["uuid"]})).await
    }

    /// Another token of the administrator, or as described.
    pub async fn token(&self, attributes: Value) -> Api {
        let body = json!({"api_client_authorization": attributes});
        let made = self
            .admin
            .post("api_client_authorizations", body)
            .await
            .ok();
        self.admin.with_token(&v2(&made))
    }

    /// A collection with one small file, and an image link `busybox:latest` to it.
    pub async fn image(&self) -> String {
        let manifest = ". acbd18db4cc2f85cedef654fccc4a4d8+3 0:3:image.tar\n";
        let body = json!({"collection": {"name": "image", "manifest_text": manifest}});
        let collection = self.admin.post("collections", body).await.ok();
        let link = json!({"link": {"link_class": "docker_image_repo+tag", "name": "busybox:latest",
                                   "head_uuid": collection["uuid"]}});
        self.admin.post("links", link).await.ok();
        collection["portable_data_hash"]
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// A committed request; `extra` overrides its attributes.
    pub async fn submit(&self, extra: Value) -> Value {
        submit(&self.admin, extra).await.ok()
    }

    /// A queued container.
    pub async fn queued(&self) -> String {
        self.image().await;
        let request = self.submit(json!({})).await;
        request["container_uuid"].as_str().unwrap().to_owned()
    }
}

pub fn v2(token: &Value) -> String {
    format!(
        "v2/{}/{}",
        token["uuid"].as_str().unwrap(),
        token["api_token"].as_str().unwrap()
    )
}

pub fn request(extra: Value) -> Value {
    let mut request = json!({
        "name": "test", "state": "Committed", "priority": 500,
        "command": ["true"], "container_image": "busybox", "output_path": "/out", "cwd": "/",
        "mounts": {"/out": {"kind": "tmp", "capacity": 1000}},
        "runtime_constraints": {"ram": 1_000_000, "vcpus": 1},
    });
    for (name, value) in extra.as_object().unwrap() {
        request[name] = value.clone();
    }
    json!({ "container_request": request })
}

pub async fn submit(api: &Api, extra: Value) -> Answer {
    api.post("container_requests", request(extra)).await
}

impl Api {
    pub fn of(ready: &Value, name: &str) -> Api {
        let token = std::fs::read_to_string(ready["tokens"][name].as_str().unwrap()).unwrap();
        Api {
            client: trusting(Path::new(ready["certificate"].as_str().unwrap())),
            host: ready["host"].as_str().unwrap().to_owned(),
            token,
        }
    }

    pub fn with_token(&self, token: &str) -> Api {
        Api {
            token: token.to_owned(),
            ..self.clone()
        }
    }

    /// A request without any token.
    pub fn bare(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client
            .request(method, format!("https://{}{path}", self.host))
    }

    pub fn raw(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.bare(method, path).bearer_auth(&self.token)
    }

    pub async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let response = request.send().await.unwrap();
        let etag = response
            .headers()
            .get("etag")
            .map(|tag| tag.to_str().unwrap().to_owned());
        let status = response.status().as_u16();
        let text = response.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, body, etag }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.raw(Method::GET, &format!("/arvados/v1/{path}")))
            .await
    }

    fn listing(&self, resource: &str, params: Value) -> reqwest::RequestBuilder {
        let query: Vec<(String, String)> = params
            .as_object()
            .unwrap()
            .iter()
            .map(|(name, value)| {
                let text = value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned);
                (name.clone(), text)
            })
            .collect();
        self.raw(Method::GET, &format!("/arvados/v1/{resource}"))
            .query(&query)
    }

    /// List with parameters given as JSON values.
    pub async fn list(&self, resource: &str, params: Value) -> Answer {
        self.send(self.listing(resource, params)).await
    }

    /// As `list`, without a look at what came.
    #[allow(dead_code, reason = "only the benchmark is in such a hurry")]
    pub async fn fetch(&self, resource: &str, params: Value) -> usize {
        let response = self.listing(resource, params).send().await.unwrap();
        assert_eq!(response.status(), 200);
        response.bytes().await.unwrap().len()
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        let request = self.raw(Method::POST, &format!("/arvados/v1/{path}"));
        self.send(request.json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        let request = self.raw(Method::PUT, &format!("/arvados/v1/{path}"));
        self.send(request.json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.raw(Method::DELETE, &format!("/arvados/v1/{path}")))
            .await
    }

    pub async fn lock(&self, uuid: &str) -> Answer {
        self.post(&format!("containers/{uuid}/lock"), json!({}))
            .await
    }

    pub async fn unlock(&self, uuid: &str) -> Answer {
        self.post(&format!("containers/{uuid}/unlock"), json!({}))
            .await
    }

    pub async fn change(&self, uuid: &str, attributes: Value) -> Answer {
        self.put(
            &format!("containers/{uuid}"),
            json!({"container": attributes}),
        )
        .await
    }

    pub async fn container(&self, uuid: &str) -> Value {
        self.get(&format!("containers/{uuid}")).await.ok()
    }

    /// The token made for a container, in the holder's hands.
    pub async fn container_token(&self, uuid: &str) -> Api {
        let token = self.get(&format!("containers/{uuid}/auth")).await.ok();
        self.with_token(&v2(&token))
    }
}
